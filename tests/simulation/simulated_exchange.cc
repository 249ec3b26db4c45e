#include "tests/simulation/simulated_exchange.h"

#include <algorithm>
#include <utility>

namespace cadre::simulation {
namespace {

// Equal to the default of TrainerOptions::exchange_silence.
constexpr absl::Duration kTimeout = absl::Minutes(10);
constexpr uint32_t kChunkElements = 2;

}  // namespace

SimulatedAggregator* SimulatedExchange::Find(uint32_t shard) {
  for (const auto& aggregator : directory_) {
    if (aggregator->up() && aggregator->address() == addresses_[shard] &&
        !network_.IsCutFromAll(host_) && !network_.IsCutFromAll(aggregator->name())) {
      return aggregator.get();
    }
  }
  return nullptr;
}

void SimulatedExchange::All(std::vector<CallPtr> calls, const Finished& finished,
                            const std::function<void(const CallPtr&)>& begin) {
  auto left = std::make_shared<size_t>(calls.size());
  auto first = std::make_shared<absl::Status>();
  if (calls.empty()) {
    world_.timeline.After(absl::ZeroDuration(), life_, [finished] { finished(absl::OkStatus()); });
    return;
  }
  for (const CallPtr& call : calls) {
    call->deadline = world_.timeline.now() + kTimeout;
    call->finished = [left, first, finished](const absl::Status& status) {
      first->Update(status);
      if (--*left == 0) finished(*first);
    };
    begin(call);
  }
}

void SimulatedExchange::Stage(const v1::ContributionHeader& header,
                              const std::vector<int64_t>& begins,
                              const std::vector<Interval>& owned, const Words& words,
                              Finished finished) {
  std::vector<CallPtr> calls;
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    const auto parts = PartsWithin(owned, ShardSpan(begins.back(), shard, shards()));
    if (parts.empty()) continue;
    auto call = std::make_shared<Call>();
    call->shard = shard;
    call->header = header;
    call->header.set_codec(v1::CODEC_FP32);
    call->header.set_chunk_elements(kChunkElements);
    *call->header.mutable_ranges() = RangesOf(begins, parts);
    for (const Interval& part : parts) {
      for (int64_t p = part.begin; p < part.end; ++p) call->values.push_back(words[p]);
    }
    calls.push_back(std::move(call));
  }
  All(std::move(calls), finished, [this](const CallPtr& call) { BeginStage(call); });
}

void SimulatedExchange::Deliver(const CallPtr& call,
                                const std::function<void(const CallPtr&)>& again,
                                std::function<void()> work) {
  if (world_.dice.Chance(world_.faults.break_call)) {
    world_.Count("calls_broken");
    // The message may still be executed while or after the call is repeated.
    if (world_.dice.Chance(0.5)) {
      world_.timeline.After(
          world_.dice.Between(absl::ZeroDuration(), absl::Seconds(2)), life_,
          [work, at = call->at, process = call->at->process(), copy = *call, call]() mutable {
            if (!at->up() || at->process() != process) return;
            // The caller does not receive the result.
            Call now = std::exchange(*call, copy);
            call->finished = nullptr;
            work();
            *call = std::move(now);
          });
    }
    return RetryLater(call, again);
  }
  const uint64_t process = call->at->process();
  world_.timeline.After(
      world_.Delay(), life_, [this, call, again, process, work = std::move(work)] {
        const bool reached =
            call->at->up() && call->at->process() == process && Find(call->shard) == call->at;
        if (!reached) return RetryLater(call, again);
        work();
      });
}

void SimulatedExchange::RetryLater(const CallPtr& call,
                                   const std::function<void(const CallPtr&)>& again) {
  if (call->finished == nullptr) return;  // The caller received an error and repeated the call.
  world_.timeline.After(
      world_.dice.Between(absl::Milliseconds(50), absl::Seconds(3)), life_, [this, call, again] {
        if (world_.timeline.now() >= call->deadline) {
          return call->finished(absl::DeadlineExceededError("the shard did not answer in time"));
        }
        again(call);
      });
}

void SimulatedExchange::BeginStage(const CallPtr& call) {
  const auto again = [this](const CallPtr& c) { BeginStage(c); };
  call->at = Find(call->shard);
  if (call->at == nullptr) return RetryLater(call, again);
  Deliver(call, again, [this, call] {
    const absl::StatusOr<SimulatedAggregator::Staging> staging = call->at->Stage(call->header);
    if (!staging.ok()) {
      if (call->finished) call->finished(staging.status());
      return;
    }
    if (!call->finished) return;
    call->staging = *staging;
    call->next_chunk = staging->grant.next_chunk;
    SendChunk(call);
  });
}

void SimulatedExchange::SendChunk(const CallPtr& call) {
  if (call->next_chunk == call->staging.grant.chunks) return FinishStage(call);
  Deliver(
      call, [this](const CallPtr& c) { BeginStage(c); },
      [this, call] {
        const uint64_t first = uint64_t{call->next_chunk} * kChunkElements;
        const uint64_t last = std::min<uint64_t>(first + kChunkElements, call->values.size());
        const Words words(call->values.begin() + first, call->values.begin() + last);
        const absl::StatusOr<bool> put = call->at->Put(call->staging, call->next_chunk, words);
        if (!call->finished) return;
        if (!put.ok()) return call->finished(put.status());
        ++call->next_chunk;
        SendChunk(call);
      });
}

void SimulatedExchange::FinishStage(const CallPtr& call) {
  const auto again = [this](const CallPtr& c) { BeginStage(c); };
  Deliver(call, again, [this, call, again] {
    const absl::Status status = call->at->Finish(call->staging);
    if (status.ok()) invariants_.OnStaged(call->at->name(), call->header);
    if (!call->finished) return;
    if (!status.ok()) return call->finished(status);
    // The acknowledgement is a separate message, which may be lost.
    Deliver(call, again, [call] {
      if (call->finished) call->finished(absl::OkStatus());
    });
  });
}

void SimulatedExchange::Pull(const v1::PullRequest& request, const std::vector<int64_t>& begins,
                             const std::vector<Interval>& owned, Words* words, Finished finished) {
  std::vector<CallPtr> calls;
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    const auto parts = PartsWithin(owned, ShardSpan(begins.back(), shard, shards()));
    if (parts.empty()) continue;
    auto call = std::make_shared<Call>();
    call->shard = shard;
    call->request = request;
    *call->request.mutable_ranges() = RangesOf(begins, parts);
    call->spans = parts;
    call->out = words;
    calls.push_back(std::move(call));
  }
  All(std::move(calls), finished, [this](const CallPtr& call) { BeginPull(call); });
}

void SimulatedExchange::BeginPull(const CallPtr& call) {
  const auto again = [this](const CallPtr& c) { BeginPull(c); };
  call->at = Find(call->shard);
  if (call->at == nullptr) return RetryLater(call, again);
  Deliver(call, again, [this, call, again] {
    const absl::StatusOr<Words> words = call->at->Pull(call->request);
    if (!call->finished) return;
    if (!words.ok()) return call->finished(words.status());
    Deliver(call, again, [call, words = *words] {
      if (!call->finished) return;
      for (const Interval& span : call->spans) {
        for (int64_t p = span.begin; p < span.end; ++p) (*call->out)[p] = words[p];
      }
      call->finished(absl::OkStatus());
    });
  });
}

}  // namespace cadre::simulation
