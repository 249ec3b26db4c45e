// Places the operators of a graph on devices with the minimum makespan.
//
//   CADRE_ASSIGN_OR_RETURN(const PlacementProblem problem, ReadOperatorGraph("graph.textproto"));
//   CADRE_ASSIGN_OR_RETURN(const PlacedGraph placement, PlaceGraph(problem));
//
// First a list schedule is made. If its makespan equals the lower bound, it is optimal. Otherwise a
// solver, if one is given, searches for a shorter schedule and may prove that there is none. The
// result is the best schedule found, with its gap to the lower bound. A device sends one tensor and
// receives one tensor at a time; only the solver omits this, as Pal et al. 2019 do, so that its
// result is a bound.
//
// A result contains a device for every operator, the order of the operators of each device (by
// start), and the transfers with their routes. Workers execute placements of layers in the order of
// the model (PlacementProblem.in_order).
//
// Thread-safe without a solver; with one, its rules hold.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plan/placement/placement_solver.h"

namespace cadre {

struct PlacerOptions {
  // Null: list scheduling alone, whose results do not depend on the clock. Borrowed.
  const PlacementSolver* solver = nullptr;
  // Operators and edges that the local search of list scheduling may visit, over all schedules; ten
  // million take about a second.
  int64_t max_visits = 20'000'000;
};

enum class PlacementMethod {
  // Optimal to a millionth.
  kExact,
  // The solver reached its time limit; the best schedule found.
  kTimeLimit,
  // The solver's bound, for tensors that do not wait for one another, is not reached; the best
  // schedule found.
  kSharedLinks,
  // There is no solver, or the graph is too large for it.
  kListScheduling,
};
// "exact", "time limit", "shared links", "list scheduling".
absl::string_view MethodName(PlacementMethod method);

// A tensor that is sent to another device.
struct OperatorTransfer {
  int edge = 0;
  double start = 0;
  double seconds = 0;
  // Numbers of the links of its route.
  std::vector<int> links;
};

// The result: a schedule and how it was found.
struct PlacedGraph {
  OperatorSchedule schedule;
  std::vector<OperatorTransfer> transfers;
  double lower_bound = 0;
  PlacementMethod method = PlacementMethod::kListScheduling;
  // Seconds of all operators on the fastest single device, and whether they fit into its memory.
  double serial_seconds = 0;
  int serial_device = 0;
  bool serial_fits = true;
  // The result of list scheduling alone.
  double list_makespan = 0;

  // The distance to the lower bound as a fraction of the makespan; 0: optimal.
  double gap() const { return schedule.makespan > 0 ? 1 - lower_bound / schedule.makespan : 0; }
  double speedup() const { return schedule.makespan > 0 ? serial_seconds / schedule.makespan : 1; }
};

// Errors: ResourceExhausted if no placement fits into memory; DeadlineExceeded if none was found in
// time.
absl::StatusOr<PlacedGraph> PlaceGraph(const PlacementProblem& problem,
                                       const PlacerOptions& options = {});

}  // namespace cadre
