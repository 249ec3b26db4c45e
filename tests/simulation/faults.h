// The faults of one simulation, as values that are drawn from its seed before it begins: a subset
// of them can be repeated, to find the ones that matter (shrink.h).
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/simulation/dice.h"

namespace cadre::simulation {

enum class FaultKind {
  // ---- Rates: from the beginning to the end of the faults, with probability `amount`.
  // Per message on a control stream: the stream breaks.
  kBreakStreams,
  // Per message of a bulk call: the call breaks.
  kBreakCalls,
  // Per transaction of the coordinator: it crashes immediately before, or after.
  kCrashBeforeCommit,
  kCrashAfterCommit,
  // Per event: the coordinator stalls for seconds.
  kStallCoordinator,
  // Per order of an aggregator: the disk is temporarily full; a sync fails; the order takes
  // seconds;
  // it crashes between two changes of its disk, possibly with its host.
  kFullDisk,
  kFailSyncs,
  kSlowOrders,
  kCrashInOrders,
  // Per collective: a rank's connection to its peers breaks.
  kBreakGroups,
  // Per message: it is delayed by seconds.
  kSlowMessages,
  // Per call that stages a version to restore a shard: it has wrong values.
  kCorruptValues,

  // ---- Events: at `at`, for `length`.
  kCrashCoordinator,
  // The coordinator crashes and returns with a wall clock that has jumped by `amount`.
  kJumpCoordinatorClock,
  // The coordinator returns with a backup of its store from the beginning of the fault.
  kRestoreStore,
  // A second coordinator is started with a copy of the store that is `amount` seconds old, and both
  // run for `length`.
  kSecondCoordinator,
  kBreakStream,
  // A worker's process ends, its host is lost, or it leaves with Goodbye.
  kKillWorker,
  kLoseWorker,
  kLeave,
  // The same for an aggregator; one that moves returns at another address, one that is absent is
  // away for longer than the silence that ends an exchange.
  kKillAggregator,
  kLoseAggregator,
  kMoveAggregator,
  kAbsentAggregator,
  // An aggregator's folder is removed; its host returns with a backup of the beginning of the
  // fault; a bit of one of its files changes; it and the next aggregator are started with each
  // other's disk, and later with their own.
  kLoseFolder,
  kRollBack,
  kDamageFile,
  kSwapDisks,
  // An aggregator's disk answers only at the end; it is full.
  kHangDisk,
  kFillDisk,
  // A host is cut off from the coordinator: in both directions, in both and from all members, or
  // in one direction.
  kCut,
  kIsolate,
  kCutUp,
  kCutDown,
  kCongest,
  kStop,
  kHang,
  kBadData,
  kSmallMemory,
  kSlowPreparation,
  // The messages of bulk calls take seconds, or minutes.
  kLaggingLink,
  kSlowLink,
  kDiverge,
  kJumpClock,
};

struct Fault {
  FaultKind kind = FaultKind::kBreakStream;
  // Since the start of the simulation.
  absl::Duration at;
  // A worker or aggregator by number; for faults of hosts, the workers precede the aggregators.
  uint32_t subject = 0;
  // InfiniteDuration: it is not repaired, or only when the faults end (a process that has ended).
  absl::Duration length;
  double amount = 0;
};

struct FaultRange {
  absl::Duration until;
  uint32_t workers = 0;
  uint32_t aggregators = 0;
  // Number of workers that may be permanently unusable.
  uint32_t max_lost = 0;
};
// Draws the faults of a cluster, in order of time.
std::vector<Fault> DrawFaults(const FaultRange& range, Dice& dice);

bool IsRate(FaultKind kind);
// "at 12.3s: w2 hangs for 40s".
std::string Describe(const Fault& fault, const FaultRange& range);
// The host of a fault's subject: w0, w1, ..., a0, ...; empty if it has none.
std::string HostOf(const Fault& fault, const FaultRange& range);

}  // namespace cadre::simulation
