#include "worker/nn/network.h"

#include <algorithm>
#include <cmath>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

// A tape with the layers for it. Layers hold places by reference, so a program does not move.
struct Network::Program {
  Tape tape;
  std::vector<std::unique_ptr<Layer>> layers;
  // Operations up to and with the loss.
  size_t forward_ops = 0;
};

Network::Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
                 Kernels& kernels, ParameterStore& parameters, MeshCommunicators& comms)
    : graph_(graph),
      index_(index),
      plan_(plan),
      seed_(seed),
      kernels_(kernels),
      parameters_(parameters),
      comms_(comms),
      exchange_(comms) {}

Network::~Network() = default;

Rows Network::InputRows(int64_t samples) const {
  const Box box = LocalBox(BatchShape(samples, graph_.input()), InputLayout(graph_, plan_),
                           plan_.mesh, comms_.rank());
  return {box.begin[0], box.end[0]};
}

Rows Network::LabelRows(int64_t samples) const {
  const Box box = LocalBox(Shape{samples}, Layout{{plan_.layers.back().inputs[0].axes(0)}},
                           plan_.mesh, comms_.rank());
  return {box.begin[0], box.end[0]};
}

void Network::Prepare(int64_t samples, bool training) { ProgramFor(samples, training); }

Network::Program& Network::ProgramFor(int64_t samples, bool training) {
  std::unique_ptr<Program>& program = programs_[{samples, training}];
  if (program != nullptr) return *program;
  program = std::make_unique<Program>();
  program->tape = MakeTape(graph_, plan_, comms_.rank(), samples, training);
  const Tape& tape = program->tape;
  for (int l = 0; l + 1 < graph_.size(); ++l) {
    const auto at = static_cast<size_t>(l);
    program->layers.push_back(MakeLayer({.layer = graph_[l],
                                         .layouts = plan_.layers[at],
                                         .place = tape.places[at],
                                         .samples = samples,
                                         .number = l,
                                         .kernels = kernels_,
                                         .comms = comms_,
                                         .parameters = parameters_.OfLayer(index_, l)}));
  }
  const auto loss = std::find_if(tape.ops.begin(), tape.ops.end(),
                                 [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
  program->forward_ops = static_cast<size_t>(loss - tape.ops.begin());
  if (tape.words > memory_.elements()) memory_ = Tensor(Shape{tape.words});
  for (const TapeOp& op : tape.ops) exchange_.Reserve(op.move);
  return *program;
}

absl::StatusOr<LossPart> Network::ForwardBackward(const BatchView& batch, float loss_scale,
                                                  double share) {
  Program& program = ProgramFor(batch.samples, /*training=*/true);
  const PassContext pass{true, seed_, batch.first_position, share};
  CADRE_RETURN_IF_ERROR(PlayRange(program, 0, program.forward_ops, batch, pass));
  const LossPart part = TakeLoss(program, program.tape.ops[program.forward_ops], batch, loss_scale);
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->AfterLoss(part));
  CADRE_RETURN_IF_ERROR(
      PlayRange(program, program.forward_ops + 1, program.tape.ops.size(), batch, pass));
  return part;
}

absl::StatusOr<LossPart> Network::Evaluate(const BatchView& batch) {
  Program& program = ProgramFor(batch.samples, /*training=*/false);
  const PassContext pass{false, seed_, batch.first_position, 1};
  CADRE_RETURN_IF_ERROR(PlayRange(program, 0, program.forward_ops, batch, pass));
  return TakeLoss(program, program.tape.ops[program.forward_ops], batch, 1.0F);
}

absl::StatusOr<int> Network::FirstNotFinite(const BatchView& batch) {
  Program& program = ProgramFor(batch.samples, /*training=*/true);
  const PassContext pass{true, seed_, batch.first_position, 1};
  int first = graph_.size();
  for (size_t i = 0; i < program.forward_ops; ++i) {
    // One by one, so that every output is still there to be looked at.
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(PlayOp(program, op, batch, pass));
    if (op.kind != TapeOpKind::kForward) continue;
    const std::span<const float> y = Buffer(program, op.y);
    if (!std::all_of(y.begin(), y.end(), [](float value) { return std::isfinite(value); })) {
      first = std::min(first, op.layer);
    }
  }
  return first;
}

absl::Status Network::PlayRange(Program& program, size_t begin, size_t end, const BatchView& batch,
                                const PassContext& pass) {
  for (size_t i = begin; i < end; ++i) {
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(Before(op));
    if (op.with_next) {
      const TapeOp& next = program.tape.ops[++i];
      CADRE_RETURN_IF_ERROR(Before(next));
      CADRE_RETURN_IF_ERROR(PlayTogether(program, op, next, batch));
      CADRE_RETURN_IF_ERROR(After(next));
    } else {
      CADRE_RETURN_IF_ERROR(PlayOp(program, op, batch, pass));
    }
    CADRE_RETURN_IF_ERROR(After(op));
  }
  return absl::OkStatus();
}

absl::Status Network::Before(const TapeOp& op) {
  const bool asks = listener_ != nullptr && op.kind == TapeOpKind::kForward &&
                    !graph_[op.layer].parameters.empty();
  return asks ? listener_->BeforeForward(op.layer) : absl::OkStatus();
}

absl::Status Network::After(const TapeOp& op) {
  const bool tells = listener_ != nullptr && op.kind == TapeOpKind::kBackward &&
                     !graph_[op.layer].parameters.empty();
  return tells ? listener_->AfterBackward(op.layer) : absl::OkStatus();
}

absl::Status Network::PlayTogether(Program& program, const TapeOp& first, const TapeOp& second,
                                   const BatchView& batch) {
  if (companion_ == nullptr) companion_ = std::make_unique<Companion>();
  const bool halo = first.kind == TapeOpKind::kMove;
  const TapeOp& move = halo ? first : second;
  const TapeOp& work = halo ? second : first;
  Layer& layer = *program.layers[static_cast<size_t>(work.layer)];
  const LayerTensors tensors = TensorsOf(program, work, batch);
  const absl::Time start = absl::Now();
  const std::span<const float> moved_from = Input(program, move.x[0], batch);
  const std::span<float> moved_to = Buffer(program, move.y);
  // Both parts are played to the end whatever comes of the other, since they share memory.
  absl::Status status;
  if (!halo) status = layer.gradient_parts()->BackwardInput(tensors);
  companion_->Start([&] { return exchange_.Run(move.move, moved_from, moved_to); });
  status.Update(halo ? layer.halo_parts()->ForwardInterior(moved_from, tensors)
                     : layer.gradient_parts()->BackwardParameters(tensors));
  const absl::Time waiting = absl::Now();
  status.Update(companion_->Wait());
  const absl::Time came = absl::Now();
  seconds_moving_ += absl::ToDoubleSeconds(came - waiting);
  if (halo && status.ok()) status = layer.halo_parts()->ForwardBorder(tensors);
  if (observer_ != nullptr) {
    // What the move took that the work did not hide.
    observer_->Played(program.tape, move, waiting, absl::ToDoubleSeconds(came - waiting));
    observer_->Waited(absl::ToDoubleSeconds(came - waiting));
    observer_->Played(program.tape, work, start,
                      absl::ToDoubleSeconds((absl::Now() - start) - (came - waiting)));
  }
  return status;
}

absl::Status Network::PlayOp(Program& program, const TapeOp& op, const BatchView& batch,
                             const PassContext& pass) {
  const bool moves = op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
  if (observer_ == nullptr && !moves) return DoOp(program, op, batch, pass);
  const absl::Time start = absl::Now();
  const absl::Status status = DoOp(program, op, batch, pass);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (moves) seconds_moving_ += seconds;
  if (observer_ != nullptr) observer_->Played(program.tape, op, start, seconds);
  return status;
}

absl::Status Network::DoOp(Program& program, const TapeOp& op, const BatchView& batch,
                           const PassContext& pass) {
  switch (op.kind) {
    case TapeOpKind::kMove:
    case TapeOpKind::kMoveGradient:
      return exchange_.Run(op.move, Input(program, op.x[0], batch), Buffer(program, op.y));
    case TapeOpKind::kForward:
      return program.layers[static_cast<size_t>(op.layer)]->Forward(pass,
                                                                    TensorsOf(program, op, batch));
    case TapeOpKind::kBackward:
      return program.layers[static_cast<size_t>(op.layer)]->Backward(pass,
                                                                     TensorsOf(program, op, batch));
    case TapeOpKind::kAdd: {
      const std::span<float> sum = Buffer(program, op.y);
      const std::span<float> a = Buffer(program, op.x[0]);
      const std::span<float> b = Buffer(program, op.x[1]);
      if (sum.data() == b.data()) {
        kernels_.Add(a, sum);
        return absl::OkStatus();
      }
      if (sum.data() != a.data()) std::copy(a.begin(), a.end(), sum.begin());
      kernels_.Add(b, sum);
      return absl::OkStatus();
    }
    case TapeOpKind::kLoss:
      break;
  }
  return absl::InternalError("the loss is taken by the network");
}

std::span<float> Network::Buffer(const Program& program, int number) {
  if (number < 0) return {};
  const TapeBuffer& buffer = program.tape.buffers[static_cast<size_t>(number)];
  return memory_.span().subspan(static_cast<size_t>(buffer.offset),
                                static_cast<size_t>(buffer.words));
}

std::span<const float> Network::Input(const Program& program, int number, const BatchView& batch) {
  return number == TapeOp::kInput ? batch.inputs : Buffer(program, number);
}

LayerTensors Network::TensorsOf(const Program& program, const TapeOp& op, const BatchView& batch) {
  LayerTensors tensors{.y = Buffer(program, op.y),
                       .saved = Buffer(program, op.saved),
                       .scratch = Buffer(program, op.scratch),
                       .dy = Buffer(program, op.dy)};
  for (const int x : op.x) tensors.x.push_back(Input(program, x, batch));
  for (const int dx : op.dx) {
    tensors.dx.push_back(Buffer(program, dx));
    tensors.wants_dx.push_back(dx != TapeOp::kNone);
  }
  return tensors;
}

bool Network::CountsLoss() const {
  const Layout& layout = plan_.layers.back().inputs[0];
  for (const Mesh::Axis& axis : plan_.mesh.axes()) {
    const bool splits =
        std::any_of(layout.split.begin(), layout.split.end(), [&](const auto& axes) {
          return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
        });
    if (!splits && plan_.mesh.Coordinate(comms_.rank(), axis.name) != 0) return false;
  }
  return true;
}

LossPart Network::TakeLoss(const Program& program, const TapeOp& op, const BatchView& batch,
                           float loss_scale) {
  const absl::Time start = absl::Now();
  const GraphLayer& layer = graph_.layers().back();
  const Box& box = program.tape.places.back().inputs[0];
  const Shape here = box.shape();
  const int64_t classes = here[here.rank() - 1];
  const int64_t rows = here.elements() / classes;
  std::span<const int32_t> labels = batch.labels;
  if (here.rank() == 3 && here[1] != graph_.labels_per_sample()) {
    // Of every sample, the tokens that are here.
    labels_here_.clear();
    for (int64_t sample = 0; sample < here[0]; ++sample) {
      const auto first = batch.labels.begin() + sample * graph_.labels_per_sample();
      labels_here_.insert(labels_here_.end(), first + box.begin[1], first + box.end[1]);
    }
    labels = labels_here_;
  }
  CHECK_EQ(static_cast<int64_t>(labels.size()), rows) << "labels of " << layer.name;
  const Kernels::LossSums sums = kernels_.SoftmaxCrossEntropy(
      rows, classes, layer.settings.softmax_cross_entropy().label_smoothing(),
      Buffer(program, op.x[0]), labels, loss_scale, Buffer(program, op.dx[0]));
  if (observer_ != nullptr) {
    observer_->Played(program.tape, op, start, absl::ToDoubleSeconds(absl::Now() - start));
  }
  if (!CountsLoss()) return {};
  return {sums.loss, sums.correct, rows};
}

}  // namespace cadre
