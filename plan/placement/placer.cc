// List scheduling comes first: it always gives a result, whose distance from the lower bound is
// known. A solver can only improve this result. Its lower bound replaces the first one if it is
// higher, so the reported gap never grows.
#include "plan/placement/placer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "plan/placement/packing.h"

namespace cadre {
namespace {

// Relative difference up to which a makespan counts as equal to its lower bound.
constexpr double kRounding = 1e-9;
// The same for a bound of the solver.
constexpr double kSolverRounding = 2e-6;

// The fastest single device, for the speed-up. Its memory may not suffice, which is reported.
void AddSerial(const PlacementProblem& problem, PlacedGraph& placement) {
  for (int d = 0; d < problem.device_count(); ++d) {
    double seconds = 0;
    for (int i = 0; i < problem.size(); ++i) seconds += problem.Seconds(i, d);
    if (d > 0 && seconds >= placement.serial_seconds) continue;
    placement.serial_seconds = seconds;
    placement.serial_device = d;
  }
  placement.serial_fits =
      FitsMemory(problem, std::vector<int>(problem.ops.size(), placement.serial_device));
}

void AddTransfers(const PlacementProblem& problem, PlacedGraph& placement) {
  const OperatorSchedule& schedule = placement.schedule;
  for (int e = 0; e < std::ssize(problem.edges); ++e) {
    const PlacementProblem::Edge& edge = problem.edge(e);
    const int from = schedule.device[edge.from];
    const int to = schedule.device[edge.to];
    if (from == to) continue;
    placement.transfers.push_back({.edge = e,
                                   .start = schedule.sent[e],
                                   .seconds = problem.TransferSeconds(e, from, to),
                                   .links = problem.routes.Path(from, to, edge.bytes)});
  }
}

bool MeetsBound(const PlacedGraph& placement) {
  return placement.schedule.makespan <= placement.lower_bound * (1 + kRounding);
}

void Improve(const PlacementProblem& problem, const TimeWindows& windows,
             const PlacementSolver& solver, PlacedGraph& placement) {
  std::optional<PlacementSolver::Result> answer =
      solver.Improve(problem, windows, placement.schedule);
  if (!answer) return;
  if (answer->schedule) placement.schedule = *std::move(answer->schedule);
  const double makespan = placement.schedule.makespan;
  placement.lower_bound = std::clamp(answer->lower_bound, placement.lower_bound, makespan);
  if (answer->solved && makespan <= placement.lower_bound * (1 + kSolverRounding)) {
    placement.lower_bound = makespan;
  }
  placement.method = MeetsBound(placement) ? PlacementMethod::kExact
                     : answer->solved      ? PlacementMethod::kSharedLinks
                                           : PlacementMethod::kTimeLimit;
}

}  // namespace

absl::string_view MethodName(PlacementMethod method) {
  switch (method) {
    case PlacementMethod::kExact:
      return "exact";
    case PlacementMethod::kTimeLimit:
      return "time limit";
    case PlacementMethod::kSharedLinks:
      return "shared links";
    case PlacementMethod::kListScheduling:
      break;
  }
  return "list scheduling";
}

absl::StatusOr<PlacedGraph> PlaceGraph(const PlacementProblem& problem,
                                       const PlacerOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<int> packing, PackMemory(problem, options.solver));
  const TimeWindows windows = WindowsOf(problem);
  PlacedGraph placement{.schedule = ListSchedule(problem, packing, options.max_visits)};
  placement.list_makespan = placement.schedule.makespan;
  placement.lower_bound = std::min(LowerBound(problem, windows), placement.schedule.makespan);
  if (MeetsBound(placement)) {
    placement.method = PlacementMethod::kExact;
  } else if (options.solver != nullptr) {
    Improve(problem, windows, *options.solver, placement);
  }
  AddSerial(problem, placement);
  AddTransfers(problem, placement);
  return placement;
}

}  // namespace cadre
