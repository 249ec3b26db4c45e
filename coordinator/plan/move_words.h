// What a plan's moves of activations cost, without asking any rank: the words that the rank that
// gets most receives, and the seconds that they take, in closed form from two layouts.
//
// A move is what tensor/move.h plans: an exchange in which every rank gets what it needs and has
// not, from every addend where the tensor is a partial sum; or, for a sum that several ranks need,
// two exchanges, whichever is cheaper by MoveCost. Parts are taken as even, fractions are kept;
// halos are counted row by row. An exchange takes beta for each byte of the busier way. Gathers and
// sums take alpha for each doubling of those who take part, as the papers' collectives do; the
// engine sends every member its message at once, which costs the same as long as their latencies
// overlap. Where ranks give one dimension and get another, no algorithm sends both so few words and
// so few messages: alpha is taken for every message.
//
// Thread-safe (pure functions), but for MoveModel, which is thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/plan/compact_layout.h"
#include "coordinator/plan/machine.h"
#include "coordinator/plan/plan_problem.h"
#include "spec/graph.h"
#include "spec/plan.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace cadre {

// Of the rank that has most to do.
struct MoveEstimate {
  // Received from other ranks.
  double words = 0;
  // Copying among them.
  double seconds = 0;

  MoveEstimate& operator+=(const MoveEstimate& other);
};

// Of a tensor of this shape, samples included. `to` is no partial sum.
MoveEstimate MoveBetween(const Shape& whole, const Mesh& mesh, const Layout& from, const Layout& to,
                         const GroupMachine& machine);

// What travels to a layer's inputs, all of them together, and of their gradients to where they came
// from, for one micro-batch.
struct LayerMoves {
  MoveEstimate forward;
  MoveEstimate backward;
};
// One per layer. Requires: the plan is legal for the problem's graph.
std::vector<LayerMoves> MovesOf(const PlanProblem& problem, const Plan& plan);

// How a dimension of an output looks at that of the input.
struct WindowRows {
  int64_t in = 0;
  int64_t out = 0;
  int64_t reach = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

// Halos of a tensor: along the rows, the columns, or neither.
struct Halo {
  static constexpr int kRowDimension = 1;
  static constexpr int kColumnDimension = 2;
  bool wanted = false;
  WindowRows rows;
  WindowRows columns;
};
// Of what the layer takes in; not wanted where its parts are the input's own.
Halo HaloOf(const GraphLayer& layer);

// Moves on one mesh of one machine.
class MoveModel {
 public:
  // Borrows the machine.
  MoveModel(const Mesh& mesh, const GroupMachine& machine);

  const CompactMesh& mesh() const { return compact_; }
  // Of ranks that differ along these axes.
  const LinkProfile& LinkOf(AxisSet axes) const;

  // To the input of a layer that has this halo, and of its gradient's way back.
  MoveEstimate Forward(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                       const Halo& halo) const;
  MoveEstimate Backward(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                        const Halo& halo) const;

 private:
  struct Exchanged;
  enum class HaloAt { kNone, kFrom, kTo };

  MoveEstimate Move(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                    const Halo& halo, HaloAt at) const;
  Exchanged Exchange(const Extents& whole, const CompactLayout& from, const CompactLayout& to,
                     const Halo& halo, HaloAt at) const;
  MoveEstimate Estimate(const Exchanged& exchanged) const;

  Mesh mesh_;
  CompactMesh compact_;
  const GroupMachine& machine_;
  // By axes; the machine's own.
  mutable std::map<AxisSet, const LinkProfile*> links_;
};

}  // namespace cadre
