// A rank's part of the network: plays tapes (spec/tape.h) on layers, moves and one block of memory.
//
// Weights are read from, and gradients written to, the parameter store; nothing here asks which
// parallelism it is part of. What a parameter's gradient still lacks (the sum over its bucket's
// axes) is the replica's business.
//
// On the host every call has done its work when it returns. On other devices Load and Play only
// enqueue, on the device's current lane, and what they enqueue is ordered by lanes and events; what
// stands still says so. After Prepare, and one Play for what kernels make at first use, playing
// allocates nothing, so that it can be recorded (Device::RecordWork): a recording plays what was
// loaded last.
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
#include "device/device.h"
#include "kernels/kernels.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "spec/tape.h"
#include "tensor/values.h"
#include "worker/comm/box_exchange.h"
#include "worker/comm/companion.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/batch_upload.h"
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

// A batch as this rank sees it, in the host's memory.
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

// Hears of every operation of a tape as it is played; for profiles and traces. On devices other
// than the host, the host stands still before and after each operation while somebody listens: what
// would have overlapped does not.
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
  // Training: forward is done. sums[0] is the loss and sums[1] the number of correct answers of
  // this rank's part of the batch, in the device's memory and there for what is enqueued on its
  // current lane until the next pass. `counted`: labels of it; 0 where another rank counts the same
  // ones, and the sums are not to be looked at.
  virtual absl::Status AfterLoss(std::span<const double> sums, int64_t counted) = 0;
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

  // Makes ready for batches of `samples`, so that memory is known before the first. Stands still
  // where memory that was there has to grow. Errors: ResourceExhausted, and others of the device.
  absl::Status Prepare(int64_t samples, bool training);

  // The batch that is played next. On the host its memory is lent until it has been played; on
  // other devices it has been read when the call returns, and travels beside what was enqueued
  // before. Errors: InvalidArgument for tokens that a vocabulary does not have.
  absl::Status Load(const BatchView& batch);
  // Forward, loss and backward over the group, of what was loaded. Fills the store's gradients: of
  // the sum of the losses times `loss_scale`, as partial sums over each bucket's axes. `share`: of
  // the step's samples, this batch's. Requires: Load was called, of a batch of `samples`.
  absl::Status Play(int64_t samples, float loss_scale, double share);
  // Its halves: up to the loss and AfterLoss, and what follows.
  absl::Status PlayForward(int64_t samples, float loss_scale, double share);
  absl::Status PlayBackward(int64_t samples);
  // Load and Play.
  absl::Status ForwardBackward(const BatchView& batch, float loss_scale, double share);
  // Of the pass played last. Stands still.
  absl::StatusOr<LossPart> LossOfLastPass();

  // Forward only, with running statistics and nothing dropped. Stands still.
  absl::StatusOr<LossPart> Evaluate(const BatchView& batch);

  // Plays forward again and returns the position of the first layer whose output here has an
  // element that is not finite; graph.size() where none has. A collective. Stands still.
  absl::StatusOr<int> FirstNotFinite(const BatchView& batch);

  // Counts the times that memory had to move because a larger batch came: recordings made before
  // are void.
  int64_t memory_moves() const { return memory_moves_; }

  // Null: nobody listens, and no clock is read. Requires: it outlives the network or is taken back;
  // nothing is recorded while somebody listens.
  void set_observer(TapeObserver* observer) { observer_ = observer; }

  // Null: nobody listens. Requires: as set_observer.
  void set_listener(PassListener* listener) { listener_ = listener; }

  // Seconds that the calling thread has spent in moves, or waiting for them; on devices other than
  // the host, only of those that an observer looked at.
  double seconds_moving() const { return seconds_moving_; }

  // Bytes of the block of memory for activations.
  int64_t activation_bytes() const { return static_cast<int64_t>(memory_.size()) * 4; }
  // Bytes of scratch for moves, and of batches on their way to the device.
  int64_t buffer_bytes() const { return exchange_.buffer_bytes() + upload_.bytes(); }

 private:
  struct Program;

  // The program for batches of `samples`; made when first asked for.
  Program& ProgramFor(int64_t samples, bool training);
  std::unique_ptr<Program> MakeProgram(int64_t samples, bool training);
  // Gives the network's memory what the program needs.
  void ReserveFor(const Program& program);
  // For a message about lack of memory.
  std::string WhoNeedsActivations(const Tape& tape) const;
  // A message about lack of memory names the layer from now on, until an Asking ends.
  void AskFor(int layer);
  // Errors: InvalidArgument, naming the layer.
  absl::Status CheckTokens(std::span<const float> tokens) const;
  // Of the batch's, those that this rank compares with; of a sample, the tokens that are here.
  std::span<const int32_t> LabelsHere(const Program& program, const BatchView& batch);
  absl::Status LoadFor(const Program& program, const BatchView& batch);

  // Plays operations [begin, end).
  absl::Status PlayRange(Program& program, size_t begin, size_t end, const PassContext& pass);
  // Plays two operations at the same time, one of them a move.
  absl::Status PlayTogether(Program& program, const TapeOp& first, const TapeOp& second);
  absl::Status PlayTogetherOnHost(Program& program, const TapeOp& move, const TapeOp& work);
  absl::Status PlayTogetherOnLanes(Program& program, const TapeOp& move, const TapeOp& work);
  // One after the other, each by the clock.
  absl::Status PlayInTurn(Program& program, const TapeOp& move, const TapeOp& work);
  // Asks the listener before an operation, and tells it after one, where parameters are concerned.
  absl::Status Before(const TapeOp& op);
  absl::Status After(const TapeOp& op);
  // Plays one operation and tells the observer.
  absl::Status PlayOp(Program& program, const TapeOp& op, const PassContext& pass);
  absl::Status DoOp(Program& program, const TapeOp& op, const PassContext& pass);
  void Add(Values a, Values b, Values sum);
  // The sums go to sums_.
  absl::Status TakeLoss(const Program& program, float loss_scale);
  absl::StatusOr<LossPart> ReadLoss(const Program& program);
  // What the clock shows when the device has done what it was given; for observers.
  absl::Time NowOnDevice();
  Values Buffer(const Program& program, int number);
  ConstValues Input(const Program& program, int number);
  LayerTensors TensorsOf(const Program& program, const TapeOp& op);
  // Labels that this rank counts and not a rank that holds the same: all here, or none.
  int64_t LabelsCounted(const Program& program) const;
  bool CountsLoss() const;

  const Graph& graph_;
  const ParameterIndex& index_;
  const Plan& plan_;
  const uint64_t seed_;
  Kernels& kernels_;
  Device& device_;
  ParameterStore& parameters_;
  MeshCommunicators& comms_;
  BoxExchange exchange_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<Program>> programs_;
  // In words.
  DeviceArray<float> memory_;
  int64_t memory_moves_ = 0;
  BatchUpload upload_;
  // Of the batch loaded last, in the device's memory.
  ConstValues inputs_;
  std::span<const int32_t> labels_;
  std::vector<int32_t> labels_here_;
  // Loss and correct answers of the pass played last.
  DeviceArray<double> sums_;
  const Program* played_last_ = nullptr;
  TapeObserver* observer_ = nullptr;
  PassListener* listener_ = nullptr;
  double seconds_moving_ = 0;
  // Moves data while this thread computes. Made when a program first needs it; on the host only.
  std::unique_ptr<Companion> companion_;
  // Between the lanes of a move and of the work beside it; null on the host.
  std::unique_ptr<DeviceEvent> fork_;
  std::unique_ptr<DeviceEvent> join_;
};

}  // namespace cadre
