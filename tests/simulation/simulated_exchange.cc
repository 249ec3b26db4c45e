#include "tests/simulation/simulated_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "base/digest.h"
#include "base/protocol.h"
#include "base/status.h"
#include "model/coding.h"
#include "server/client/frame.h"
#include "server/client/proof.h"

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

SimulatedExchange::SimulatedExchange(World& world, Network& network, Directory& directory,
                                     Invariants& invariants, std::string host,
                                     TrainerProgress& progress, const v1::RunSpec& spec,
                                     std::vector<Interval> owned, Values& replica,
                                     const SecretKey& key)
    : world_(world),
      network_(network),
      directory_(directory),
      invariants_(invariants),
      host_(std::move(host)),
      progress_(progress),
      begins_(TensorBegins(spec)),
      units_(simulation::UnitsOf(spec)),
      up_(CodingOf(spec.averaging().up())),
      down_(CodingOf(spec.averaging().down())),
      owned_(std::move(owned)),
      replica_(replica),
      key_(key) {}

// Requires: the addresses of all shards are set.
SimulatedExchange::Part& SimulatedExchange::PartOf(uint32_t shard) {
  const auto [part, is_new] = parts_.try_emplace(shard);
  if (!is_new) return part->second;
  const Interval span = units_ != nullptr ? units_->PartOf(shard, shards())
                                          : ShardSpan(begins_.back(), shard, shards());
  part->second.spans = PartsWithin(owned_, span);
  for (const Interval& span : part->second.spans) {
    for (int64_t p = span.begin; p < span.end; ++p) part->second.positions.push_back(p);
  }
  return part->second;
}

std::span<const ExchangeUnit> SimulatedExchange::UnitsOf(const Part& part) const {
  return units_->In(part.spans.front());
}

void SimulatedExchange::EncodeContribution(Part& part) const {
  part.change = std::move(part.staged);
  part.carried.resize(part.change.size());
  for (size_t i = 0; i < part.change.size(); ++i) {
    part.change[i] = (part.change[i] - part.version[i]) + up_->error_feedback() * part.carried[i];
  }
  std::string frame;
  absl::Status coded = EncodeFrame(UnitsOf(part), CodecOf(*up_), part.change, &frame);
  coded.Update(DecodeFrame(UnitsOf(part), CodecOf(*up_), frame, &part.left_out));
  if (!coded.ok()) world_.Violate(host_, " cannot code its change: ", coded.ToString());
  for (size_t i = 0; i < part.change.size(); ++i) {
    part.left_out[i] = part.change[i] - part.left_out[i];
  }
  part.staged.resize(frame.size() / sizeof(float));
  std::memcpy(part.staged.data(), frame.data(), frame.size());
}

absl::Status SimulatedExchange::AddFrame(const Values& frame, Part& part) const {
  Values change;
  CADRE_RETURN_IF_ERROR(DecodeFrame(
      UnitsOf(part), CodecOf(*down_),
      {reinterpret_cast<const char*>(frame.data()), frame.size() * sizeof(float)}, &change));
  for (size_t i = 0; i < part.version.size(); ++i) part.version[i] += change[i];
  return absl::OkStatus();
}

SimulatedExchange::CallPtr SimulatedExchange::NewCall(uint32_t shard, const Gate& gate) {
  auto call = std::make_shared<Call>(&gate);
  call->shard = shard;
  call->positions = PartOf(shard).positions;
  std::erase_if(calls_, [](const auto& old) { return old.expired(); });
  calls_.push_back(call);
  return call;
}

void SimulatedExchange::Begin(Transfer::Direction direction, const CallPtr& call) {
  const uint64_t elements = direction == Transfer::Direction::kStage ? call->values.size()
                            : call->frame
                                ? MaxFrameWords(UnitsOf(PartOf(call->shard)), CodecOf(*down_))
                                : call->positions.size();
  call->transfer.emplace(direction, elements, kChunkElements,
                         TransferOptions{.seed = world_.dice.Bits()}, world_.timeline.now());
  Handle(call, Transfer::Ready{});
}

void SimulatedExchange::Begin(Transfer::Direction direction, const std::vector<CallPtr>& calls,
                              const Finished& finished) {
  auto left = std::make_shared<size_t>(calls.size());
  std::vector<std::weak_ptr<Call>> all(calls.begin(), calls.end());
  for (const CallPtr& call : calls) {
    call->finished = [left, all, finished, done = call->finished](const absl::Status& status) {
      if (*left == 0) return;
      if (!status.ok()) {
        *left = 0;
        for (const auto& other : all) {
          if (const CallPtr alive = other.lock()) alive->life.End();
        }
        return finished(status);
      }
      done(status);
      if (--*left == 0) finished(status);
    };
  }
  for (const CallPtr& call : calls) {
    if (*left > 0) Begin(direction, call);
  }
}

void SimulatedExchange::Stage(const v1::ContributionHeader& header, const Finished& finished) {
  std::vector<CallPtr> calls;
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    Part& part = PartOf(shard);
    if (part.positions.empty()) continue;
    part.held.BeginStage();
    part.staged.clear();
    for (const int64_t p : part.positions) part.staged.push_back(replica_[p]);
    if (up_) EncodeContribution(part);
    const CallPtr call = NewCall(shard, world_.hosts[host_].training);
    call->header = header;
    if (up_) call->header.set_codec(up_->codec());
    *call->header.mutable_ranges() = RangesOf(begins_, part.spans);
    call->values = part.staged;
    if (up_) call->header.set_frame_elements(part.staged.size());
    call->finished = [&part, header = call->header](const absl::Status&) {
      part.held.EndStage(header.round());
      part.contribution = header;
    };
    calls.push_back(call);
  }
  Begin(Transfer::Direction::kStage, calls, finished);
}

void SimulatedExchange::Pull(const v1::PullRequest& request, const Finished& finished) {
  std::vector<CallPtr> calls;
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    if (shard > 0 && world_.plant == Plant::kPullOneShard) break;
    Part& part = PartOf(shard);
    if (part.positions.empty()) continue;
    part.held.BeginPull();
    const bool has_before = part.version_number + 1 == request.version() && !part.version.empty();
    part.version.resize(part.positions.size());
    const CallPtr call = NewCall(shard, world_.hosts[host_].training);
    call->request = request;
    call->buffer = &part.version;
    if (down_ && has_before) call->buffer = &call->frame.emplace();
    call->finished = [&part, version = request.version()](const absl::Status&) {
      part.held.EndPull(version);
      part.version_number = version;
    };
    calls.push_back(call);
  }
  Begin(Transfer::Direction::kPull, calls, finished);
}

uint64_t SimulatedExchange::PulledDigest() const {
  uint64_t digest = 0;
  for (const auto& [shard, part] : parts_) {
    for (size_t i = 0; i < part.version.size(); ++i) {
      digest += Digest(std::span(part.version).subspan(i, 1), part.positions[i]);
    }
  }
  return digest;
}

void SimulatedExchange::AdoptInitial() {
  for (uint32_t shard = 0; shard < shards(); ++shard) {
    Part& part = PartOf(shard);
    part.version.clear();
    for (const int64_t p : part.positions) part.version.push_back(replica_[p]);
  }
}

void SimulatedExchange::Adopt(bool included) {
  for (auto& [shard, part] : parts_) {
    part.held.Adopt();
    if (!part.change.empty()) part.carried.swap(included ? part.left_out : part.change);
    part.change.clear();
    for (size_t i = 0; i < part.version.size(); ++i) replica_[part.positions[i]] = part.version[i];
  }
}

// As ShardExchange::StageAgain, which has a thread of its own for it.
void SimulatedExchange::StageAgain(const v1::Restage& restage, v1::ContributionHeader seed,
                                   const Finished& finished) {
  Part& part = PartOf(restage.shard());
  if (part.positions.empty()) return finished(absl::OkStatus());
  const CallPtr call = NewCall(restage.shard(), world_.hosts[host_].process);
  const bool holds = restage.seed() ? part.held.HasVersion(restage.round())
                                    : part.held.HasContribution(restage.round());
  if (!holds) return finished(absl::NotFoundError("the rank does not hold the values"));
  call->values = restage.seed() ? part.version : part.staged;
  call->header = restage.seed() ? std::move(seed) : part.contribution;
  *call->header.mutable_ranges() = RangesOf(begins_, part.spans);
  call->finished = finished;
  Begin(Transfer::Direction::kStage, call);
}

void SimulatedExchange::Cancel() {
  for (const auto& call : calls_) {
    if (const CallPtr alive = call.lock()) alive->life.End();
  }
}

void SimulatedExchange::Handle(const CallPtr& call, const Transfer::Event& event) {
  if (const auto* opened = std::get_if<Transfer::Opened>(&event); opened && opened->elements) {
    call->frame->resize(*opened->elements);
  }
  if (const auto* received = std::get_if<Transfer::Received>(&event)) {
    std::copy_n(call->attempt->chunk.begin(), received->elements,
                call->buffer->begin() + static_cast<int64_t>(call->transfer->done()));
  }
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
  v1::ContributionHeader header = call->header;
  if (header.codec() == v1::CODEC_UNSPECIFIED) header.set_codec(v1::CODEC_FP32);
  header.set_chunk_elements(kChunkElements);
  header.set_protocol(kProtocol);
  v1::PullRequest request = call->request;
  request.set_protocol(kProtocol);
  const uint64_t done = call->transfer->done();
  if (call->frame) request.set_frame_from(done);
  std::vector<Interval> rest;
  for (size_t i = call->frame ? 0 : done; i < call->positions.size(); ++i) {
    rest.push_back({call->positions[i], call->positions[i] + 1});
  }
  *request.mutable_ranges() = RangesOf(begins_, rest);
  Sign(key_, "nonce", header);
  Sign(key_, "nonce", request);
  const bool pulls = call->buffer != nullptr;
  Deliver(call, [attempt = call->attempt, header, request, pulls]() -> Transfer::Event {
    if (pulls) {
      auto pull = attempt->at->Pull(request);
      if (!pull.ok()) return Transfer::Ended{pull.status()};
      attempt->pull = *std::move(pull);
      if (!request.has_frame_from()) return Transfer::Opened{};
      return Transfer::Opened{.elements = static_cast<uint64_t>(attempt->pull->frame().elements)};
    }
    absl::StatusOr<Staging> staging = attempt->at->Stage(header);
    if (!staging.ok()) return Transfer::Ended{staging.status()};
    attempt->staging = *std::move(staging);
    return Transfer::Opened{attempt->staging.grant.next_chunk};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Send& send) {
  Deliver(call, [call, attempt = call->attempt, send]() -> Transfer::Event {
    const std::span<const float> values =
        std::span(call->values).subspan(send.begin, send.end - send.begin);
    const absl::Status put = attempt->at->Put(attempt->staging, send.index, values).status();
    if (!put.ok()) return Transfer::Ended{put};
    return Transfer::Sent{};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Confirm& /*confirm*/) {
  Deliver(call, [this, call, attempt = call->attempt]() -> Transfer::Event {
    const absl::Status status = attempt->at->Finish(attempt->staging);
    if (status.ok()) invariants_.OnStaged(attempt->at->name(), call->header, call->values);
    // The acknowledgement is a separate message, which may be lost.
    if (status.ok() && world_.dice.Chance(world_.faults.break_call)) return Broken();
    return Transfer::Ended{status, call->values.size()};
  });
}

// Replies carry one chunk each.
void SimulatedExchange::Do(const CallPtr& call, const Transfer::Receive& /*receive*/) {
  Deliver(call, [attempt = call->attempt]() -> Transfer::Event {
    if (attempt->pull->left() == 0) return Transfer::Ended{};
    attempt->chunk.resize(kChunkElements);
    const auto read = attempt->pull->Next(
        {reinterpret_cast<char*>(attempt->chunk.data()), kChunkElements * sizeof(float)});
    if (!read.ok()) return Transfer::Ended{read.status()};
    return Transfer::Received{static_cast<uint64_t>(*read)};
  });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::Wait& wait) {
  world_.timeline.After(wait.time, call->life, [this, call] { Handle(call, Transfer::Ready{}); });
}

void SimulatedExchange::Do(const CallPtr& call, const Transfer::End& end) {
  if (!call->frame) return call->finished(end.status);
  Part& part = PartOf(call->shard);
  const Values frame = *std::move(call->frame);
  call->frame.reset();
  if (absl::IsFailedPrecondition(end.status)) {  // There is no such frame.
    call->buffer = &part.version;
    return Begin(Transfer::Direction::kPull, call);
  }
  world_.Count("frames_pulled", end.status.ok() ? 1 : 0);
  call->finished(end.status.ok() ? AddFrame(frame, part) : end.status);
}

void SimulatedExchange::Deliver(const CallPtr& call, std::function<Transfer::Event()> execute) {
  const auto reached = [this, call, attempt = call->attempt] {
    return Find(call->shard) == attempt->at && attempt->at->process() == attempt->process;
  };
  if (world_.dice.Chance(world_.faults.break_call)) {
    world_.Count("calls_broken");
    // The message may still be executed while or after the call is repeated.
    if (world_.dice.Chance(0.5)) {
      world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), absl::Seconds(2)), call->life,
                            [reached, execute] {
                              if (reached()) execute();
                            });
    }
    return Handle(call, Broken());
  }
  const absl::Duration time = network_.TransferTime(host_, call->attempt->at->name());
  world_.timeline.After(time, call->life, [this, call, reached, execute = std::move(execute)] {
    Handle(call, reached() ? execute() : Broken());
  });
}

}  // namespace cadre::simulation
