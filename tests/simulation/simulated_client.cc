#include "tests/simulation/simulated_client.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "base/protocol.h"
#include "base/status.h"
#include "server/client/proof.h"
#include "server/client/ranges.h"

namespace cadre::simulation {
namespace {

constexpr uint32_t kChunkElements = 2;
constexpr size_t kElement = sizeof(float);

ShardTransfer::Event Broken() {
  return ShardTransfer::Ended{absl::UnavailableError("the connection is broken")};
}

}  // namespace

SimulatedAggregator* SimulatedShardClient::Find() const {
  const std::string address = options_.location().address;
  for (const auto& aggregator : bulk_.directory) {
    if (aggregator->up() && aggregator->address() == address &&
        bulk_.network.Reaches(host_, aggregator->name())) {
      return aggregator.get();
    }
  }
  return nullptr;
}

std::shared_ptr<SimulatedShardClient::Attempt> SimulatedShardClient::Connect() {
  SimulatedAggregator* const at = Find();
  if (at == nullptr) return nullptr;
  auto attempt = std::make_shared<Attempt>();
  attempt->at = at;
  attempt->process = at->process();
  attempt->call = ++world_.last_call;
  return attempt;
}

void SimulatedShardClient::Drop(const std::shared_ptr<Attempt>& attempt) {
  if (attempt == nullptr || world_.dice.Chance(threads_.killed() ? 0.5 : world_.faults.break_call))
    return;
  const auto end = [at = attempt->at, process = attempt->process, call = attempt->call,
                    host = host_, bulk = bulk_] {
    const bool reached =
        at->up() && at->process() == process && bulk.network.Reaches(host, at->name());
    if (reached) at->EndCall(call);
  };
  world_.timeline.After(world_.Delay(), end);
}

ShardTransfer SimulatedShardClient::MakeTransfer(ShardTransfer::Direction direction,
                                                 uint64_t elements) {
  TransferOptions options = options_.transfer;
  options.seed = world_.dice.Bits();
  return ShardTransfer(direction, elements, kChunkElements, options, world_.timeline.now());
}

absl::Status SimulatedShardClient::Run(Call& call, const Execute& execute) {
  ShardTransfer& transfer = call.transfer;
  const std::stop_callback wake(call.stop, [this] { threads_.Wake(); });
  ShardTransfer::Event event = ShardTransfer::Ready{};
  absl::Time away_since = absl::InfiniteFuture();
  bool outlasts = false;
  while (true) {
    if (Stopped(call.stop)) return absl::CancelledError("the call was cancelled");
    const absl::Time silent_at = transfer.silent_at();
    const absl::Time now = world_.timeline.now();
    const bool away = options_.away && options_.away() && world_.plant != Plant::kIgnoreAbsence;
    const ShardTransfer::Action action = transfer.Handle(event, now, away);
    if (transfer.silent_at() != silent_at && options_.on_progress) options_.on_progress();
    away_since = away ? std::min(away_since, now) : absl::InfiniteFuture();
    outlasts = outlasts || now - away_since > options_.transfer.silence;
    if (const auto* end = std::get_if<ShardTransfer::End>(&action)) {
      if (end->status.ok() && outlasts) world_.Count("absences_outlasted");
      return end->status;
    }
    if (const auto* wait = std::get_if<ShardTransfer::Wait>(&action)) {
      threads_.Await([&] { return Stopped(call.stop); }, world_.timeline.now() + wait->time);
      event = ShardTransfer::Ready{};
    } else {
      event = execute(action);
    }
  }
}

ShardTransfer::Event SimulatedShardClient::Send(const Call& call,
                                                const std::shared_ptr<Attempt>& attempt,
                                                std::function<ShardTransfer::Event()> execute) {
  // Copies of what is used, because the message may arrive after the end of the client.
  const auto reached = [at = attempt->at, process = attempt->process, host = host_, bulk = bulk_] {
    return at->up() && at->process() == process && bulk.network.Reaches(host, at->name());
  };
  // The message may still be executed while or after the call is repeated.
  const auto break_off = [&](const std::function<absl::Duration()>& delay) {
    if (world_.dice.Chance(0.5)) {
      world_.timeline.After(delay(), [reached, execute] {
        if (reached()) execute();
      });
    }
    return Broken();
  };
  if (threads_.killed()) return Broken();
  if (world_.dice.Chance(world_.faults.break_call)) {
    world_.Count("calls_broken");
    return break_off([&] { return world_.dice.Between(absl::ZeroDuration(), absl::Seconds(2)); });
  }
  HostConditions& shard = world_.hosts[attempt->at->name()];
  const absl::Time arrival =
      std::max(world_.timeline.now() + bulk_.network.TransferTime(host_, attempt->at->name()),
               shard.hung_disk);
  // What has been sent waits for the disk also if the faults end meanwhile.
  if (shard.hung_disk > world_.timeline.now()) shard.busy = std::max(shard.busy, shard.hung_disk);
  threads_.Await([&] { return Stopped(call.stop); }, std::min(arrival, call.transfer.silent_at()));
  if (Stopped(call.stop) || !reached()) return Broken();
  if (world_.timeline.now() < arrival) {
    world_.Count("calls_silent");
    return break_off([&] { return arrival - world_.timeline.now(); });
  }
  return execute();
}

absl::Status SimulatedShardClient::Stage(const v1::ContributionHeader& header,
                                         std::span<const std::byte> bytes, Traffic* traffic,
                                         std::stop_token stop) {
  v1::ContributionHeader filled = header;
  filled.set_protocol(kProtocol);
  filled.set_chunk_elements(kChunkElements);
  if (header.codec() == v1::CODEC_UNSPECIFIED) filled.set_codec(v1::CODEC_FP32);
  const uint64_t elements = bytes.size() / kElement;
  if (filled.codec() != v1::CODEC_FP32) filled.set_frame_elements(elements);
  Sign(options_.key, "nonce", filled);
  const auto values = std::make_shared<Values>(elements);
  if (elements > 0) std::memcpy(values->data(), bytes.data(), bytes.size());
  if (header.seed() && elements > 0 && world_.dice.Chance(world_.faults.corrupt_values)) {
    world_.Count("values_corrupted");
    world_.corrupted.emplace(header.run(), header.round());
    values->front() += 1;
  }
  Call call{MakeTransfer(ShardTransfer::Direction::kStage, elements), std::move(stop)};
  std::shared_ptr<Attempt> attempt;
  const auto drop = absl::MakeCleanup([&] { Drop(attempt); });
  return Run(call, [&](const ShardTransfer::Action& action) -> ShardTransfer::Event {
    if (std::holds_alternative<ShardTransfer::Open>(action)) {
      Drop(attempt);
      attempt = Connect();
      if (attempt == nullptr) return Broken();
      return Send(call, attempt, [attempt, filled, host = host_]() -> ShardTransfer::Event {
        absl::StatusOr<Staging> staging = attempt->at->Stage({attempt->call, host}, filled);
        if (!staging.ok()) return ShardTransfer::Ended{staging.status()};
        attempt->staging = *std::move(staging);
        return ShardTransfer::Opened{attempt->staging.grant.next_chunk};
      });
    }
    if (const auto* send = std::get_if<ShardTransfer::Send>(&action)) {
      traffic->payload_sent += kElement * (send->end - send->begin);
      return Send(call, attempt, [attempt, values, chunk = *send]() -> ShardTransfer::Event {
        if (!attempt->at->Continue(attempt->call)) return Broken();
        const auto part = std::span(*values).subspan(chunk.begin, chunk.end - chunk.begin);
        const absl::Status put = attempt->at->Put(attempt->staging, chunk.index, part).status();
        if (!put.ok()) return ShardTransfer::Ended{put};
        return ShardTransfer::Sent{};
      });
    }
    return Send(call, attempt, [attempt, values, filled, bulk = bulk_]() -> ShardTransfer::Event {
      if (!attempt->at->Continue(attempt->call)) return Broken();
      const absl::Status status = attempt->at->Finish(attempt->staging);
      attempt->at->EndCall(attempt->call);
      if (status.ok()) bulk.invariants.OnStaged(attempt->at->name(), filled, *values);
      // The acknowledgement is a separate message, which may be lost.
      World& world = bulk.world;
      if (status.ok() && world.dice.Chance(world.faults.break_call)) return Broken();
      return ShardTransfer::Ended{status, values->size()};
    });
  });
}

// Replies carry one chunk each.
absl::Status SimulatedShardClient::RunPull(
    Call& call, const v1::PullRequest& request,
    const std::function<std::span<std::byte>(const VersionPull& pull)>& opened) {
  std::shared_ptr<Attempt> attempt;
  const auto drop = absl::MakeCleanup([&] { Drop(attempt); });
  std::span<std::byte> out;
  const ShardTransfer& transfer = call.transfer;
  return Run(call, [&](const ShardTransfer::Action& action) -> ShardTransfer::Event {
    if (std::holds_alternative<ShardTransfer::Open>(action)) {
      Drop(attempt);
      attempt = Connect();
      if (attempt == nullptr) return Broken();
      v1::PullRequest filled = request;
      filled.set_protocol(kProtocol);
      if (request.has_frame_from()) {
        filled.set_frame_from(transfer.done());
      } else {
        *filled.mutable_ranges() = SkipElements(request.ranges(), transfer.done());
      }
      Sign(options_.key, "nonce", filled);
      ShardTransfer::Event event =
          Send(call, attempt, [attempt, filled, host = host_]() -> ShardTransfer::Event {
            auto pull = attempt->at->Pull({attempt->call, host}, filled);
            if (!pull.ok()) return ShardTransfer::Ended{pull.status()};
            attempt->pull = *std::move(pull);
            if (!filled.has_frame_from()) return ShardTransfer::Opened{};
            return ShardTransfer::Opened{
                .elements = static_cast<uint64_t>(attempt->pull->frame().elements)};
          });
      if (std::holds_alternative<ShardTransfer::Opened>(event)) out = opened(*attempt->pull);
      return event;
    }
    ShardTransfer::Event event = Send(call, attempt, [attempt]() -> ShardTransfer::Event {
      if (!attempt->at->Continue(attempt->call)) return Broken();
      if (attempt->pull->left() == 0) {
        attempt->at->EndCall(attempt->call);
        return ShardTransfer::Ended{};
      }
      attempt->chunk.resize(kElement * kChunkElements);
      const auto read = attempt->pull->Next(
          {reinterpret_cast<char*>(attempt->chunk.data()), attempt->chunk.size()});
      if (!read.ok()) return ShardTransfer::Ended{read.status()};
      return ShardTransfer::Received{static_cast<uint64_t>(*read)};
    });
    if (const auto* received = std::get_if<ShardTransfer::Received>(&event)) {
      std::copy_n(attempt->chunk.begin(), kElement * received->elements,
                  out.begin() + static_cast<int64_t>(kElement * transfer.done()));
    }
    return event;
  });
}

absl::Status SimulatedShardClient::Pull(const v1::PullRequest& request, std::span<float> out,
                                        Traffic* traffic, std::stop_token stop) {
  if (out.empty()) return absl::OkStatus();
  if (world_.plant == Plant::kPullOneShard &&
      options_.location().address != bulk_.directory[0]->address()) {
    return absl::OkStatus();
  }
  Call call{MakeTransfer(ShardTransfer::Direction::kPull, out.size()), std::move(stop)};
  traffic->payload_received += out.size_bytes();
  return RunPull(call, request, [&](const VersionPull&) { return std::as_writable_bytes(out); });
}

absl::Status SimulatedShardClient::PullFrame(const v1::PullRequest& request, uint64_t max_elements,
                                             PulledFrame* frame, Traffic* /*traffic*/,
                                             std::stop_token stop) {
  *frame = PulledFrame();
  v1::PullRequest of_frame = request;
  of_frame.set_frame_from(0);
  Call call{MakeTransfer(ShardTransfer::Direction::kPull, max_elements), std::move(stop)};
  const absl::Status pulled = RunPull(call, of_frame, [&](const VersionPull& pull) {
    frame->bytes.resize(kElement * pull.frame().elements);
    frame->fragment = pull.frame().fragment;
    return std::as_writable_bytes(std::span(frame->bytes));
  });
  if (pulled.ok()) world_.Count("frames_pulled");
  return pulled;
}

}  // namespace cadre::simulation
