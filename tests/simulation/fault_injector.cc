#include "tests/simulation/fault_injector.h"

#include <algorithm>

namespace cadre::simulation {
namespace {

// How long a fault may wait for a worker to load a version, and how often it looks.
constexpr absl::Duration kMaxWaitForLoad = absl::Seconds(60);
constexpr absl::Duration kPoll = absl::Milliseconds(250);

double* RateOf(FaultKind kind, Faults& faults) {
  switch (kind) {
    case FaultKind::kBreakStreams:
      return &faults.break_stream;
    case FaultKind::kBreakCalls:
      return &faults.break_call;
    case FaultKind::kCrashBeforeCommit:
      return &faults.crash_before_commit;
    case FaultKind::kCrashAfterCommit:
      return &faults.crash_after_commit;
    case FaultKind::kStallCoordinator:
      return &faults.stall;
    case FaultKind::kFullDisk:
      return &faults.full_disk;
    case FaultKind::kFailSyncs:
      return &faults.fail_sync;
    case FaultKind::kSlowOrders:
      return &faults.slow_order;
    case FaultKind::kCrashInOrders:
      return &faults.crash_aggregator;
    case FaultKind::kBreakGroups:
      return &faults.break_group;
    case FaultKind::kSlowMessages:
      return &faults.slow_message;
    case FaultKind::kCorruptValues:
      return &faults.corrupt_values;
    default:
      return nullptr;
  }
}

}  // namespace

void FaultInjector::Schedule(const Fault& fault, const FaultRange& range) {
  if (double* const rate = RateOf(fault.kind, world_.faults)) {
    *rate = fault.amount;
    return;
  }
  world_.timeline.After(fault.at, [this, fault, range] {
    world_.Log("fault ", Describe(fault, range));
    Inject(fault, HostOf(fault, range));
  });
}

void FaultInjector::Inject(const Fault& fault, const std::string& host) {
  switch (fault.kind) {
    case FaultKind::kCrashCoordinator:
      return coordinators_.Crash(fault.length);
    case FaultKind::kJumpCoordinatorClock:
      return coordinators_.Crash(fault.length, absl::Seconds(fault.amount));
    case FaultKind::kRestoreStore:
      if (world_.has_outer_runs) return;
      return coordinators_.RestoreStoreAfter(fault.length);
    case FaultKind::kSecondCoordinator:
      if (world_.has_outer_runs) return;
      return coordinators_.StartSecond(absl::Seconds(fault.amount), fault.length,
                                       world_.dice.Chance(0.5) ? 0.7 : 0);
    case FaultKind::kBreakStream:
      return network_.BreakAny();
    case FaultKind::kKillWorker:
    case FaultKind::kLoseWorker:
    case FaultKind::kLeave:
      return EndWorker(fault);
    case FaultKind::kKillAggregator:
    case FaultKind::kLoseAggregator:
    case FaultKind::kMoveAggregator:
    case FaultKind::kAbsentAggregator:
      return EndAggregator(fault);
    case FaultKind::kLoseFolder:
      return aggregators_[fault.subject]->LoseFolder();
    case FaultKind::kRollBack:
      if (world_.has_outer_runs) return;
      return aggregators_[fault.subject]->RollBackAfter(fault.length);
    case FaultKind::kDamageFile:
      return aggregators_[fault.subject]->DamageFile();
    case FaultKind::kSwapDisks:
      return SwapDisks(fault);
    case FaultKind::kJumpClock:
      return JumpClock(fault);
    case FaultKind::kHang:
    case FaultKind::kLaggingLink:
      if (fault.subject < workers_.size() && world_.dice.Chance(0.5)) {
        return InjectAtLoad(fault, host, kMaxWaitForLoad);
      }
      return ChangeConditions(fault, host);
    default:
      return ChangeConditions(fault, host);
  }
}

// Versions that groups load while others go on are rare otherwise. A link lags as a generation
// starts on any worker.
void FaultInjector::InjectAtLoad(const Fault& fault, const std::string& host,
                                 absl::Duration patience) {
  const bool hangs = fault.kind == FaultKind::kHang;
  for (const auto& worker : workers_) {
    const SimulatedSession* const session = worker->session();
    if (session == nullptr || session->loads().value_or(0) == 0) continue;
    if (hangs ? worker->name() != host : session->versions_ordered() != 1) continue;
    world_.Log("fault ", worker->name(), hangs ? " hangs" : " lags", " as it loads a version");
    return ChangeConditions(fault, worker->name());
  }
  if (patience <= absl::ZeroDuration()) return ChangeConditions(fault, host);
  world_.timeline.After(kPoll, [this, fault, host, patience] {
    if (!ended_) InjectAtLoad(fault, host, patience - kPoll);
  });
}

void FaultInjector::ChangeConditions(const Fault& fault, const std::string& host) {
  const absl::Time until = world_.timeline.now() + fault.length;
  // An equal fault may already be present for longer.
  const auto extend = [until](absl::Time& time) { time = std::max(time, until); };
  HostConditions& at = world_.hosts[host];
  const auto condition = [&](const char* counter, absl::Time& time) {
    world_.Count(counter);
    extend(time);
  };
  switch (fault.kind) {
    case FaultKind::kIsolate:
      condition("isolations", at.cut_bulk);
      [[fallthrough]];
    case FaultKind::kCut:
      extend(at.cut_up);
      condition("cuts", at.cut_down);
      return network_.OnCut(host);
    case FaultKind::kCutUp:
      condition("one_way_cuts", at.cut_up);
      return network_.OnCut(host);
    case FaultKind::kCutDown:
      condition("one_way_cuts", at.cut_down);
      return network_.OnCut(host);
    case FaultKind::kHangDisk:
      return condition("disks_hung", at.hung_disk);
    case FaultKind::kFillDisk:
      return condition("disks_filled", at.full_disk);
    case FaultKind::kCongest:
      return condition("congestions", at.congested);
    case FaultKind::kStop:
      return condition("stops", at.process.until);
    case FaultKind::kHang:
      return condition("hangs", at.training.until);
    case FaultKind::kBadData:
      at.cause = v1::FAILURE_CAUSE_DATA;
      return condition("bad_hosts", at.bad);
    case FaultKind::kSmallMemory:
      at.cause = v1::FAILURE_CAUSE_MEMORY;
      return condition("bad_hosts", at.bad);
    case FaultKind::kSlowPreparation:
      at.preparation = absl::Seconds(fault.amount);
      return condition("slow_preparations", at.slow_preparation);
    case FaultKind::kLaggingLink:
    case FaultKind::kSlowLink:
      at.transfer = absl::Seconds(fault.amount);
      return condition("slow_links", at.slow_link);
    case FaultKind::kDiverge:
      at.diverges = true;
      return world_.Count("divergences");
    default:
      return;
  }
}

void FaultInjector::EndWorker(const Fault& fault) {
  SimulatedWorker* const worker = workers_[fault.subject].get();
  if (fault.kind == FaultKind::kLeave) {
    worker->Leave();
  } else {
    worker->Kill(/*host_lost=*/fault.kind == FaultKind::kLoseWorker);
  }
  if (fault.length == absl::InfiniteDuration()) return;
  world_.timeline.After(fault.length, [worker] { worker->Start(); });
}

void FaultInjector::EndAggregator(const Fault& fault) {
  SimulatedAggregator* const aggregator = aggregators_[fault.subject].get();
  aggregator->Kill(/*host_lost=*/fault.kind == FaultKind::kLoseAggregator);
  const bool move = fault.kind == FaultKind::kMoveAggregator;
  world_.timeline.After(fault.length, [aggregator, move] { aggregator->Start(move); });
}

void FaultInjector::SwapDisks(const Fault& fault) {
  SimulatedAggregator* const one = aggregators_[fault.subject].get();
  SimulatedAggregator* const next = aggregators_[(fault.subject + 1) % aggregators_.size()].get();
  if (one == next) return;
  world_.Count("disks_swapped");
  for (SimulatedAggregator* aggregator : {one, next}) {
    aggregator->Kill(/*host_lost=*/false);
    world_.timeline.After(fault.length, [aggregator] { aggregator->Start(/*move=*/false); });
  }
  one->CheckThatDiskIsRefused(*next);
  next->CheckThatDiskIsRefused(*one);
}

void FaultInjector::JumpClock(const Fault& fault) {
  world_.Count("clock_jumps");
  const absl::Duration by = absl::Seconds(fault.amount);
  if (fault.subject < workers_.size()) return workers_[fault.subject]->OnClockJump(by);
  aggregators_[fault.subject - workers_.size()]->OnClockJump(by);
}

void FaultInjector::End() {
  ended_ = true;
  const absl::Duration delay = world_.faults.delay;
  world_.faults = Faults();
  world_.faults.delay = std::min(delay, world_.faults.delay);
  for (auto& [name, host] : world_.hosts) host.Heal();
  coordinators_.EndFaults();
  for (auto& aggregator : aggregators_) aggregator->Start(/*move=*/false);
  for (auto& worker : workers_) worker->Start();
}

}  // namespace cadre::simulation
