// Which idle workers may form a group of a run. Workers are named by their ids.
//
// A slot that waits for workers reserves idle ones, in the order of the queue
// (coordinator/cluster/run_queue.h) and of slots. The price is idle workers while a large group
// waits. A slot for which too few workers are registered reserves none, unless its group has just
// ended: a lost worker usually returns, and the others would be taken meanwhile.
//
// A group of full size forms immediately. A smaller one forms only after rejoin_wait: a restarted
// worker usually returns sooner, and forming the group twice costs more than the wait. A run never
// starts with a group of fewer workers than requested; once it has started, its other groups may.
//
// All ranks of a group have one kind of device, since the slowest rank determines the pace.
//
// Thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/run_queue.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/plan.pb.h"

namespace cadre {

using WorkerIds = std::vector<std::string>;

// The workers that suit the run, divided by device kind. The kind of the first worker comes first.
std::vector<WorkerIds> WorkersByDevice(const RunView& run, const Membership& members,
                                       const WorkerIds& idle);
// The workers of each program for this run all of whose ranks are idle, by rank. The ranks of an
// opaque model may be any number, those of another one at most that of the run.
std::vector<WorkerIds> IdlePrograms(const RunView& run, const Membership& members,
                                    const WorkerIds& idle);
// Number of waiting slots of the run that may reserve workers: registered workers, idle or in
// groups of other runs, are enough for them, or their groups have just ended.
size_t CountServable(const RunView& run, const Membership& members, const RunQueue& queue,
                     absl::Time now);
// Until when the slot may reserve workers because its group has just ended; InfinitePast if it
// never had one.
absl::Time ReservesUntil(const Slot& slot);
// Workers of this kind that the run can use, besides those in groups of its own and of blocked
// runs.
size_t CountAvailable(const RunView& run, const Membership& members, const RunQueue& queue,
                      v1::Cluster::Device kind);
// Takes the workers that a slot waits for from `idle`: later slots and runs do not get them.
void ReserveWorkers(const RunView& run, const Membership& members, WorkerIds& idle);
// Whether all members of the slot's generation are connected.
bool AllConnected(const Slot& slot, const Membership& members);
// From when the slot may form a group of less than full size.
absl::Time ShrinksAt(const RunView& run, const Slot& slot);

// The members and the plan of a generation.
struct Formation {
  WorkerIds members;
  v1::Plan plan;
};
// Takes a group that is a program from `idle`, if there is one and it is needed.
std::optional<Formation> FormProgram(const RunView& run, const Membership& members,
                                     WorkerIds& idle);
// Takes a group of workers from `idle`, at the time `now`. Errors: ResourceExhausted if there are
// workers with too little memory; Unavailable if there are too few, or a plan is being searched.
absl::StatusOr<Formation> FormWorkers(const RunView& run, GroupPlanner& planner,
                                      const Membership& members, absl::Time now, const Slot& slot,
                                      WorkerIds& idle);

}  // namespace cadre
