// A rank's part of the neural network. It executes ("plays") tapes: lists of operations, which are
// computations of layers and moves of values between ranks, with buffers in one block of memory
// (plan/tape.h). network.cc explains how.
//
// Weights are read from, and gradients written to, the parameter store. Gradients are partial sums
// over the mesh axes of their bucket; GradientFlow (worker/train) reduces them over these axes.
//
// On the host every call has done its work when it returns. On other devices Load and the Play
// methods only enqueue, on the device's current stream; methods that block say so. After Prepare
// and one pass, playing allocates nothing and can be captured (Device::CaptureGraph): the graph
// plays the batch that was loaded last.
//
// Owns layers, tapes and activations. Borrows everything else, which must outlive it.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/background_move.h"
#include "comm/mesh_communicators.h"
#include "device/device.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tensor/values.h"
#include "worker/nn/layer.h"
#include "worker/nn/network_input.h"
#include "worker/nn/parameter_store.h"
#include "worker/nn/programs.h"
#include "worker/nn/step_messages.h"

namespace cadre {

// This rank's part of the group's loss. Exactly one rank counts each label of the batch.
struct LossPart {
  double loss = 0;
  int64_t correct = 0;
  // Number of labels: one per sample, or one per token.
  int64_t samples = 0;

  LossPart& operator+=(const LossPart& other);
};
// A collective: the sum over the group, equal on all members.
absl::StatusOr<LossPart> SumOverGroup(const LossPart& mine, Communicator& group);

inline bool IsMove(const TapeOp& op) {
  return op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient ||
         op.kind == TapeOpKind::kSend || op.kind == TapeOpKind::kReceive;
}

// Callbacks after every operation of a tape, and after the parts of a loss that takes its scores in
// chunks (the operations of their layer, and the loss), for profiles and traces. On devices the
// host synchronizes before and after each operation while there is an observer, so nothing
// overlaps.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;
  // The operation has just ended.
  virtual void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) = 0;
  // The latest operation was a move in the background; the caller waited `seconds` for its end.
  virtual void Waited(double /*seconds*/) {}
};

// Callbacks of the network between operations, with which parameters and gradients are exchanged
// while the network computes.
class PassListener {
 public:
  virtual ~PassListener() = default;
  // Before a forward pass.
  virtual absl::Status BeginForward() { return absl::OkStatus(); }
  // Before the forward of a layer with parameters: returns when its weights are ready.
  virtual absl::Status BeforeForward(int layer) = 0;
  // Training: forward is done. sums[0] is the loss and sums[1] the number of correct answers of
  // this rank's part of the batch, in device memory, valid until the next pass for work on the
  // current stream. `counted`: number of labels; 0 if another rank counts the same labels, so that
  // the sums must be ignored.
  virtual absl::Status AfterLoss(std::span<const double> sums, int64_t counted) = 0;
  // Training: once per step, after the rank's last forward pass and before its last backward pass;
  // on all ranks at the same position among their messages, so that they may exchange values.
  virtual absl::Status AfterForwards() { return absl::OkStatus(); }
  // Training: the gradients of the layer's parameters are complete for this pass.
  virtual absl::Status AfterBackward(int layer) = 0;
};

class Network {
 public:
  // Requires: CheckPlan is OK for plan and graph. `seed`: the run's.
  Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
          Backend& kernels, ParameterStore& parameters, MeshCommunicators& comms);

  // Which rows of a batch this rank requires.
  const NetworkInput& batches() const { return programs_.batches(); }

  // The number of micro-batches whose activations are kept at a time. Requires: nothing was
  // prepared.
  void set_in_flight(int micro_batches) { programs_.set_in_flight(micro_batches); }
  // For tests. Requires: nothing was prepared.
  void set_fusion(Fusion fusion) { programs_.set_fusion(fusion); }
  // Allocates everything for batches of `samples`. Blocks if existing memory has to grow. Errors:
  // ResourceExhausted, and others of the device.
  absl::Status Prepare(int64_t samples, bool training);

  // Sets the batch on which the network trains next. On the host it is borrowed until another one
  // is loaded; on other devices it has been read when the call returns, and is copied concurrently
  // with earlier work. Errors: InvalidArgument for tokens outside the vocabulary.
  absl::Status Load(const BatchView& batch);
  // Begins a step whose passes this rank plays in the order of its stage; samples[i]: of
  // micro-batch i, over all ranks. `order` is borrowed until EndStep. Requires: all ranks have
  // equal orders; no more micro-batches are in flight than set_in_flight permits.
  void BeginStep(const PassOrder& order, std::span<const int64_t> samples);
  // PlayForward plays a micro-batch up to the loss and AfterLoss, PlayBackward plays the rest.
  // Together they fill the store's gradients with the gradients of (sum of the losses) times
  // `loss_scale`, as partial sums over each bucket's axes. `share`: its fraction of the step's
  // samples. Requires: the micro-batch was loaded last.
  absl::Status PlayForward(int micro_batch, float loss_scale, double share);
  absl::Status PlayBackward(int micro_batch);
  // Returns when everything is sent; on devices later work on the current stream is ordered after
  // the sends.
  absl::Status EndStep();
  // A step of one batch: Load, PlayForward and PlayBackward.
  absl::Status ForwardBackward(const BatchView& batch, float loss_scale, double share);

  // Forward only, with running statistics and without dropout. Blocks.
  absl::StatusOr<LossPart> Evaluate(const BatchView& batch);

  // Plays forward, in training or as Evaluate does, and returns the position of the first layer
  // whose output on this rank contains a non-finite element; graph.size() if there is none. A
  // collective. Blocks.
  absl::StatusOr<int> FirstNotFinite(const BatchView& batch, bool training = true);

  // Number of times that memory was replaced because a larger batch was loaded; graphs captured
  // before are then invalid.
  int64_t memory_moves() const { return programs_.memory_moves(); }

  // Null: no observer. Requires: the observer outlives the network or is removed; nothing is
  // captured while there is one.
  void set_observer(TapeObserver* observer) { observer_ = observer; }
  bool observed() const { return observer_ != nullptr; }

  // Null: no listener. Requires: as set_observer.
  void set_listener(PassListener* listener) { listener_ = listener; }

  // Seconds that the calling thread has spent in moves, or waiting for them; on devices, only in
  // observed ones.
  double seconds_moving() const { return seconds_moving_; }

  // Bytes of the memory for activations: a block for each micro-batch in flight, or what
  // evaluation needs if that is more.
  int64_t activation_bytes() const { return programs_.activation_bytes(); }
  // Bytes of scratch for moves, and of buffers for loading batches.
  int64_t buffer_bytes() const { return programs_.buffer_bytes(); }

 private:
  // Loads a batch, and begins a step that consists of its forward pass.
  absl::Status EnterForward(const BatchView& batch, bool training);
  // Sets which pass is played next, after the pending sends from its memory have ended.
  absl::Status Enter(Pass pass);
  // In a pipeline: calls the listener's AfterForwards if the passes before the one that is played
  // complete the forward passes of the step, once.
  absl::Status EndForwards();
  // Calls `wait`, and counts its time in seconds_moving_.
  absl::Status Moving(const std::function<absl::Status()>& wait);
  // Plays the pass that was entered.
  absl::Status PlayPass(Program& program, const PassContext& pass);
  // Plays two operations concurrently, one of them a move.
  absl::Status PlayTogether(Program& program, const TapeOp& first, const TapeOp& second);
  // Call the listener before and after operations on parameters.
  absl::Status Before(const TapeOp& op);
  absl::Status After(const TapeOp& op);
  // Plays one operation and reports it to the observer.
  absl::Status PlayOp(Program& program, const TapeOp& op, const PassContext& pass);
  absl::Status DoOp(Program& program, const TapeOp& op, const PassContext& pass);
  PassContext TrainingPass(double share) const;
  // Enqueues the loss; its sums are written to sums_.
  absl::Status TakeLoss(Program& program, float loss_scale);
  // The same for a loss that takes its scores in chunks, with their layer. Requires: a host.
  absl::Status TakeLossInChunks(Program& program, const TapeOp& op, float loss_scale);
  // Computes the scores of such a loss, a chunk after the other.
  void ForEachChunk(Program& program, const TapeOp& op,
                    absl::FunctionRef<void(Interval rows, Values scores)> use);
  // Reports the parts of a loss that takes its scores in chunks. Requires: an observer.
  void ObserveChunks(const Tape& tape, const TapeOp& op, absl::Time begin, absl::Duration forward,
                     absl::Duration losses, absl::Duration backward);
  // The time at which the enqueued work is done; on devices without an observer absl::Time(),
  // because reading it would block.
  absl::Time Now();
  Values Buffer(const Program& program, int number) {
    return programs_.Buffer(program, number, messages_.pass().micro_batch);
  }
  ConstValues Input(const Program& program, int number) {
    return programs_.Input(program, number, messages_.pass().micro_batch);
  }
  LayerTensors TensorsOf(const Program& program, const TapeOp& op);

  const Graph& graph_;
  const Plan& plan_;
  const int rank_;
  const uint64_t seed_;
  // Whether this rank counts its labels: exactly one of the ranks with the same labels does.
  const bool counts_loss_;
  Backend& kernels_;
  Device& device_;
  Programs programs_;
  // Loss and number of correct answers of the latest pass.
  DeviceArray<double> sums_;
  TapeObserver* observer_ = nullptr;
  PassListener* listener_ = nullptr;
  double seconds_moving_ = 0;
  const std::unique_ptr<BackgroundMove> background_;
  // Whether the listener knows that the last forward of the step has ended.
  bool forwards_done_ = false;
  // Declared after the memory that its messages use.
  StepMessages messages_;
  const PassOrder one_batch_{1};
};

}  // namespace cadre
