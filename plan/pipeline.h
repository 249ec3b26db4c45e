// The order in which the ranks of a group play (execute) the passes of a step: forward and backward
// of every micro-batch. If layers are placed on stages, different stages work on different
// micro-batches at the same time. pipeline.cc explains the orders, and why no rank waits forever.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/graph.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct Pass {
  bool backward = false;
  int micro_batch = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

class PassOrder {
 public:
  // All ranks play forward and backward of one micro-batch after the other.
  explicit PassOrder(int micro_batches)
      : PassOrder(v1::Cluster::ONE_FORWARD_ONE_BACKWARD, 1, micro_batches, 0) {}
  // `reach`: the maximum number of stages that the gradient of a value travels back. Requires: all
  // numbers are positive, but `reach` may be 0 for one stage; the pipeline is a known one.
  PassOrder(v1::Cluster::Pipeline pipeline, int stages, int micro_batches, int reach);

  int stages() const { return static_cast<int>(passes_.size()); }
  int micro_batches() const { return micro_batches_; }
  // The passes of a stage. Gradients are always added in the order of the micro-batches.
  std::span<const Pass> OfStage(int stage) const { return passes_[stage]; }
  // The number of micro-batches whose activations a stage keeps at a time. When the forward of
  // micro-batch i begins, the backward of micro-batch i - InFlight(stage) has been played.
  int InFlight(int stage) const { return in_flight_[stage]; }

  // The position of a stage's pass in a sequence of the passes of all stages, below Positions(). In
  // this sequence every pass follows the passes whose results it needs, and the passes of each
  // stage have the order of OfStage.
  int Position(int stage, Pass pass) const {
    return positions_[stage][2 * pass.micro_batch + (pass.backward ? 1 : 0)];
  }
  int Positions() const { return 2 * stages() * micro_batches_; }

 private:
  void Number(int reach);

  int micro_batches_ = 1;
  // By stage.
  std::vector<int> in_flight_;
  std::vector<std::vector<Pass>> passes_;
  std::vector<std::vector<int>> positions_;
};

// The coordinate of a layer on the axis `stage`; 0 if it has none.
int StageOf(const LayerLayouts& layouts);
// The stage whose passes a rank plays.
int StageIn(const PassOrder& order, const Mesh& mesh, int rank);

// The number of the message of a kSend or kReceive, equal on both ranks. Messages are sent in the
// order of their numbers: by the position of the pass that receives them, then by TapeOp::order. In
// forward the operation's layer receives, in backward the layer whose output it reads. `orders`:
// Tape::orders.
uint32_t MessageNumber(const PassOrder& order, const Graph& graph, const Plan& plan,
                       const TapeOp& op, Pass pass, uint32_t orders);

// The order for a plan. It has several stages only if the plan has, every layer is at a stage that
// is not before those of its inputs, and no value that passes between stages is a sum over ranks;
// otherwise the micro-batches are played one after the other.
// Requires: CheckPlan is OK.
PassOrder PassOrderOf(v1::Cluster::Pipeline pipeline, int micro_batches, const Graph& graph,
                      const Plan& plan);

}  // namespace cadre
