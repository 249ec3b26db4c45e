// Measures how much time of training steps each kind of operation and each operation takes, with
// rates.
//
// Thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/graph.h"
#include "nlohmann/json.hpp"
#include "worker/nn/network.h"

namespace cadre {

class EngineProfile final : public TapeObserver {
 public:
  explicit EngineProfile(const Graph& graph) : graph_(graph) {}

  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;

  // Discards all measurements.
  void Clear();
  // Sum of the seconds of all operations.
  double seconds() const;

  // Kind of operation -> {"ms", "share", "gflops", "of_peak"}, in milliseconds per step.
  // Requires: steps >= 1.
  nlohmann::ordered_json ByKind(int steps, double step_seconds, double peak_flops) const;
  // [{"op", "ms", "gflops" or "gbs"}] of every operation in the order of a step. "gbs" counts the
  // bytes that must be read or written at least once, in 10^9 per second.
  nlohmann::ordered_json ByLayer(int steps) const;

 private:
  struct Row {
    double seconds = 0;
    double flops = 0;
    double bytes = 0;

    void operator+=(const Row& other);
  };

  const Graph& graph_;
  std::map<std::string, Row> kinds_;
  std::vector<std::string> order_;
  std::map<std::string, Row> layers_;
};

}  // namespace cadre
