#include "tests/simulation/simulated_exchange.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace cadre::simulation {
namespace {

constexpr uint32_t kChunkElements = 2;

ShardTransfer::Event Broken() {
  return ShardTransfer::Ended{absl::UnavailableError("the connection is broken")};
}

}  // namespace

SimulatedAggregator* SimulatedExchange::Find(uint32_t shard) {
  for (const auto& aggregator : directory_) {
    if (aggregator->up() && aggregator->address() == addresses_[shard] &&
        network_.Reaches(host_, aggregator->name())) {
      return aggregator.get();
    }
  }
  return nullptr;
}

void SimulatedExchange::All(
    Transfer::Direction direction, const std::vector<int64_t>& begins,
    const std::vector<Interval>& owned, const Finished& finished,
    const std::function<void(Call&, const std::vector<Interval>& parts)>& prepare) {
  std::vector<CallPtr> calls;
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    const bool pulls = direction == Transfer::Direction::kPull;
    if (shard > 0 && pulls && world_.plant == Plant::kPullOneShard) break;
    const auto parts = PartsWithin(owned, ShardSpan(begins.back(), shard, shards()));
    if (parts.empty()) continue;
    auto call = std::make_shared<Call>();
    call->shard = shard;
    for (const Interval& part : parts) {
      for (int64_t p = part.begin; p < part.end; ++p) call->positions.push_back(p);
    }
    prepare(*call, parts);
    calls.push_back(std::move(call));
  }
  if (calls.empty()) {
    world_.timeline.After(absl::ZeroDuration(), life_, [finished] { finished(absl::OkStatus()); });
    return;
  }
  auto left = std::make_shared<size_t>(calls.size());
  for (const CallPtr& call : calls) {
    call->finished = [this, left, finished](const absl::Status& status) {
      if (!status.ok()) life_.End();
      if (!status.ok() || --*left == 0) finished(status);
    };
    call->transfer.emplace(direction, call->positions.size(), kChunkElements,
                           TransferOptions{.seed = world_.dice.Bits()}, world_.timeline.now());
    Handle(call, Transfer::Ready{});
  }
}

void SimulatedExchange::Stage(const v1::ContributionHeader& header,
                              const std::vector<int64_t>& begins,
                              const std::vector<Interval>& owned, const Words& words,
                              Finished finished) {
  All(Transfer::Direction::kStage, begins, owned, finished, [&](Call& call, const auto& parts) {
    call.header = header;
    call.header.set_codec(v1::CODEC_FP32);
    call.header.set_chunk_elements(kChunkElements);
    *call.header.mutable_ranges() = RangesOf(begins, parts);
    for (const int64_t p : call.positions) call.values.push_back(words[p]);
  });
}

void SimulatedExchange::Pull(const v1::PullRequest& request, const std::vector<int64_t>& begins,
                             const std::vector<Interval>& owned, Words* words, Finished finished) {
  All(Transfer::Direction::kPull, begins, owned, finished, [&](Call& call, const auto& parts) {
    call.request = request;
    *call.request.mutable_ranges() = RangesOf(begins, parts);
    call.out = words;
  });
}

void SimulatedExchange::Handle(const CallPtr& call, const Transfer::Event& event) {
  // Only new chunks are progress.
  const bool chunk = std::holds_alternative<Transfer::Sent>(event) ||
                     std::holds_alternative<Transfer::Received>(event);
  if (chunk) progress_.Advance();
  const Transfer::Action action = call->transfer->Handle(event, world_.timeline.now());
  std::visit([&](const auto& one) { Do(call, one); }, action);
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Open& /*open*/) {
  SimulatedAggregator* at = Find(call->shard);
  if (at == nullptr) return Handle(call, Broken());
  call->attempt = std::make_shared<Attempt>(Attempt{.at = at, .process = at->process()});
  Deliver(call, [call, attempt = call->attempt]() -> Transfer::Event {
    if (call->out != nullptr) {
      absl::StatusOr<Words> words = attempt->at->Pull(call->request);
      if (!words.ok()) return Transfer::Ended{words.status()};
      attempt->pulled = *std::move(words);
      return Transfer::Opened{};
    }
    const absl::StatusOr<SimulatedAggregator::Staging> staging = attempt->at->Stage(call->header);
    if (!staging.ok()) return Transfer::Ended{staging.status()};
    attempt->staging = *staging;
    return Transfer::Opened{staging->grant.next_chunk};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Send& send) {
  Deliver(call, [call, attempt = call->attempt, send]() -> Transfer::Event {
    const auto first = call->values.begin();
    const Words words(first + send.begin, first + send.end);
    const absl::Status put = attempt->at->Put(attempt->staging, send.index, words).status();
    if (!put.ok()) return Transfer::Ended{put};
    return Transfer::Sent{};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Confirm& /*confirm*/) {
  Deliver(call, [this, call, attempt = call->attempt]() -> Transfer::Event {
    const absl::Status status = attempt->at->Finish(attempt->staging);
    if (status.ok()) invariants_.OnStaged(attempt->at->name(), call->header);
    // The acknowledgement is a separate message, which may be lost.
    if (status.ok() && world_.dice.Chance(world_.faults.break_call)) return Broken();
    return Transfer::Ended{status, call->values.size()};
  });
}

// Replies carry one chunk each.
void SimulatedExchange::Do(const CallPtr& call, const Transfer::Receive& /*receive*/) {
  Deliver(call, [call, attempt = call->attempt]() -> Transfer::Event {
    const uint64_t begin = call->transfer->done();
    const uint64_t end = std::min<uint64_t>(begin + kChunkElements, call->positions.size());
    if (begin == end) return Transfer::Ended{};
    for (uint64_t i = begin; i < end; ++i) {
      (*call->out)[call->positions[i]] = attempt->pulled[call->positions[i]];
    }
    return Transfer::Received{end - begin};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Wait& wait) {
  world_.timeline.After(wait.time, life_, [this, call] { Handle(call, Transfer::Ready{}); });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::End& end) {
  call->finished(end.status);
}

void SimulatedExchange::Deliver(const CallPtr& call, std::function<Transfer::Event()> execute) {
  const auto reached = [this, call, attempt = call->attempt] {
    return Find(call->shard) == attempt->at && attempt->at->process() == attempt->process;
  };
  if (world_.dice.Chance(world_.faults.break_call)) {
    world_.Count("calls_broken");
    // The message may still be executed while or after the call is repeated.
    if (world_.dice.Chance(0.5)) {
      world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), absl::Seconds(2)), life_,
                            [reached, execute] {
                              if (reached()) execute();
                            });
    }
    return Handle(call, Broken());
  }
  const absl::Duration time = network_.TransferTime(host_, call->attempt->at->name());
  world_.timeline.After(time, life_, [this, call, reached, execute = std::move(execute)] {
    Handle(call, reached() ? execute() : Broken());
  });
}

}  // namespace cadre::simulation
