// Chooses the number of groups, the ranks of each, and the steps between averages, before each
// group is planned. group_choice.cc has the formula.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Borrows everything it points to.
struct GroupsProblem {
  // The fields used: batch_per_group is B; averaging.every_steps, if not 0, fixes H;
  // cluster.aggregators, if not 0, is the number of aggregators; stop determines the length of the
  // training if there is no table of epochs.
  const v1::RunSpec* spec = nullptr;
  const Graph* graph = nullptr;
  const ParameterIndex* index = nullptr;
  // The cluster; null: all workers are alike and have `uniform` hardware.
  const v1::ClusterProfile* profile = nullptr;
  HardwareModel uniform;
  int workers = 1;
  // Fixed by the user; 0: free.
  int groups = 0;
  int ranks = 0;
  // Epochs by number of workers. Null: not known; then the time of an epoch is minimised, over at
  // most `max_groups` groups (or the fixed number).
  const v1::EpochsTable* epochs = nullptr;
  int max_groups = 0;
  // D, samples per epoch; 0: not known.
  double samples = 0;
};

// One possible number of groups, and its predicted times.
struct GroupChoice {
  int groups = 1;
  int ranks = 1;
  // H; 0: a single group, which does not average.
  int every_steps = 0;
  // The mesh of the slowest group's plan, and the seconds of its step.
  Mesh mesh;
  double step_seconds = 0;
  // Time of one average, and its share of a step.
  double averaging_seconds = 0;
  double averaging_share() const { return every_steps > 0 ? averaging_seconds / every_steps : 0; }
  double seconds_per_step() const { return step_seconds + averaging_share(); }
  double seconds_per_sample = 0;
  // Payload of one average between all groups and their aggregators, in both directions.
  int64_t bytes_per_average = 0;
  // 0: not known.
  double seconds_per_epoch = 0;
  std::optional<double> epochs;
  std::optional<double> seconds_to_target;
};

// A number of groups that is not possible.
struct RejectedGroups {
  int groups = 1;
  int ranks = 1;
  std::string reason;
};

struct GroupsResult {
  // Best first: minimum time to the target, or per epoch. Not empty.
  std::vector<GroupChoice> choices;
  std::vector<RejectedGroups> rejected;
  // The choice with the next larger number of groups than the best choice, and its time divided by
  // the time of the best one; nullopt: no larger number was possible.
  std::optional<GroupChoice> more;
  double more_time_ratio = 0;
  // Only with a table of epochs: whether additional ranks reduce the time more inside the best
  // number of groups than as further groups.
  bool crossover = false;
  // A sentence that explains the choice.
  std::string reason;

  const GroupChoice& best() const { return choices.front(); }
};

// Errors: InvalidArgument if fixed numbers do not divide the workers, the table is malformed, or
// the profile has too few workers; if no choice is possible, the error of the largest groups
// (ResourceExhausted if memory is short; see Search).
absl::StatusOr<GroupsResult> ChooseGroups(const GroupsProblem& problem);

// Groups on equal hosts, which are of one kind and are planned once. Workers are assigned to groups
// host by host, so that the fast links inside hosts are links inside groups.
struct GroupKind {
  // First worker of the first group of the kind (see HardwareOf in plan/search/hardware_model.h).
  int first_worker = 0;
  int64_t groups = 0;
};
// Returns the kinds, ordered by their first groups; the counts add up to `groups`. A group within
// one host is of the same kind as a group within any equal host. Requires: the profile is valid and
// has groups * ranks workers.
std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks);

}  // namespace cadre
