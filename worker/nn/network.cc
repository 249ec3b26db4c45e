// Plays (executes) tapes.
//
// plan/tape.cc compiles a rank's part of the model into a tape: a list of operations (forward,
// move, add, loss, backward) on buffers with fixed offsets in one block of memory, chosen so that
// buffers whose lifetimes do not overlap share memory. This file interprets it. All knowledge about
// parallelism is in the tape and in the moves between operations: the interpreter is the same for
// one worker and for every plan (the separation of program and placement in GSPMD, Xu et al.,
// 2021).
//
// A move can overlap with the layer next to it. The tape marks such pairs, and the layer does its
// work in two parts: while a halo is exchanged, forward computes the interior rows that do not need
// it (Dryden et al., IPDPS 2019, section III); while the gradient of the input is exchanged,
// backward computes the gradients of the parameters. BackgroundMove runs the move in a thread on
// the host, and on a separate stream on a device.
//
// Invariants. Equal plans give tapes with equal orders of the moves and layers in which ranks take
// part together, so no two ranks wait for each other.
// After Prepare and one pass, playing allocates nothing, so a pass can be captured as a graph; then
// only the contents of fixed memory (batch, position) may differ between passes. When the lifetime
// of a buffer has ended, any later operation may overwrite it.
//
// Scores in chunks. The loss computes the scores of a large vocabulary itself, some rows at a time,
// with the gradients of the layer that they belong to (TakeLossInChunks), so that they are never in
// memory as a whole.
//
// Pipelines. A step plays passes of several micro-batches in the order of plan/pipeline.h. Each
// micro-batch in flight has its own block of memory. Messages of all passes of a step are declared
// when it begins, numbered by the position of the pass that receives them. On devices, what ranks
// do together, messages and collectives alike, is enqueued by all of them in one order
// (placed_messages.cc); therefore the loss is summed before the last backward pass of the last
// stage, and StepMessages::PrecedeOp is called before every operation.
//
// Cost per operation, in addition to its kernels: one virtual call and, on the host or for an
// observer, two clock readings.
//
// Limits. A pass is sequential: independent branches of the graph do not run concurrently. There is
// one program per batch size; programs share the memory block, which is as large as the largest.
#include "worker/nn/network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "glog/logging.h"
#include "worker/nn/allocation_label.h"

namespace cadre {

LossPart& LossPart::operator+=(const LossPart& other) {
  loss += other.loss;
  correct += other.correct;
  samples += other.samples;
  return *this;
}

// Doubles represent the counts exactly.
absl::StatusOr<LossPart> SumOverGroup(const LossPart& mine, Communicator& group) {
  double sums[] = {mine.loss, 1.0 * mine.correct, 1.0 * mine.samples};
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<double>(sums)));
  LossPart all{.loss = sums[0]};
  all.correct = sums[1];
  all.samples = sums[2];
  return all;
}

namespace {

// Whether this rank counts its labels: exactly one of the ranks with the same labels does.
bool CountsLoss(const Plan& plan, int rank) {
  const Layout& layout = plan.layers.back().inputs[0];
  if (!plan.mesh.IsAt(rank, layout.at)) return false;
  for (const Mesh::Axis& axis : plan.mesh.axes()) {
    const bool splits =
        std::any_of(layout.split.begin(), layout.split.end(), [&](const auto& axes) {
          return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
        });
    const bool places = std::any_of(layout.at.begin(), layout.at.end(),
                                    [&](const auto& at) { return at.axis == axis.name; });
    if (!splits && !places && plan.mesh.Coordinate(rank, axis.name) != 0) return false;
  }
  return true;
}

}  // namespace

Network::Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
                 Backend& kernels, ParameterStore& parameters, MeshCommunicators& comms)
    : graph_(graph),
      plan_(plan),
      rank_(comms.rank()),
      seed_(seed),
      counts_loss_(CountsLoss(plan, rank_)),
      kernels_(kernels),
      device_(kernels.device()),
      programs_(graph, index, plan, seed, kernels, parameters, comms),
      sums_(device_, 2, "statistics"),
      background_(BackgroundMove::Make(device_)),
      messages_(graph, plan, programs_, comms, device_) {}

absl::Status Network::Prepare(int64_t samples, bool training) {
  programs_.For(samples, training);
  return device_.status();
}

absl::Status Network::Load(const BatchView& batch) {
  return programs_.batches().Load(programs_.For(batch.samples, /*training=*/true).tape, batch);
}

void Network::BeginStep(const PassOrder& order, std::span<const int64_t> samples) {
  const int stage = StageIn(order, plan_.mesh, rank_);
  CHECK_LE(order.InFlight(stage), programs_.in_flight());
  messages_.Begin(order, stage, samples, /*training=*/true, order.OfStage(stage));
  forwards_done_ = false;
}

absl::Status Network::EnterForward(const BatchView& batch, bool training) {
  const Tape& tape = programs_.For(batch.samples, training).tape;
  CADRE_RETURN_IF_ERROR(programs_.batches().Load(tape, batch));
  messages_.Begin(one_batch_, /*stage=*/0, {&batch.samples, 1}, training,
                  one_batch_.OfStage(0).first(1));
  return Enter({});
}

absl::Status Network::Enter(Pass pass) {
  messages_.Enter(pass);
  CADRE_RETURN_IF_ERROR(EndForwards());
  CADRE_RETURN_IF_ERROR(messages_.PrecedePosition(messages_.position()));
  if (messages_.IsSending()) {
    CADRE_RETURN_IF_ERROR(Moving([this] { return messages_.AwaitSent(); }));
  }
  messages_.StartReceiving();
  return absl::OkStatus();
}

absl::Status Network::PlayForward(int micro_batch, float loss_scale, double share) {
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(Enter({.backward = false, .micro_batch = micro_batch}));
  Program& program = messages_.program();
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->BeginForward());
  CADRE_RETURN_IF_ERROR(PlayPass(program, TrainingPass(share)));
  CADRE_RETURN_IF_ERROR(TakeLoss(program, loss_scale));
  if (listener_ == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(listener_->AfterLoss(sums_.span(), counts_loss_ ? program.label_rows : 0));
  // In a pipeline other stages have not come to the same place (Enter).
  const PassOrder& order = messages_.order();
  if (order.stages() > 1 || micro_batch + 1 < order.micro_batches()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(messages_.PrecedePosition(messages_.position() + 1));
  return listener_->AfterForwards();
}

absl::Status Network::EndForwards() {
  const PassOrder& order = messages_.order();
  const int last_backward = order.Position(
      order.stages() - 1, {.backward = true, .micro_batch = order.micro_batches() - 1});
  if (order.stages() == 1 || listener_ == nullptr || forwards_done_ ||
      messages_.position() < last_backward) {
    return absl::OkStatus();
  }
  forwards_done_ = true;
  CADRE_RETURN_IF_ERROR(messages_.PrecedePosition(last_backward));
  return listener_->AfterForwards();
}

absl::Status Network::PlayBackward(int micro_batch) {
  CADRE_RETURN_IF_ERROR(Enter({.backward = true, .micro_batch = micro_batch}));
  CADRE_RETURN_IF_ERROR(PlayPass(messages_.program(), TrainingPass(1)));
  // The caller may exchange gradients now.
  return messages_.in_last_pass() ? messages_.PrecedeAll() : absl::OkStatus();
}

absl::Status Network::ForwardBackward(const BatchView& batch, float loss_scale, double share) {
  CADRE_RETURN_IF_ERROR(Load(batch));
  BeginStep(one_batch_, {&batch.samples, 1});
  CADRE_RETURN_IF_ERROR(PlayForward(0, loss_scale, share));
  CADRE_RETURN_IF_ERROR(PlayBackward(0));
  return EndStep();
}

absl::StatusOr<LossPart> Network::Evaluate(const BatchView& batch) {
  CADRE_RETURN_IF_ERROR(EnterForward(batch, /*training=*/false));
  Program& program = messages_.program();
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->BeginForward());
  CADRE_RETURN_IF_ERROR(PlayPass(program, {.seed = seed_}));
  CADRE_RETURN_IF_ERROR(EndStep());
  CADRE_RETURN_IF_ERROR(TakeLoss(program, 1.0F));
  double sums[2] = {};
  CADRE_RETURN_IF_ERROR(device_.CopyOut(sums_.data(), sums, sizeof(sums)));
  if (!counts_loss_) return LossPart();
  LossPart part{.loss = sums[0], .samples = program.label_rows};
  part.correct = sums[1];
  return part;
}

absl::StatusOr<int> Network::FirstNotFinite(const BatchView& batch, bool training) {
  CADRE_RETURN_IF_ERROR(EnterForward(batch, training));
  const AllocationLabel allocation_label(device_);
  Program& program = messages_.program();
  int first = graph_.size();
  for (size_t i = 0; i < program.forward_ops; ++i) {
    // One operation at a time: later ones may overwrite its output.
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(messages_.PrecedeOp(op));
    CADRE_RETURN_IF_ERROR(
        PlayOp(program, op, training ? TrainingPass(1) : PassContext{.seed = seed_}));
    if (op.kind != TapeOpKind::kForward) continue;
    if (!kernels_.memory().AllFinite(Buffer(program, op.y))) first = std::min(first, op.layer);
  }
  if (const TapeOp& loss = program.tape.ops[program.forward_ops]; loss.scorer != TapeOp::kNone) {
    ForEachChunk(program, loss, [&](Interval /*rows*/, Values scores) {
      if (!kernels_.memory().AllFinite(scores)) first = std::min(first, loss.scorer);
    });
  }
  CADRE_RETURN_IF_ERROR(EndStep());
  CADRE_RETURN_IF_ERROR(device_.status());
  return first;
}

absl::Status Network::PlayPass(Program& program, const PassContext& pass) {
  const AllocationLabel allocation_label(device_);
  const Program::Range range = program.OfPass(messages_.pass().backward);
  for (size_t i = range.begin; i < range.end; ++i) {
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(messages_.PrecedeOp(op));
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

absl::Status Network::EndStep() {
  return messages_.exist() ? Moving([this] { return messages_.AwaitAll(); }) : absl::OkStatus();
}

absl::Status Network::Moving(const std::function<absl::Status()>& wait) {
  const absl::Time start = Now();
  absl::Status status = wait();
  seconds_moving_ += absl::ToDoubleSeconds(Now() - start);
  return status;
}

absl::Status Network::Before(const TapeOp& op) {
  // Weights that are used again have been there since the forward pass.
  const bool uses_weights =
      op.kind == TapeOpKind::kForward && !op.again && !graph_[op.layer].parameters.empty();
  return uses_weights && listener_ != nullptr ? listener_->BeforeForward(op.layer)
                                              : absl::OkStatus();
}

absl::Status Network::After(const TapeOp& op) {
  const bool has_gradients =
      op.kind == TapeOpKind::kBackward && !graph_[op.layer].parameters.empty();
  return has_gradients && listener_ != nullptr ? listener_->AfterBackward(op.layer)
                                               : absl::OkStatus();
}

absl::Status Network::PlayTogether(Program& program, const TapeOp& first, const TapeOp& second) {
  const bool halo = first.kind == TapeOpKind::kMove;
  const TapeOp& move = halo ? first : second;
  const TapeOp& work = halo ? second : first;
  Layer& layer = *program.layers[work.layer];
  const LayerTensors tensors = TensorsOf(program, work);
  const ConstValues moved_from = Input(program, move.x[0]);
  const Values moved_to = Buffer(program, move.y);
  programs_.LabelAllocations(work.layer);
  const absl::Time start = Now();
  // Both operations are completed even if one fails, because they share memory.
  absl::Status status;
  if (!halo) status = layer.gradient_parts()->BackwardInput(tensors);
  const absl::Time starting = Now();
  if (move.kind == TapeOpKind::kSend) {
    messages_.Send(program, move);
  } else {
    background_->Start([&] { return programs_.exchange().Run(move.move, moved_from, moved_to); });
  }
  const absl::Time started = Now();
  status.Update(halo ? layer.halo_parts()->ForwardInterior(moved_from, tensors)
                     : layer.gradient_parts()->BackwardParameters(tensors));
  const absl::Time waiting = Now();
  if (move.kind != TapeOpKind::kSend) status.Update(background_->Wait());
  const absl::Time arrived = Now();
  if (halo && status.ok()) status = layer.halo_parts()->ForwardBorder(tensors);
  // The part of the move's time that the work did not hide. While a device is observed, this is the
  // whole time of the move, because Now waits for its end.
  const absl::Duration moving = (started - starting) + (arrived - waiting);
  seconds_moving_ += absl::ToDoubleSeconds(moving);
  if (observer_ != nullptr) {
    observer_->Played(program.tape, move, arrived - moving, absl::ToDoubleSeconds(moving));
    observer_->Waited(absl::ToDoubleSeconds(moving));
    observer_->Played(program.tape, work, start, absl::ToDoubleSeconds(Now() - start - moving));
  }
  return status;
}

absl::Time Network::Now() {
  if (!device_.is_host()) {
    if (observer_ == nullptr) return absl::Time();
    // Errors stay in the device's status.
    device_.Synchronize().IgnoreError();
  }
  return absl::Now();
}

absl::Status Network::PlayOp(Program& program, const TapeOp& op, const PassContext& pass) {
  const absl::Time start = Now();
  const absl::Status status = DoOp(program, op, pass);
  const double seconds = absl::ToDoubleSeconds(Now() - start);
  if (IsMove(op)) seconds_moving_ += seconds;
  if (observer_ != nullptr && !op.in_loss) observer_->Played(program.tape, op, start, seconds);
  return status;
}

absl::Status Network::DoOp(Program& program, const TapeOp& op, const PassContext& pass) {
  programs_.LabelAllocations(op.layer);
  switch (op.kind) {
    case TapeOpKind::kMove:
    case TapeOpKind::kMoveGradient:
      return programs_.exchange().Run(op.move, Input(program, op.x[0]), Buffer(program, op.y));
    case TapeOpKind::kSend:
      messages_.Send(program, op);
      return absl::OkStatus();
    case TapeOpKind::kReceive:
      return messages_.Receive(program, op);
    case TapeOpKind::kForward:
      return program.layers[op.layer]->Forward(pass, TensorsOf(program, op));
    case TapeOpKind::kBackward:
      if (op.in_loss) return absl::OkStatus();
      return program.layers[op.layer]->Backward(pass, TensorsOf(program, op));
    case TapeOpKind::kAdd:
      kernels_.pointwise().Sum(Buffer(program, op.x[0]), Buffer(program, op.x[1]),
                               Buffer(program, op.y));
      return absl::OkStatus();
    case TapeOpKind::kLoss:
      break;
  }
  return absl::InternalError("the network computes the loss");
}

LayerTensors Network::TensorsOf(const Program& program, const TapeOp& op) {
  LayerTensors tensors{.y = Buffer(program, op.y),
                       .saved = Buffer(program, op.saved),
                       .scratch = Buffer(program, op.scratch),
                       .dy = Buffer(program, op.dy),
                       .relu = op.relu,
                       .adds_dx = op.adds_dx,
                       .again = op.again,
                       .addend = Buffer(program, op.addend),
                       .other_dy = Buffer(program, op.other_dy),
                       .total_dy = Buffer(program, op.total_dy)};
  for (const int x : op.x) tensors.x.push_back(Input(program, x));
  for (const int dx : op.dx) {
    tensors.dx.push_back(Buffer(program, dx));
    tensors.wants_dx.push_back(dx != TapeOp::kNone);
  }
  return tensors;
}

PassContext Network::TrainingPass(double share) const {
  const std::span<const float> candidates = programs_.batches().candidates();
  return {.training = true,
          .seed = seed_,
          .share = share,
          .candidates = candidates.first(candidates.size() / 2),
          .candidate_offsets = candidates.subspan(candidates.size() / 2)};
}

void Network::ForEachChunk(Program& program, const TapeOp& op,
                           absl::FunctionRef<void(Interval rows, Values scores)> use) {
  CHECK(device_.is_host());
  RowParts& layer = *program.layers[op.scorer]->row_parts();
  for (int64_t row = 0; row < program.label_rows; row += op.chunk_rows) {
    const Interval rows{row, std::min(program.label_rows, row + op.chunk_rows)};
    const Values scores = Buffer(program, op.scratch).subspan(0, rows.size() * program.classes);
    layer.ForwardRows(rows, Input(program, op.x[0]), scores);
    use(rows, scores);
  }
}

absl::Status Network::TakeLossInChunks(Program& program, const TapeOp& op, float loss_scale) {
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->BeforeForward(op.scorer));
  programs_.LabelAllocations(op.scorer);
  const bool training = program.tape.training;
  RowParts& layer = *program.layers[op.scorer]->row_parts();
  const float smoothing = graph_.layers().back().settings.softmax_cross_entropy().label_smoothing();
  const std::span<const int32_t> labels = programs_.batches().labels();
  const absl::Time begin = Now();
  absl::Time computed = begin;
  absl::Duration forward, losses, backward;
  double sums[2] = {};
  ForEachChunk(program, op, [&](Interval rows, Values scores) {
    const absl::Time start = Now();
    forward += start - computed;
    const LossSums found = kernels_.pointwise().SoftmaxCrossEntropy(
        rows.size(), program.classes, smoothing, scores, labels.subspan(rows.begin, rows.size()),
        loss_scale, training ? scores : Values());
    sums[0] += found.loss;
    sums[1] += found.correct;
    computed = Now();
    losses += computed - start;
    if (!training) return;
    const absl::Time found_at = computed;
    layer.BackwardRows(rows, Input(program, op.x[0]), scores, Buffer(program, op.dx[0]));
    computed = Now();
    backward += computed - found_at;
  });
  std::copy_n(sums, 2, sums_.span().begin());
  if (observer_ != nullptr) ObserveChunks(program.tape, op, begin, forward, losses, backward);
  return device_.status();
}

// As if the operations had been played one after the other.
void Network::ObserveChunks(const Tape& tape, const TapeOp& op, absl::Time begin,
                            absl::Duration forward, absl::Duration losses,
                            absl::Duration backward) {
  TapeOp of_scorer;
  of_scorer.kind = TapeOpKind::kForward;
  of_scorer.layer = op.scorer;
  of_scorer.x = op.x;
  observer_->Played(tape, of_scorer, begin, absl::ToDoubleSeconds(forward));
  observer_->Played(tape, op, begin + forward, absl::ToDoubleSeconds(losses));
  if (!tape.training) return;
  of_scorer.kind = TapeOpKind::kBackward;
  of_scorer.dx = op.dx;
  observer_->Played(tape, of_scorer, begin + forward + losses, absl::ToDoubleSeconds(backward));
}

absl::Status Network::TakeLoss(Program& program, float loss_scale) {
  const TapeOp& op = program.tape.ops[program.forward_ops];
  CHECK_EQ(std::ssize(programs_.batches().labels()), program.label_rows) << "what was loaded";
  const AllocationLabel allocation_label(device_);
  if (op.scorer != TapeOp::kNone) return TakeLossInChunks(program, op, loss_scale);
  programs_.LabelAllocations(op.layer);
  const absl::Time start = Now();
  const v1::SoftmaxCrossEntropy& settings = graph_.layers().back().settings.softmax_cross_entropy();
  kernels_.pointwise().SoftmaxCrossEntropyAsync(
      program.label_rows, program.classes, settings.label_smoothing(), Buffer(program, op.x[0]),
      programs_.batches().labels(), loss_scale, Buffer(program, op.dx[0]), sums_.span());
  if (observer_ != nullptr) {
    observer_->Played(program.tape, op, start, absl::ToDoubleSeconds(Now() - start));
  }
  return device_.status();
}

}  // namespace cadre
