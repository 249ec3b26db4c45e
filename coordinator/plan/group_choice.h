// How many groups, of how many ranks, that average how often: the outermost choice.
//
// P workers make G groups of p = P / G. Every group's step has the same B samples, so more groups
// mean fewer steps for a pass over the data, but larger steps altogether, of which training needs
// more (the table of epochs), and fewer ranks to share one group's work. Where more groups stop
// paying, the ranks are better used inside the groups, on a split model: that is the hybrid rule of
// Pal et al. 2019, and the choice here applies it with the times of the best plan for each p.
//
//   time = floor(D / (G B)) E(G B) (step(p) + average(G, p) / H)
//
// D samples of a pass, E epochs by the table at G B / (batch of one of its workers) workers: groups
// that average every step do what so many synchronous workers do. That E stays the same for H > 1
// is what is proved up to an order of magnitude only (coordinator/cost/averaging_interval.h);
// H stays within that bound (the stricter, of Yu et al.), and is no larger than it takes for
// averaging to cost little.
//
// An average costs each rank its slice of n / p words up and as many down (Lee et al. 2020), over
// the slowest link between groups; every rank leads for its own slice, as Cadre's groups do. Where
// the spec says how many aggregators there are, the slices of all groups meet at their links, and
// the slower of both counts. Nothing else is on that link meanwhile, as groups wait for the round.
//
// Groups are filled host by host in the profile's order. All wait for the slowest.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/search.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Borrows all that it points to.
struct GroupsQuestion {
  // Its batch_per_group is B, its averaging.every_steps (if not 0) pins H, its cluster.aggregators
  // (if not 0) are where averages meet, its stop says how long training is where no table does.
  const v1::RunSpec* spec = nullptr;
  const Graph* graph = nullptr;
  const ParameterIndex* index = nullptr;
  // The cluster; or null, and all workers are alike on `uniform`.
  const v1::ClusterProfile* profile = nullptr;
  GroupMachine uniform;
  int workers = 1;
  // Pins; 0: free.
  int groups = 0;
  int ranks = 0;
  // Null: not known how epochs grow; then more than one group is tried only up to `most_groups`
  // (or where pinned), and what counts is the time of a pass.
  const v1::EpochsTable* epochs = nullptr;
  int most_groups = 0;
  // D; 0: not known.
  double samples = 0;
};

struct GroupChoice {
  int groups = 1;
  int ranks = 1;
  // H; 0: one group, nothing to average.
  int every_steps = 0;
  // Of the slowest group: its plan's mesh, its step, and its first worker.
  Mesh mesh;
  double step_seconds = 0;
  int slowest_first_worker = 0;
  // Of one average, and of its share in a step.
  double averaging_seconds = 0;
  double averaging_share() const { return every_steps > 0 ? averaging_seconds / every_steps : 0; }
  double seconds_per_step() const { return step_seconds + averaging_share(); }
  double seconds_per_sample = 0;
  // Payload of one average between all groups and their aggregators, both ways.
  int64_t bytes_per_average = 0;
  // 0: not known.
  double seconds_per_epoch = 0;
  std::optional<double> epochs;
  std::optional<double> seconds_to_target;
};

struct RefusedGroups {
  int groups = 1;
  int ranks = 1;
  std::string why;
};

struct GroupsAnswer {
  // The best first: soonest at the target, or at the end of a pass. At least one.
  std::vector<GroupChoice> choices;
  std::vector<RefusedGroups> refused;
  // The next more groups than the best has, and how many times as long they take; nothing: none
  // were possible.
  std::optional<GroupChoice> more;
  double more_takes = 0;
  // With a table: from the best's number of groups on it pays more to have ranks share a group's
  // step (by samples or on a split model, as its mesh says) than to make more groups of them.
  bool crossover = false;
  // In words.
  std::string why;

  const GroupChoice& best() const { return choices.front(); }
};

// Errors: InvalidArgument for pins that do not divide the workers, for a table that cannot be, or
// when the profile has too few workers; when nothing is possible, the error of the largest groups
// (ResourceExhausted where memory is short; see Search).
absl::StatusOr<GroupsAnswer> ChooseGroups(const GroupsQuestion& question);

}  // namespace cadre
