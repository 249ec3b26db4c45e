// How long the parts of a step take when nothing overlaps: what the model of overlap is fed with.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/trace.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/overlap.h"
#include "plan/plan.h"

namespace cadre {

// The model of a plan's step, from the traces of steps that were run without overlap: medians over
// the steps of each layer's forward and backward (moves with them), each bucket's reduce-scatter,
// update and all-gather. Requires: traces of whole steps (worker/train has the names), at least
// one; none of them empty.
StepModel StepModelFrom(const Graph& graph, const ParameterIndex& index, const Plan& plan,
                        const std::vector<TraceInterval>& intervals);

// The same parts by the recurrence of a step that all-reduces and then starts the next: what a step
// would take that gathers its weights before it ends.
StepTime RecurrenceOf(const StepModel& model);

// Microseconds that the rank's own thread waited for the background, by step.
std::map<int64_t, double> WaitsOf(const std::vector<TraceInterval>& intervals);

}  // namespace cadre
