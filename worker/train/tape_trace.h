// Adds an interval to a trace for each operation of a tape (the operations of one pass, in order)
// that the rank's own thread executes.
//
// Borrows the trace and the graph. Thread-compatible.
#pragma once

#include "base/trace.h"
#include "model/graph.h"
#include "worker/nn/network.h"

namespace cadre {

class TapeTrace final : public TapeObserver {
 public:
  TapeTrace(Trace& trace, const Graph& graph) : trace_(trace), graph_(graph) {}

  // Number of the current step.
  void set_step(int64_t step) { step_ = step; }
  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;

 private:
  Trace& trace_;
  const Graph& graph_;
  int64_t step_ = 0;
};

}  // namespace cadre
