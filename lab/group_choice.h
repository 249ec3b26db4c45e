// Chooses the number of groups, the ranks of each, and the steps between averages, before each
// group is planned. group_choice.cc has the formula.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lab/plan_question.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tensor/mesh.h"

namespace cadre {

// One possible number of groups, and its predicted times.
struct GroupChoice {
  int groups = 1;
  int ranks = 1;
  // H; 0: a single group, which does not average.
  int every_steps = 0;
  // The mesh of the slowest group's plan, and the seconds of its step.
  Mesh mesh;
  double step_seconds = 0;
  // Time of the exchange of one average, how much of it the groups wait for, because it takes
  // longer than the steps that overlap it, and the share of that in a step.
  double averaging_seconds = 0;
  double exposed_seconds = 0;
  double averaging_share() const { return every_steps > 0 ? exposed_seconds / every_steps : 0; }
  double seconds_per_step() const { return step_seconds + averaging_share(); }
  double seconds_per_sample = 0;
  // Payload of one average from all groups to their aggregators, and back.
  int64_t bytes_up = 0;
  int64_t bytes_down = 0;
  int64_t bytes_per_average() const { return bytes_up + bytes_down; }
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

// Chooses among the numbers of groups up to request.max_groups; if it is not set, among those that
// the table of epochs covers, or one group without a table. Without a table, the time of an epoch
// is minimised. Of the run spec, batch_per_group is B; averaging.every_steps, if not 0, fixes H;
// cluster.aggregators, if not 0, is the number of aggregators; and `stop` determines the length of
// the training if there is no table. Errors: InvalidArgument if the table is malformed or the
// number of samples per epoch is missing; if no choice is possible, the error of the largest groups
// (ResourceExhausted if memory is short; see Search).
absl::StatusOr<GroupsResult> ChooseGroups(const PlanQuestion& question);

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
