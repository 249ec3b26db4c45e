// Places the operators of a graph on devices so that the last ends as early as can be.
//
//   CADRE_ASSIGN_OR_RETURN(const PlacementProblem problem, ReadOperatorGraph("graph.textproto"));
//   CADRE_ASSIGN_OR_RETURN(const PlacedGraph placement, Place(problem));
//
// A list schedule first. Where it meets the lower bound it is the answer. Where the graph is small
// enough the integer programme looks for a shorter one and, if its time suffices, proves that there
// is none; otherwise the answer is the best found, with its gap to the lower bound.
//
// Whoever carries a placement out needs a device for every operator, the order of the operators of
// each device (by start), and the transfers with their ways: all are here. In a plan, an operator
// on one device is a layout with Layout::only (tensor/layout.h), and a transfer the move between
// two such layouts (tensor/move.h).
//
// Thread-compatible: one call at a time in a process, as the solver has state of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/placement/schedule.h"

namespace cadre {

struct PlacerOptions {
  // Of the solver. Deterministic where it is not used up.
  double solver_seconds = 10;
  // Beyond this size (coordinator/placement/placement_programme.h) the programme is not tried.
  int64_t most_programme = 4'000;
};

enum class PlacementMethod {
  // The best there is, to a millionth.
  kExact,
  // The solver was out of time: the best found.
  kTimeLimit,
  // Too large for the solver.
  kListScheduling,
};
// "exact", "time limit", "list scheduling".
absl::string_view MethodName(PlacementMethod method);

// A tensor that leaves its device.
struct Transfer {
  int edge = 0;
  double start = 0;
  double seconds = 0;
  // Numbers of the links on its way.
  std::vector<int> links;
};

struct PlacedGraph {
  Schedule schedule;
  std::vector<Transfer> transfers;
  double lower_bound = 0;
  PlacementMethod method = PlacementMethod::kListScheduling;
  // All operators on the one device that takes least, and whether it has the memory.
  double serial_seconds = 0;
  int serial_device = 0;
  bool serial_fits = true;
  // What list scheduling alone found.
  double list_makespan = 0;
  int solver_nodes = 0;

  // Of the makespan; 0: none.
  double gap() const { return schedule.makespan > 0 ? 1 - lower_bound / schedule.makespan : 0; }
  double speedup() const { return schedule.makespan > 0 ? serial_seconds / schedule.makespan : 1; }
};

// Errors: ResourceExhausted when no placement fits into memory; DeadlineExceeded when none was
// found in time.
absl::StatusOr<PlacedGraph> Place(const PlacementProblem& problem,
                                  const PlacerOptions& options = {});

}  // namespace cadre
