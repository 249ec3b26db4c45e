// Extracts the times of the parts of a step without overlap from traces: the input of the model of
// overlap (plan/cost/overlap.h).
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

// The model of one step of a plan, from traces of steps without overlap: medians over the steps of
// the forward and backward of each layer, including its moves, and of the reduce-scatter, update
// and all-gather of each bucket of parameters. Requires: traces of at least one whole step, with
// the names that TapeTrace (worker/train/step_tracer.h) assigns.
StepModel StepModelFrom(const Graph& graph, const ParameterIndex& index, const Plan& plan,
                        const std::vector<TraceInterval>& intervals);

// The step time if each step gathered its weights before it ended, by the recurrence for
// all-reduce in plan/cost/overlap.h.
StepTime RecurrenceOf(const StepModel& model);

// Microseconds that the rank's own thread waited for the background, by step.
std::map<int64_t, double> WaitsOf(const std::vector<TraceInterval>& intervals);

}  // namespace cadre
