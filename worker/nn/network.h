// A rank's part of the network: plays tapes (spec/tape.h) on layers, moves and one block of memory.
//
// Weights are read from, and gradients written to, the parameter store; nothing here asks which
// parallelism it is part of. What a parameter's gradient still lacks (the sum over its bucket's
// axes) is the replica's business.
//
// Owns layers, tapes and activations. Borrows the rest, which must outlive it. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/kernels.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "spec/tape.h"
#include "tensor/tensor.h"
#include "worker/comm/box_exchange.h"
#include "worker/comm/companion.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/layer.h"
#include "worker/nn/parameter_store.h"

namespace cadre {

// Rows [begin, end) of a batch.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Rows&, const Rows&) = default;
};

// What this rank adds to the group's loss; every label of the batch is counted by exactly one rank.
struct LossPart {
  double loss = 0;
  int64_t correct = 0;
  // Labels: one a sample, or one a token.
  int64_t samples = 0;
};

// A batch as this rank sees it.
struct BatchView {
  // Of the whole batch, over all ranks.
  int64_t samples = 0;
  // InputRows(samples): [rows, height, width, channels] or [rows, tokens].
  std::span<const float> inputs;
  // Of LabelRows(samples), labels_per_sample each.
  std::span<const int32_t> labels;
  // Of sample 0 in the endless sequence of the run's samples.
  int64_t first_position = 0;
};

// Hears of every operation of a tape as it is played; for profiles and traces.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;
  // The operation has just ended: when it began, and how long it took.
  virtual void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) = 0;
  // Of the operation told last, so long was spent waiting for a move beside it.
  virtual void Waited(double /*seconds*/) {}
};

// Stands between the network and whoever moves parameters and gradients between ranks while it
// plays.
class PassListener {
 public:
  virtual ~PassListener() = default;
  // A layer with parameters is about to be played forward: returns when its weights are there.
  virtual absl::Status BeforeForward(int layer) = 0;
  // Training: forward is done, and this is what the rank adds to the loss.
  virtual absl::Status AfterLoss(const LossPart& part) = 0;
  // Training: the gradients of the layer's parameters are what this pass makes them.
  virtual absl::Status AfterBackward(int layer) = 0;
};

class Network {
 public:
  // Requires: CheckPlan is OK for plan and graph. `seed`: the run's.
  Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
          Kernels& kernels, ParameterStore& parameters, MeshCommunicators& comms);
  ~Network();

  // Of a batch of `samples`, the rows whose inputs this rank takes in, and the rows whose labels it
  // compares with.
  Rows InputRows(int64_t samples) const;
  Rows LabelRows(int64_t samples) const;

  // Forward and backward of a batch over the group. Fills the store's gradients: of the sum of the
  // losses times `loss_scale`, as partial sums over each bucket's axes. `share`: of the step's
  // samples, this batch's.
  absl::StatusOr<LossPart> ForwardBackward(const BatchView& batch, float loss_scale, double share);

  // Forward only, with running statistics and nothing dropped.
  absl::StatusOr<LossPart> Evaluate(const BatchView& batch);

  // Plays forward again and returns the position of the first layer whose output here has an
  // element that is not finite; graph.size() where none has. A collective.
  absl::StatusOr<int> FirstNotFinite(const BatchView& batch);

  // Makes ready for batches of `samples`, so that memory is known before the first.
  void Prepare(int64_t samples, bool training);

  // Null: nobody listens, and no clock is read. Requires: it outlives the network or is taken back.
  void set_observer(TapeObserver* observer) { observer_ = observer; }

  // Null: nobody listens. Requires: as set_observer.
  void set_listener(PassListener* listener) { listener_ = listener; }

  // Seconds that the calling thread has spent in moves, or waiting for them.
  double seconds_moving() const { return seconds_moving_; }

  // Bytes of the block of memory for activations.
  int64_t activation_bytes() const { return memory_.elements() * 4; }
  // Bytes of scratch for moves.
  int64_t buffer_bytes() const { return exchange_.buffer_bytes(); }

 private:
  struct Program;

  // The program for batches of `samples`; made when first asked for.
  Program& ProgramFor(int64_t samples, bool training);
  // Plays operations [begin, end).
  absl::Status PlayRange(Program& program, size_t begin, size_t end, const BatchView& batch,
                         const PassContext& pass);
  // Plays two operations at the same time, one of them a move.
  absl::Status PlayTogether(Program& program, const TapeOp& first, const TapeOp& second,
                            const BatchView& batch);
  // Asks the listener before an operation, and tells it after one, where parameters are concerned.
  absl::Status Before(const TapeOp& op);
  absl::Status After(const TapeOp& op);
  // Plays one operation and tells the observer.
  absl::Status PlayOp(Program& program, const TapeOp& op, const BatchView& batch,
                      const PassContext& pass);
  absl::Status DoOp(Program& program, const TapeOp& op, const BatchView& batch,
                    const PassContext& pass);
  LossPart TakeLoss(const Program& program, const TapeOp& op, const BatchView& batch,
                    float loss_scale);
  std::span<float> Buffer(const Program& program, int number);
  std::span<const float> Input(const Program& program, int number, const BatchView& batch);
  LayerTensors TensorsOf(const Program& program, const TapeOp& op, const BatchView& batch);
  // True where this rank's labels are counted by it and not by a rank that holds the same.
  bool CountsLoss() const;

  const Graph& graph_;
  const ParameterIndex& index_;
  const Plan& plan_;
  const uint64_t seed_;
  Kernels& kernels_;
  ParameterStore& parameters_;
  MeshCommunicators& comms_;
  BoxExchange exchange_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<Program>> programs_;
  Tensor memory_;
  std::vector<int32_t> labels_here_;
  TapeObserver* observer_ = nullptr;
  PassListener* listener_ = nullptr;
  double seconds_moving_ = 0;
  // Moves data while this thread computes. Made when a program first needs it.
  std::unique_ptr<Companion> companion_;
};

}  // namespace cadre
