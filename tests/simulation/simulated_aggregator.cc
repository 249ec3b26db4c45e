#include "tests/simulation/simulated_aggregator.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/protocol.h"
#include "base/status.h"
#include "server/block_file.h"
#include "server/copies/copy_execution.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

constexpr char kFolder[] = "/data";
// Largest time until an order is carried out, while no other one waits.
constexpr absl::Duration kMaxOrderTime = absl::Milliseconds(120);
// Largest time of a slow one, and of one that hangs.
constexpr absl::Duration kMaxSlowOrderTime = absl::Seconds(20);
constexpr absl::Duration kMaxHungOrderTime = absl::Seconds(90);
// Part of the slow orders that hang.
constexpr double kHungOrders = 0.1;
// Largest time until the files of a run are verified.
constexpr absl::Duration kMaxVerificationTime = absl::Seconds(4);
// As RoundsServiceOptions.
constexpr absl::Duration kMaxCallSilence = absl::Seconds(30);
// No order makes more changes to the disk.
constexpr uint64_t kMaxChanges = 30;
// Less than the files of a version.
constexpr uint64_t kMaxFreeBytes = 300;

std::span<const char> BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Run and name of a file; empty for one outside of the folders of runs.
std::pair<std::string, std::string> PartsOf(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  if (parts.size() != 3) return {};
  return {parts[1], parts[2]};
}

}  // namespace

absl::Status SimulatedAggregator::Disk::Rename(const std::string& from, const std::string& to) {
  absl::Status status = MemoryFileSystem::Rename(from, to);
  if (status.ok()) renamed.push_back(to);
  return status;
}

absl::Status SimulatedAggregator::Disk::RemoveFile(const std::string& path) {
  removed = true;
  return MemoryFileSystem::RemoveFile(path);
}

SimulatedAggregator::SimulatedAggregator(World& world, Network& network, Invariants& invariants,
                                         const Peers& peers, std::string name)
    : world_(world),
      network_(network),
      invariants_(invariants),
      peers_(peers),
      name_(std::move(name)),
      life_(&world.hosts[name_].process),
      wake_(&world.hosts[name_].process) {}

// ---- The process

void SimulatedAggregator::Start(bool move) {
  if (up()) return;
  ++process_;
  incarnation_ = absl::StrCat(name_, ".", process_);
  if (address_.empty() || move) address_ = absl::StrCat(name_, ":", process_);
  world_.Log(name_, "    starts at ", address_);
  if (world_.plant == Plant::kEarlyStaged) disk_.IgnoreSyncs("/stage-");
  auto host = ShardHost::Open({.data_dir = kFolder,
                               .name = name_,
                               .counters = &counters_,
                               .files = &disk_,
                               .verify = false});
  if (!host.ok()) {
    world_.Violate(name_, " does not start: ", host.status().ToString());
    return;
  }
  host_ = *std::move(host);
  orders_.emplace(OrderQueue::Options());
  stages_.emplace(world_.max_calls);
  pulls_.emplace(world_.max_calls);
  silent_.emplace(kMaxCallSilence);
  CancelSilent();
  world_.hosts[name_].slow_runs.clear();
  epoch_ = 0;
  failed_applies_.clear();
  // Those of runs that were set aside.
  CheckContributions();
  link_ = std::make_unique<MembershipLink>(
      world_, network_,
      MembershipLink::Options{
          .host = name_,
          .hello = [this] { return MakeHello(); },
          .on_message = [this](const v1::CoordinatorMessage& m) { return OnMessage(m); },
          .on_connection = [](bool) {},
          .heartbeat = [this] { return MakeHeartbeat(); },
          .on_refused = [this] { EndSoon("the coordinator refuses it"); },
          .epoch = host_->store().epoch(),
          .record_epoch =
              [this](uint64_t epoch) {
                orders_->Begin(epoch);
                epoch_ = epoch;
                failed_applies_.clear();
                return host_->SaveEpoch(epoch).ok();
              }});
  VerifyNext();
}

void SimulatedAggregator::VerifyNext() {
  const absl::Time now = world_.timeline.now();
  HostConditions& host = world_.hosts[name_];
  const auto unverified = host_->Unverified();
  if (unverified.empty()) return link_->Start();
  const absl::Time end = std::max(now, host.hung_disk) +
                         world_.dice.Between(absl::ZeroDuration(), kMaxVerificationTime);
  for (const auto& [run, progress] : unverified) host.NoteSlow(run, end);
  world_.timeline.At(end, life_, [this] {
    const std::string run = host_->Unverified().begin()->first;
    world_.Count("runs_verified");
    if (const absl::Status verified = host_->Verify(run); !verified.ok()) {
      const bool ends = absl::IsDataLoss(verified) || !host_->CheckFiles().ok();
      if (ends) return EndSoon(std::string(verified.message()));
      return world_.Violate(name_, " cannot verify ", run, ": ", verified.ToString());
    }
    CheckContributions();
    VerifyNext();
  });
}

// The kernel outlives the process, but not its host.
void SimulatedAggregator::Kill(bool host_lost) {
  if (!up()) return;
  world_.Count("aggregator_kills");
  world_.Log(name_, "    crashes", host_lost ? " with its host" : "");
  CountRefusals();
  life_.End();
  wake_.End();
  link_->Stop(host_lost);
  host_.reset();
  orders_.reset();
  calls_.clear();
  if (host_lost) {
    disk_.CrashHost([this] { return world_.dice.Chance(0.5); });
  } else {
    disk_.EndProcess();
  }
}

void SimulatedAggregator::Restart(absl::Duration time, bool host_lost) {
  Kill(host_lost);
  world_.timeline.After(time, [this, process = process_] {
    if (process == process_) Start(world_.dice.Chance(0.3));
  });
}

void SimulatedAggregator::CountRefusals() {
  for (const auto& [name, value] : counters_.Snapshot()) {
    uint64_t& counted = counted_[name];
    world_.Count(absl::StrCat("shard_", name), value - std::exchange(counted, value));
  }
}

v1::Hello SimulatedAggregator::MakeHello() const {
  v1::Hello hello;
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(name_);
  hello.set_incarnation(incarnation_);
  hello.set_address(address_);
  hello.set_host(name_);
  hello.set_generation(host_->HighestGeneration());
  for (const v1::ShardState& state : host_->States()) *hello.add_shards() = state;
  return hello;
}

// As in server/aggregator.cc, the process ends if its files were removed or damaged.
v1::Heartbeat SimulatedAggregator::MakeHeartbeat() {
  if (const absl::Status files = host_->CheckFiles(); !files.ok()) {
    EndSoon(std::string(files.message()));
  }
  v1::Heartbeat heartbeat;
  for (v1::DelayedOrder& delayed : orders_->Delayed(world_.timeline.now())) {
    *heartbeat.add_delayed_orders() = std::move(delayed);
    world_.Count("delayed_orders_reported");
  }
  return heartbeat;
}

void SimulatedAggregator::EndSoon(const std::string& reason) {
  world_.timeline.After(absl::ZeroDuration(), life_, [this, reason] {
    world_.Log(name_, "    ends: ", reason);
    Restart(absl::Seconds(1), /*host_lost=*/false);
  });
}

// ---- The disk

void SimulatedAggregator::LoseFolder() {
  world_.Count("folders_lost");
  disk_.DoNotStop();
  const bool removed = disk_.RemoveFolder(kFolder).ok() && disk_.SyncFolder("/").ok();
  if (!removed) world_.Violate(name_, " keeps its folder");
  invariants_.OnDiskLost(name_);
}

void SimulatedAggregator::CheckThatDiskIsRefused(SimulatedAggregator& other) {
  // A lost folder is nobody's.
  if (!other.disk_.Exists(absl::StrCat(kFolder, "/.identity"))) return;
  const absl::Status status =
      ShardHost::Open(
          {.data_dir = kFolder, .name = name_, .counters = &counters_, .files = &other.disk_})
          .status();
  other.disk_.EndProcess();
  if (!absl::IsFailedPrecondition(status)) {
    world_.Violate(name_, " starts with the disk of ", other.name_, ": ", status.ToString());
  }
}

void SimulatedAggregator::RollBackAfter(absl::Duration time) {
  world_.timeline.After(time, [this, image = disk_.Copy()] {
    world_.Count("disks_rolled_back");
    Kill(/*host_lost=*/true);
    world_.Log(name_, "    has an older disk");
    disk_.RollBack(*image);
    invariants_.OnDiskLost(name_);
    Start(/*move=*/false);
  });
}

void SimulatedAggregator::DamageFile() {
  std::vector<std::string> paths;
  const auto list = [this](const std::string& folder) {
    return disk_.List(folder).value_or(std::vector<FolderEntry>());
  };
  for (const FolderEntry& run : list(kFolder)) {
    if (!run.is_folder) continue;
    const std::string folder = absl::StrCat(kFolder, "/", run.name);
    for (const FolderEntry& file : list(folder)) {
      paths.push_back(absl::StrCat(folder, "/", file.name));
    }
  }
  if (paths.empty()) return;
  const std::string& path = paths[world_.dice.Between(0, paths.size() - 1)];
  const auto file = disk_.Open(path, Access::kRead);
  const uint64_t bytes = file.ok() ? (*file)->Size().value_or(0) : 0;
  if (bytes == 0) return;
  world_.Count("files_damaged");
  world_.Log(name_, "    has damage in ", path);
  if (world_.dice.Chance(0.5)) {
    disk_.FlipBit(path, world_.dice.Between(0, 8 * bytes - 1));
  } else {
    disk_.FailReads(path, EIO);
  }
  damaged_.insert(path);
  invariants_.OnDiskLost(name_, /*is_damaged=*/true);
}

std::optional<uint32_t> SimulatedAggregator::VersionOf(const std::string& run) const {
  if (!up()) return std::nullopt;
  for (const v1::ShardState& state : host_->States()) {
    if (state.run() == run) return state.version();
  }
  return std::nullopt;
}

// A shard without a version is being restored, for which groups stage their values again.
void SimulatedAggregator::CheckContributions() {
  disk_.removed = false;
  const auto holds = [this](const ContributionKey& key) {
    const std::string path = absl::StrCat(kFolder, "/", DataFolder::ContributionName(key));
    // The damage may precede the acknowledgement.
    if (damaged_.contains(path)) return true;
    const auto file = BlockFile::Open(disk_, path, Access::kRead);
    return file.ok() && (*file)->Verify().ok();
  };
  invariants_.OnContributionsRemoved(name_, holds, [this](const ContributionKey& key) {
    const v1::RunReport report = host_->ReportRun(key.run);
    const std::optional<uint32_t> version = VersionOf(key.run);
    if (!report.has_open() || report.closed()) return true;
    const bool version_lost = !version.has_value() || *version + 1 < key.round;
    return version_lost ? invariants_.HasLostDisk(name_) : *version >= key.round;
  });
}

void SimulatedAggregator::CheckVersion(const std::string& path) {
  const auto [run, name] = PartsOf(path);
  absl::string_view number = name;
  uint32_t version = 0;
  const bool is_version =
      absl::ConsumePrefix(&number, "version-") && absl::SimpleAtoi(number, &version) && version > 0;
  if (!is_version) return;
  const v1::OpenRun open = host_->ReportRun(run).open();
  const std::vector<int64_t> begins = TensorBegins(open.spec());
  const Interval span = SpanOfShard(open.spec(), open.shard(), open.shards());
  v1::PullRequest request;
  request.set_run(run);
  request.set_lineage(open.lineage());
  request.set_version(version);
  request.set_protocol(kProtocol);
  *request.mutable_ranges() = RangesOf(begins, {span});
  auto pull = host_->Pull(request);
  if (!pull.ok()) {
    world_.Violate(name_, " has written version ", version, " of ", run, ", but ",
                   pull.status().ToString());
    return;
  }
  Values values(span.size());
  const auto read = (*pull)->Next({reinterpret_cast<char*>(values.data()), values.size() * 4});
  if (!read.ok()) world_.Violate(name_, ": ", read.status().ToString());
  world_.Log(name_, "    has written version ", version, " of ", run);
  invariants_.OnVersionWritten(name_, run, version, span, values);
}

// ---- Orders

bool SimulatedAggregator::OnMessage(const v1::CoordinatorMessage& message) {
  if (!IsOrder(message) && !message.has_copy_shard()) return true;
  OnArrival(*host_, message);
  const bool added = orders_->Add(message, world_.timeline.now());
  Wake();
  return added;
}

void SimulatedAggregator::Wake() {
  wake_.End();
  const absl::Time next = orders_->NextTime();
  if (next == absl::InfiniteFuture()) return;
  const absl::Duration time = world_.dice.Between(absl::ZeroDuration(), kMaxOrderTime);
  world_.timeline.At(std::max(next, world_.timeline.now()) + time, wake_,
                     [this] { ExecuteNext(); });
}

v1::CoordinatorMessage SimulatedAggregator::Plant(v1::CoordinatorMessage order) {
  if (!order.has_apply() || order.apply().participants_size() < 2) return order;
  auto& participants = *order.mutable_apply()->mutable_participants();
  if (world_.plant == Plant::kWrongWeight)
    participants[0].set_samples(participants[0].samples() * 2);
  if (world_.plant == Plant::kSkipParticipant) participants.RemoveLast();
  if (world_.plant == Plant::kShuffleApply) participants.SwapElements(0, 1);
  return order;
}

// A disk that hangs stops the orders of all runs, a slow order those of its run.
void SimulatedAggregator::ExecuteNext() {
  const absl::Time now = world_.timeline.now();
  const std::optional<v1::CoordinatorMessage> order = orders_->Take(now);
  if (!order.has_value()) return Wake();
  HostConditions& host = world_.hosts[name_];
  absl::Duration time = std::max(host.hung_disk - now, absl::ZeroDuration());
  host.busy = std::max(host.busy, now + time);
  if (world_.dice.Chance(world_.faults.slow_order)) {
    const bool hangs = world_.dice.Chance(kHungOrders);
    world_.Count(hangs ? "orders_hung" : "orders_slow");
    time = std::max(time, world_.dice.Between(absl::ZeroDuration(),
                                              hangs ? kMaxHungOrderTime : kMaxSlowOrderTime));
  }
  if (time == absl::ZeroDuration()) return Execute(*order, time);
  host.NoteSlow(OrderQueue::RunOf(*order), now + time);
  const absl::Duration before = world_.dice.Between(absl::ZeroDuration(), time);
  world_.timeline.After(before, life_,
                        [this, order, rest = time - before] { Execute(*order, rest); });
  Wake();
}

void SimulatedAggregator::Execute(const v1::CoordinatorMessage& order, absl::Duration rest) {
  // The process may have been stopped since the order was begun.
  if (rest > absl::ZeroDuration()) {
    world_.hosts[name_].NoteSlow(OrderQueue::RunOf(order), world_.timeline.now() + rest);
  }
  const Faults& faults = world_.faults;
  const bool full = world_.hosts[name_].full_disk > world_.timeline.now();
  if (full || world_.dice.Chance(faults.full_disk)) {
    disk_.SetFreeBytes(world_.dice.Between(0, kMaxFreeBytes));
  }
  disk_.FailNextSync(world_.dice.Chance(faults.fail_sync));
  if (world_.dice.Chance(faults.crash_aggregator)) {
    disk_.StopAfter(world_.dice.Between(0, kMaxChanges));
  }
  disk_.renamed.clear();
  const OrderResult result =
      order.has_copy_shard()
          ? ExecuteCopy(*host_, order.copy_shard(),
                        [this](const auto& copy, const auto& request, const auto& on_reply) {
                          return Fetch(copy, request, on_reply);
                        })
          : ExecuteOrder(*host_, Plant(order));
  disk_.SetFreeBytes(std::numeric_limits<uint64_t>::max());
  disk_.FailNextSync(false);
  if (disk_.stopped()) {
    world_.Count("aggregator_crashes_in_orders");
    return Restart(world_.dice.Between(absl::Milliseconds(200), absl::Seconds(8)),
                   /*host_lost=*/world_.dice.Chance(0.5));
  }
  disk_.DoNotStop();
  if (result.answer.has_value()) {
    const v1::Applied& applied = result.answer->applied();
    const bool done = result.answer->has_applied() && result.repeat.ok() && applied.error().empty();
    if (done && disk_.renamed.empty()) world_.Count("applies_repeated");
    if (order.apply().seed() && !applied.error().empty()) world_.Count("seeds_refused");
    if (order.has_copy_shard()) world_.Count(done ? "shards_copied_back" : "shards_copied");
    for (const std::string& path : disk_.renamed) {
      if (done) CheckVersion(path);
    }
  }
  if (disk_.removed) CheckContributions();
  if (rest == absl::ZeroDuration()) return Finish(order, result);
  world_.timeline.After(rest, life_, [this, order, result] { Finish(order, result); });
}

void SimulatedAggregator::Finish(const v1::CoordinatorMessage& order, const OrderResult& result) {
  const auto answer = orders_->Finish(order, result, world_.timeline.now());
  if (answer.has_value()) {
    if (answer->has_run_opened() && !result.repeat.ok()) {
      world_.Count("creations_given_up");
      world_.not_created.insert(answer->run_opened().run());
    }
    const bool restored = order.apply().seed() && answer->applied().missing().empty() &&
                          answer->applied().error().empty();
    if (restored && world_.on_seed_applied) std::exchange(world_.on_seed_applied, nullptr)();
    if (answer->applied().from_copy()) failed_applies_.erase(answer->applied().run());
    link_->Send(*answer);
  }
  orders_->Release(order);
  NoteFailure(order, !result.repeat.ok());
  Wake();
}

absl::Status SimulatedAggregator::Fetch(
    const v1::CopyShard& order, const v1::CopyRequest& request,
    const std::function<absl::Status(const v1::CopyReply&)>& on_reply) {
  const auto source = std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return peer->up() && peer->name() == order.aggregator() && peer->address() == order.address();
  });
  const bool reached = source != peers_.end() && network_.Reaches(name_, (*source)->name()) &&
                       world_.hosts[(*source)->name()].hung_disk <= world_.timeline.now();
  if (!reached) return absl::UnavailableError("the other aggregator is not reached");
  ShardHost& host = *(*source)->host_;
  const absl::StatusOr<std::unique_ptr<BlockFile>> opened = host.OpenFile(request);
  if (!opened.ok()) return OnRequestedFileError(host, request, opened.status());
  const std::unique_ptr<BlockFile>& file = *opened;
  v1::CopyReply head;
  head.set_meta(file->head().meta);
  head.set_block_bytes(file->head().block_bytes);
  head.set_data_bytes(file->head().data_bytes);
  CADRE_RETURN_IF_ERROR(on_reply(head));
  for (uint64_t block = request.first_block(); block < file->head().blocks(); ++block) {
    if (world_.dice.Chance(world_.faults.break_call)) return absl::UnavailableError("broken");
    v1::CopyReply reply;
    std::string& data = *reply.mutable_chunk()->mutable_data();
    data.resize(file->head().BytesOf(block));
    if (const absl::Status read = file->ReadBlock(block, data); !read.ok()) {
      return OnRequestedFileError(host, request, read);
    }
    reply.mutable_chunk()->set_index(static_cast<uint32_t>(block));
    reply.mutable_chunk()->set_crc32c(Crc32c(data));
    CADRE_RETURN_IF_ERROR(on_reply(reply));
  }
  return absl::OkStatus();
}

void SimulatedAggregator::NoteFailure(const v1::CoordinatorMessage& order, bool repeat) {
  const absl::Time now = world_.timeline.now();
  if (order.has_close_run()) failed_applies_.erase(order.close_run().run());
  if (order.has_delete_run()) failed_applies_.erase(order.delete_run().run());
  if (order.has_apply()) failed_applies_.erase(order.apply().run());
  // The shard is restored: the coordinator repeats the order.
  if (order.open_run().has_hollow()) failed_applies_.erase(order.open_run().run());
  if (world_.plant == Plant::kPostponeRetries) {
    for (const auto& [run, failed] : failed_applies_)
      orders_->Finish(failed.order, {.repeat = absl::UnavailableError("it has failed before")},
                      now);
  }
  // The order of an earlier coordinator is not repeated.
  const bool valid = order.epoch() >= epoch_;
  if (order.has_apply() && repeat && valid) failed_applies_[order.apply().run()] = {order, now};
}

absl::Time SimulatedAggregator::oldest_failure() const {
  absl::Time oldest = absl::InfiniteFuture();
  for (const auto& [run, failed] : failed_applies_) {
    oldest = std::min(oldest, std::max(failed.when, world_.hosts[name_].SlowUntil(run)));
  }
  return oldest;
}

// ---- The Rounds service

absl::Status SimulatedAggregator::Begin(const Call& call, StreamSlots& slots,
                                        const absl::Status& authenticated) {
  absl::StatusOr<StreamSlots::Slot> slot = slots.Admit(authenticated, call.peer);
  if (absl::IsResourceExhausted(slot.status())) world_.Count("calls_busy");
  if (!slot.ok()) return slot.status();
  calls_[call.id] = *std::move(slot);
  silent_->Await(call.id, world_.timeline.now());
  return absl::OkStatus();
}

bool SimulatedAggregator::Continue(uint64_t call) {
  if (!calls_.contains(call)) return false;
  silent_->Await(call, world_.timeline.now());
  return true;
}

void SimulatedAggregator::EndCall(uint64_t call) {
  silent_->Continue(call);
  calls_.erase(call);
}

// As OpenStreams in base/rpc/stream_limits.
void SimulatedAggregator::CancelSilent() {
  while (const std::optional<uint64_t> call = silent_->Take(world_.timeline.now())) {
    world_.Count("calls_cancelled");
    calls_.erase(*call);
  }
  world_.timeline.After(kMaxCallSilence / 8, life_, [this] { CancelSilent(); });
}

absl::StatusOr<Staging> SimulatedAggregator::Stage(const Call& call,
                                                   const v1::ContributionHeader& header) {
  CADRE_RETURN_IF_ERROR(Begin(call, *stages_, host_->Authenticate(header)));
  absl::StatusOr<Staging> staging = host_->Stage(header);
  if (!staging.ok()) EndCall(call.id);
  if (disk_.removed) CheckContributions();
  if (staging.ok() && staging->grant.next_chunk > 0) world_.Count("stagings_resumed");
  return staging;
}

absl::StatusOr<bool> SimulatedAggregator::Put(Staging& staging, uint32_t index,
                                              std::span<const float> values) {
  v1::Chunk chunk;
  chunk.set_index(index);
  chunk.set_data(std::string(BytesOf(values).begin(), BytesOf(values).end()));
  chunk.set_crc32c(Crc32c(chunk.data()));
  return host_->Put(staging, chunk);
}

absl::Status SimulatedAggregator::Finish(Staging& staging) {
  disk_.FailNextSync(world_.dice.Chance(world_.faults.fail_sync));
  const absl::Status finished = host_->Finish(staging);
  disk_.FailNextSync(false);
  return finished;
}

absl::StatusOr<std::unique_ptr<VersionPull>> SimulatedAggregator::Pull(const Call& call,
                                                                       v1::PullRequest request) {
  CADRE_RETURN_IF_ERROR(Begin(call, *pulls_, host_->Authenticate(request)));
  if (world_.plant == Plant::kServeOldVersion && request.version() > 0) {
    request.set_version(request.version() - 1);
  }
  auto pull = host_->Pull(request);
  if (!pull.ok()) EndCall(call.id);
  if (absl::IsFailedPrecondition(pull.status())) world_.Count("pulls_of_old_versions");
  return pull;
}

}  // namespace cadre::simulation
