// Where the time of training steps goes: by kind of operation, with flop rates.
//
// Thread-compatible.
#pragma once

#include <map>
#include <string>

#include "model/graph.h"
#include "worker/nn/network.h"

namespace cadre {

class EngineProfile final : public TapeObserver {
 public:
  explicit EngineProfile(const Graph& graph) : graph_(graph) {}

  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;
  void Waited(double seconds) override { waited_ += seconds; }

  // Forget what was heard so far.
  void Clear() {
    rows_.clear();
    waited_ = 0;
  }
  // Seconds of all operations; and of waiting for moves that work did not wholly hide.
  double seconds() const;
  double waited() const { return waited_; }
  // A JSON object: operation -> {"ms", "share", "gflops", "of_peak"}, milliseconds a step.
  // Requires: steps >= 1.
  std::string Json(int steps, double step_seconds, double peak_flops) const;

 private:
  struct Row {
    double seconds = 0;
    double flops = 0;
  };
  const Graph& graph_;
  std::map<std::string, Row> rows_;
  double waited_ = 0;
};

}  // namespace cadre
