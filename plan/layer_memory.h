// The memory that a layer needs on one rank besides its inputs and outputs: what forward saves for
// backward, and scratch memory of either pass. Used by MakeTape (plan/tape.h) only.
//
// Borrows graph, plan and tape, of which it reads the regions, the type of activations and the
// number of candidates. Thread-compatible.
#pragma once

#include <cstdint>

#include "model/graph.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/dtype.h"

namespace cadre {

class LayerMemory {
 public:
  LayerMemory(const Graph& graph, const Plan& plan, int rank, v1::Cluster::Device device,
              const Tape& tape)
      : graph_(graph), plan_(plan), rank_(rank), device_(device), tape_(tape) {}

  // Values that forward saves for backward besides input and output.
  struct SavedValues {
    DType type = DType::kFloat32;
    int64_t elements = 0;
  };
  // Requires for all: the layer is placed on the rank, and the tape has its region.
  SavedValues SavedBy(int l) const;
  // In elements of activations. `needs_gradient`: whether that of the first input is needed.
  int64_t ForwardScratch(int l) const;
  int64_t BackwardScratch(int l, bool needs_gradient) const;

 private:
  const LayerRegion& region(int l) const { return tape_.regions[l]; }
  // Elements that hold this many fp32 numbers.
  int64_t HoldingFloats(int64_t numbers) const;
  int64_t InteriorScratch(int l) const;
  int64_t ClassTokenScratch(int l) const;
  // Number of probabilities of a dot-product attention: one for each query and each token of the
  // source.
  int64_t Probabilities(int l) const;
  AttentionMemory AttentionOf(int l) const;
  ScoreMemory ScoresOf(int l) const;
  // Heads of an attention on this rank.
  int64_t HeadsHere(int l) const;
  LstmMemory LstmOf(int l) const;
  SampledMemory SampledOf(int l) const;

  const Graph& graph_;
  const Plan& plan_;
  const int rank_;
  const v1::Cluster::Device device_;
  const Tape& tape_;
};

}  // namespace cadre
