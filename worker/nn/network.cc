#include "worker/nn/network.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "glog/logging.h"
#include "worker/nn/asking.h"

namespace cadre {

// A tape with the layers for it. Layers hold places by reference, so a program does not move.
struct Network::Program {
  Tape tape;
  std::vector<std::unique_ptr<Layer>> layers;
  // Operations up to and with the loss.
  size_t forward_ops = 0;
  // What the loss looks at here, and classes.
  int64_t label_rows = 0;
  int64_t classes = 0;
};

namespace {

bool IsMove(const TapeOp& op) {
  return op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
}

}  // namespace

Network::Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
                 Kernels& kernels, ParameterStore& parameters, MeshCommunicators& comms)
    : graph_(graph),
      index_(index),
      plan_(plan),
      seed_(seed),
      kernels_(kernels),
      device_(kernels.device()),
      parameters_(parameters),
      comms_(comms),
      exchange_(comms, kernels),
      upload_(kernels, graph.takes_tokens() ? DType::kFloat32 : kernels.activation_type()),
      sums_(device_, 2, "statistics") {
  if (device_.is_host()) return;
  fork_ = device_.MakeEvent();
  join_ = device_.MakeEvent();
}

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

absl::Status Network::Prepare(int64_t samples, bool training) {
  ProgramFor(samples, training);
  return device_.status();
}

Network::Program& Network::ProgramFor(int64_t samples, bool training) {
  std::unique_ptr<Program>& program = programs_[{samples, training}];
  if (program == nullptr) {
    program = MakeProgram(samples, training);
    ReserveFor(*program);
  }
  return *program;
}

std::unique_ptr<Network::Program> Network::MakeProgram(int64_t samples, bool training) {
  const Asking asking(device_);
  auto program = std::make_unique<Program>();
  program->tape =
      MakeTape(graph_, plan_, comms_.rank(), samples, training, kernels_.activation_type());
  const Tape& tape = program->tape;
  for (int l = 0; l + 1 < graph_.size(); ++l) {
    const auto at = static_cast<size_t>(l);
    AskFor(l);
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
  const Shape compared = tape.places.back().inputs[0].shape();
  program->classes = compared[compared.rank() - 1];
  program->label_rows = compared.elements() / program->classes;
  return program;
}

void Network::ReserveFor(const Program& program) {
  const Tape& tape = program.tape;
  // What is under way may still look at what is given back.
  if (!device_.is_host() && !device_.Synchronize().ok()) return;
  // For the sake of messages, as in AskFor.
  const Asking asking(device_, device_.is_host() ? "" : WhoNeedsActivations(tape));
  bool moved = false;
  if (const auto words = static_cast<size_t>(tape.words); words > memory_.size()) {
    moved = memory_.size() > 0;
    memory_ = DeviceArray<float>();
    memory_ = DeviceArray<float>(device_, words, "activations");
  }
  device_.set_asking(absl::StrCat("for batches of ", tape.samples));
  for (const TapeOp& op : tape.ops) {
    if (op.move.is_identity()) continue;
    const DType type = tape.buffers[static_cast<size_t>(op.y)].type;
    moved = exchange_.Reserve(op.move, type) || moved;
  }
  if (!device_.is_host()) {
    moved = upload_.Reserve(static_cast<size_t>(tape.input.shape().elements()),
                            static_cast<size_t>(program.label_rows)) ||
            moved;
  }
  if (moved) ++memory_moves_;
}

std::string Network::WhoNeedsActivations(const Tape& tape) const {
  return absl::StrCat("for batches of ", tape.samples, ", most at ",
                      LayerForPeople(graph_[LayerAtPeak(tape)].name));
}

void Network::AskFor(int layer) {
  // For the sake of messages; the host has no limit to tell of.
  if (!device_.is_host()) device_.set_asking(LayerForPeople(graph_[layer].name));
}

absl::Status Network::Load(const BatchView& batch) {
  // Any program of this size will do, and this one is there in the usual case.
  const bool evaluates =
      programs_.count({batch.samples, true}) == 0 && programs_.count({batch.samples, false}) > 0;
  return LoadFor(ProgramFor(batch.samples, !evaluates), batch);
}

absl::Status Network::LoadFor(const Program& program, const BatchView& batch) {
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(CheckTokens(batch.inputs));
  const std::span<const int32_t> labels = LabelsHere(program, batch);
  CHECK_EQ(static_cast<int64_t>(labels.size()), program.label_rows)
      << "labels of " << graph_.layers().back().name;
  kernels_.SetPosition(batch.first_position);
  if (device_.is_host()) {
    inputs_ = batch.inputs;
    labels_ = labels;
    return absl::OkStatus();
  }
  upload_.Upload(batch.inputs, labels);
  inputs_ = upload_.inputs();
  labels_ = upload_.labels();
  return device_.status();
}

absl::Status Network::CheckTokens(std::span<const float> tokens) const {
  for (const GraphLayer& layer : graph_.layers()) {
    if (layer.kind != LayerKind::kEmbedding) continue;
    const int64_t vocabulary = layer.parameters[0].shape[0];
    for (const float id : tokens) {
      if (id >= 0.0F && id < static_cast<float>(vocabulary) && std::floor(id) == id) continue;
      return absl::InvalidArgumentError(absl::StrCat("layer '", layer.name, "': ", id,
                                                     " is not a token; the vocabulary is 0 to ",
                                                     vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

std::span<const int32_t> Network::LabelsHere(const Program& program, const BatchView& batch) {
  const Box& box = program.tape.places.back().inputs[0];
  const Shape here = box.shape();
  if (here.rank() != 3 || here[1] == graph_.labels_per_sample()) return batch.labels;
  labels_here_.clear();
  for (int64_t sample = 0; sample < here[0]; ++sample) {
    const auto first = batch.labels.begin() + sample * graph_.labels_per_sample();
    labels_here_.insert(labels_here_.end(), first + box.begin[1], first + box.end[1]);
  }
  return labels_here_;
}

absl::Status Network::Play(int64_t samples, float loss_scale, double share) {
  CADRE_RETURN_IF_ERROR(PlayForward(samples, loss_scale, share));
  return PlayBackward(samples);
}

absl::Status Network::PlayForward(int64_t samples, float loss_scale, double share) {
  Program& program = ProgramFor(samples, /*training=*/true);
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(PlayRange(program, 0, program.forward_ops, {true, seed_, share}));
  CADRE_RETURN_IF_ERROR(TakeLoss(program, loss_scale));
  return listener_ == nullptr ? absl::OkStatus()
                              : listener_->AfterLoss(sums_.span(), LabelsCounted(program));
}

absl::Status Network::PlayBackward(int64_t samples) {
  Program& program = ProgramFor(samples, /*training=*/true);
  return PlayRange(program, program.forward_ops + 1, program.tape.ops.size(), {true, seed_, 1});
}

absl::Status Network::ForwardBackward(const BatchView& batch, float loss_scale, double share) {
  CADRE_RETURN_IF_ERROR(LoadFor(ProgramFor(batch.samples, /*training=*/true), batch));
  return Play(batch.samples, loss_scale, share);
}

absl::StatusOr<LossPart> Network::LossOfLastPass() {
  if (played_last_ == nullptr) return LossPart();
  return ReadLoss(*played_last_);
}

absl::StatusOr<LossPart> Network::Evaluate(const BatchView& batch) {
  Program& program = ProgramFor(batch.samples, /*training=*/false);
  CADRE_RETURN_IF_ERROR(LoadFor(program, batch));
  CADRE_RETURN_IF_ERROR(PlayRange(program, 0, program.forward_ops, {false, seed_, 1}));
  CADRE_RETURN_IF_ERROR(TakeLoss(program, 1.0F));
  return ReadLoss(program);
}

absl::StatusOr<int> Network::FirstNotFinite(const BatchView& batch) {
  Program& program = ProgramFor(batch.samples, /*training=*/true);
  CADRE_RETURN_IF_ERROR(LoadFor(program, batch));
  const Asking asking(device_);
  int first = graph_.size();
  for (size_t i = 0; i < program.forward_ops; ++i) {
    // One by one, so that every output is still there to be looked at.
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(PlayOp(program, op, {true, seed_, 1}));
    if (op.kind != TapeOpKind::kForward) continue;
    if (!kernels_.AllFinite(Buffer(program, op.y))) first = std::min(first, op.layer);
  }
  CADRE_RETURN_IF_ERROR(device_.status());
  return first;
}

absl::Status Network::PlayRange(Program& program, size_t begin, size_t end,
                                const PassContext& pass) {
  const Asking asking(device_);
  for (size_t i = begin; i < end; ++i) {
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(Before(op));
    if (op.with_next) {
      const TapeOp& next = program.tape.ops[++i];
      CADRE_RETURN_IF_ERROR(Before(next));
      CADRE_RETURN_IF_ERROR(PlayTogether(program, op, next));
      CADRE_RETURN_IF_ERROR(After(next));
    } else {
      CADRE_RETURN_IF_ERROR(PlayOp(program, op, pass));
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

absl::Status Network::PlayTogether(Program& program, const TapeOp& first, const TapeOp& second) {
  const bool halo = first.kind == TapeOpKind::kMove;
  const TapeOp& move = halo ? first : second;
  const TapeOp& work = halo ? second : first;
  AskFor(work.layer);
  if (device_.is_host()) return PlayTogetherOnHost(program, move, work);
  return observer_ == nullptr ? PlayTogetherOnLanes(program, move, work)
                              : PlayInTurn(program, move, work);
}

absl::Status Network::PlayTogetherOnHost(Program& program, const TapeOp& move, const TapeOp& work) {
  if (companion_ == nullptr) companion_ = std::make_unique<Companion>();
  const bool halo = move.kind == TapeOpKind::kMove;
  Layer& layer = *program.layers[static_cast<size_t>(work.layer)];
  const LayerTensors tensors = TensorsOf(program, work);
  const absl::Time start = absl::Now();
  const ConstValues moved_from = Input(program, move.x[0]);
  const Values moved_to = Buffer(program, move.y);
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

absl::Status Network::PlayTogetherOnLanes(Program& program, const TapeOp& move,
                                          const TapeOp& work) {
  const bool halo = move.kind == TapeOpKind::kMove;
  Layer& layer = *program.layers[static_cast<size_t>(work.layer)];
  const LayerTensors tensors = TensorsOf(program, work);
  const ConstValues moved_from = Input(program, move.x[0]);
  if (!halo) CADRE_RETURN_IF_ERROR(layer.gradient_parts()->BackwardInput(tensors));
  device_.Record(*fork_);
  absl::Status status;
  {
    const OnLane moves(device_, Lane::kMoves);
    device_.WaitFor(*fork_);
    status = exchange_.Run(move.move, moved_from, Buffer(program, move.y));
    device_.Record(*join_);
  }
  if (status.ok()) {
    status = halo ? layer.halo_parts()->ForwardInterior(moved_from, tensors)
                  : layer.gradient_parts()->BackwardParameters(tensors);
  }
  // Also after an error: whoever frees the memory waits for this lane.
  device_.WaitFor(*join_);
  if (halo && status.ok()) status = layer.halo_parts()->ForwardBorder(tensors);
  return status;
}

absl::Status Network::PlayInTurn(Program& program, const TapeOp& move, const TapeOp& work) {
  const bool halo = move.kind == TapeOpKind::kMove;
  Layer& layer = *program.layers[static_cast<size_t>(work.layer)];
  const LayerTensors tensors = TensorsOf(program, work);
  const ConstValues moved_from = Input(program, move.x[0]);
  const absl::Time start = NowOnDevice();
  if (!halo) CADRE_RETURN_IF_ERROR(layer.gradient_parts()->BackwardInput(tensors));
  const absl::Time leaves = NowOnDevice();
  CADRE_RETURN_IF_ERROR(exchange_.Run(move.move, moved_from, Buffer(program, move.y)));
  const absl::Time came = NowOnDevice();
  if (halo) {
    CADRE_RETURN_IF_ERROR(layer.halo_parts()->ForwardInterior(moved_from, tensors));
    CADRE_RETURN_IF_ERROR(layer.halo_parts()->ForwardBorder(tensors));
  } else {
    CADRE_RETURN_IF_ERROR(layer.gradient_parts()->BackwardParameters(tensors));
  }
  const double moving = absl::ToDoubleSeconds(came - leaves);
  seconds_moving_ += moving;
  observer_->Played(program.tape, move, leaves, moving);
  observer_->Played(program.tape, work, start,
                    absl::ToDoubleSeconds(NowOnDevice() - start) - moving);
  return absl::OkStatus();
}

absl::Time Network::NowOnDevice() {
  // An error is found by whoever asks for the device's status next.
  if (!device_.is_host()) device_.Synchronize().IgnoreError();
  return absl::Now();
}

absl::Status Network::PlayOp(Program& program, const TapeOp& op, const PassContext& pass) {
  const bool timed = observer_ != nullptr || (IsMove(op) && device_.is_host());
  if (!timed) return DoOp(program, op, pass);
  const absl::Time start = NowOnDevice();
  const absl::Status status = DoOp(program, op, pass);
  const double seconds = absl::ToDoubleSeconds(NowOnDevice() - start);
  if (IsMove(op)) seconds_moving_ += seconds;
  if (observer_ != nullptr) observer_->Played(program.tape, op, start, seconds);
  return status;
}

absl::Status Network::DoOp(Program& program, const TapeOp& op, const PassContext& pass) {
  AskFor(op.layer);
  switch (op.kind) {
    case TapeOpKind::kMove:
    case TapeOpKind::kMoveGradient:
      return exchange_.Run(op.move, Input(program, op.x[0]), Buffer(program, op.y));
    case TapeOpKind::kForward:
      return program.layers[static_cast<size_t>(op.layer)]->Forward(pass, TensorsOf(program, op));
    case TapeOpKind::kBackward:
      return program.layers[static_cast<size_t>(op.layer)]->Backward(pass, TensorsOf(program, op));
    case TapeOpKind::kAdd:
      Add(Buffer(program, op.x[0]), Buffer(program, op.x[1]), Buffer(program, op.y));
      return absl::OkStatus();
    case TapeOpKind::kLoss:
      break;
  }
  return absl::InternalError("the loss is taken by the network");
}

void Network::Add(Values a, Values b, Values sum) {
  if (sum.data() == b.data()) return kernels_.Add(a, sum);
  if (sum.data() != a.data()) kernels_.Copy(a, sum);
  kernels_.Add(b, sum);
}

Values Network::Buffer(const Program& program, int number) {
  if (number < 0) return {};
  const TapeBuffer& buffer = program.tape.buffers[static_cast<size_t>(number)];
  if (buffer.elements == 0) return {nullptr, 0, buffer.type};
  const std::span<float> words =
      memory_.span().subspan(static_cast<size_t>(buffer.offset), static_cast<size_t>(buffer.words));
  return {words.data(), static_cast<size_t>(buffer.elements), buffer.type};
}

ConstValues Network::Input(const Program& program, int number) {
  return number == TapeOp::kInput ? inputs_ : ConstValues(Buffer(program, number));
}

LayerTensors Network::TensorsOf(const Program& program, const TapeOp& op) {
  LayerTensors tensors{.y = Buffer(program, op.y),
                       .saved = Buffer(program, op.saved),
                       .scratch = Buffer(program, op.scratch),
                       .dy = Buffer(program, op.dy)};
  for (const int x : op.x) tensors.x.push_back(Input(program, x));
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

int64_t Network::LabelsCounted(const Program& program) const {
  return CountsLoss() ? program.label_rows : 0;
}

absl::Status Network::TakeLoss(const Program& program, float loss_scale) {
  const TapeOp& op = program.tape.ops[program.forward_ops];
  CHECK_EQ(static_cast<int64_t>(labels_.size()), program.label_rows) << "what was loaded";
  const Asking asking(device_);
  AskFor(op.layer);
  const absl::Time start = observer_ == nullptr ? absl::Time() : NowOnDevice();
  const v1::SoftmaxCrossEntropy& settings = graph_.layers().back().settings.softmax_cross_entropy();
  kernels_.SoftmaxCrossEntropyLater(program.label_rows, program.classes, settings.label_smoothing(),
                                    Buffer(program, op.x[0]), labels_, loss_scale,
                                    Buffer(program, op.dx[0]), sums_.span());
  played_last_ = &program;
  if (observer_ != nullptr) {
    observer_->Played(program.tape, op, start, absl::ToDoubleSeconds(NowOnDevice() - start));
  }
  return device_.status();
}

absl::StatusOr<LossPart> Network::ReadLoss(const Program& program) {
  double sums[2] = {};
  CADRE_RETURN_IF_ERROR(device_.CopyOut(sums_.data(), sums, sizeof(sums)));
  if (!CountsLoss()) return LossPart();
  return LossPart{sums[0], static_cast<int64_t>(sums[1]), program.label_rows};
}

}  // namespace cadre
