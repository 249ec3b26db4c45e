// Estimates what a move of an activation between two layouts costs: elements received by the
// busiest rank, and seconds. The formulas are closed, without enumerating ranks. move_model.cc
// explains them.
//
// Thread-safe (pure functions), except MoveModel, which is thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/graph.h"
#include "plan/plan.h"
#include "plan/search/compact_layout.h"
#include "plan/search/hardware_model.h"
#include "plan/search/plan_problem.h"
#include "tensor/mesh.h"

namespace cadre {

// The cost of a move on the busiest rank.
struct MoveEstimate {
  // Received from other ranks.
  double elements = 0;
  // Includes copying.
  double seconds = 0;

  MoveEstimate& operator+=(const MoveEstimate& other);
};

// The moves to all inputs of a layer together (forward), and the moves of the gradients back to the
// producers (backward), for one micro-batch. Backward includes moves to the inputs of layers that
// the plan recomputes.
struct LayerMoves {
  MoveEstimate forward;
  MoveEstimate backward;
};
// One per layer. Requires: the plan is legal for the problem's graph.
std::vector<LayerMoves> MovesOf(const PlanProblem& problem, const Plan& plan);

// How one dimension of the output of a convolution or pooling layer depends on the input.
struct WindowRows {
  int64_t in = 0;
  int64_t out = 0;
  int64_t reach = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

// Halos of a tensor along its rows and columns.
struct Halo {
  static constexpr int kRowDimension = 1;
  static constexpr int kColumnDimension = 2;
  bool needed = false;
  WindowRows rows;
  WindowRows columns;
};
// The halo of the layer's input; `needed` is false if every part of the output needs only the same
// part of the input.
Halo HaloOf(const GraphLayer& layer);

// Estimates moves on one mesh. Borrows the hardware.
class MoveModel {
 public:
  MoveModel(const Mesh& mesh, const HardwareModel& hardware);

  const CompactMesh& mesh() const { return compact_; }
  // The link between ranks that differ along these axes.
  const LinkProfile& LinkOf(AxisSet axes) const;

  // The move to the input of a layer with this halo, and the move of that input's gradient.
  MoveEstimate Forward(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                       const Halo& halo) const;
  MoveEstimate Backward(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                        const Halo& halo) const;

 private:
  struct Exchanged;
  struct Shares;
  enum class HaloAt { kNone, kFrom, kTo };

  MoveEstimate Move(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                    const Halo& halo, HaloAt at) const;
  Exchanged Exchange(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                     const Halo& halo, HaloAt at) const;
  MoveEstimate Estimate(const Exchanged& exchanged) const;

  Mesh mesh_;
  CompactMesh compact_;
  const HardwareModel& hardware_;
  // Cache of LinkOf.
  mutable std::map<AxisSet, const LinkProfile*> links_;
};

}  // namespace cadre
