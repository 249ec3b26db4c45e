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
// Pipelines. A step plays passes of several micro-batches in the order of plan/pipeline.h. Each
// micro-batch in flight has its own block of memory. Messages of all passes of a step are declared
// when it begins, numbered by the position of the pass that receives them. On devices, what ranks
// do together, messages and collectives alike, is enqueued by all of them in one order
// (placed_messages.cc); therefore the loss is summed before the last backward pass of the last
// stage, and PrecedeOp is called before every operation.
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
#include "worker/nn/layer_kinds.h"

namespace cadre {

// A tape with its layers. Layers refer to regions of the tape, so a program must not be moved.
struct Network::Program {
  Tape tape;
  std::vector<std::unique_ptr<Layer>> layers;
  // Number of operations before the loss.
  size_t forward_ops = 0;
  // Positions of the operations kReceive.
  std::vector<size_t> receives;
  // Rows of the loss's input on this rank, and number of scores in each.
  int64_t label_rows = 0;
  int64_t classes = 0;
};

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

Network::Network(const Graph& graph, const ParameterIndex& index, const Plan& plan, uint64_t seed,
                 Backend& kernels, ParameterStore& parameters, MeshCommunicators& comms)
    : graph_(graph),
      evaluated_graph_(graph.ForEvaluation()),
      index_(index),
      plan_(plan),
      seed_(seed),
      kernels_(kernels),
      device_(kernels.device()),
      fusion_(device_.is_host() ? Fusion::kHost : Fusion::kCommon),
      parameters_(parameters),
      comms_(comms),
      exchange_(comms, kernels),
      batches_(graph, plan, comms.rank(), seed, kernels),
      sums_(device_, 2, "statistics"),
      background_(BackgroundMove::Make(device_)) {
  for (const GraphLayer& layer : graph.layers())
    labels_of_layers_.push_back(LayerDisplayName(layer.name));
}

Network::~Network() = default;

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
  const AllocationLabel allocation_label(device_);
  const Graph& graph = training ? graph_ : evaluated_graph_;
  auto program = std::make_unique<Program>();
  program->tape =
      MakeTape(graph, plan_, comms_.rank(), samples, training, kernels_.activation_type(), fusion_,
               device_.is_host() ? v1::Cluster::CPU : v1::Cluster::CUDA);
  const Tape& tape = program->tape;
  orders_ = tape.orders;
  for (int l = 0; l + 1 < graph.size(); ++l) {
    if (!plan_.mesh.IsAt(comms_.rank(), plan_.layers[l].at)) {
      program->layers.push_back(nullptr);
      continue;
    }
    LabelAllocations(l);
    const int tied_to = graph[l].tied_to;
    program->layers.push_back(
        MakeLayer({.layer = graph[l],
                   .layouts = plan_.layers[l],
                   .region = tape.regions[l],
                   .samples = samples,
                   .number = l,
                   .kernels = kernels_,
                   .comms = comms_,
                   .parameters = parameters_.OfLayer(index_, l),
                   .tied_weight = tied_to == GraphLayer::kNotTied
                                      ? LocalTensor()
                                      : parameters_.OfLayer(index_, tied_to)[0]}));
  }
  const auto loss = std::find_if(tape.ops.begin(), tape.ops.end(),
                                 [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
  program->forward_ops = loss - tape.ops.begin();
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    if (tape.ops[i].kind == TapeOpKind::kReceive) program->receives.push_back(i);
  }
  const Shape compared = tape.regions.back().inputs[0].shape();
  program->classes = compared[compared.rank() - 1];
  program->label_rows = LabelsIn(tape);
  return program;
}

void Network::ReserveFor(const Program& program) {
  const Tape& tape = program.tape;
  // Work that is still running may use memory that is freed here.
  if (!device_.Synchronize().ok()) return;
  const AllocationLabel allocation_label(device_,
                                         absl::StrCat("for batches of ", tape.samples, ", most at ",
                                                      labels_of_layers_[LayerAtPeak(tape)]));
  bool moved = false;
  const int64_t block_words = tape.training ? std::max(block_words_, tape.words) : block_words_;
  const int64_t words = std::max(in_flight_ * block_words, tape.words);
  if (words > std::ssize(memory_.span())) {
    moved = memory_.size() > 0;
    // Frees the old memory first, to keep the peak low.
    memory_ = DeviceArray<float>();
    memory_ = DeviceArray<float>(device_, words, "activations");
  }
  if (block_words > block_words_) {
    moved = moved || block_words_ > 0;
    block_words_ = block_words;
  }
  device_.set_allocation_label(absl::StrCat("for batches of ", tape.samples));
  for (const TapeOp& op : tape.ops) {
    if (!PacksOutsideOfTape(op)) continue;
    const DType type = tape.buffers[op.y].type;
    moved = exchange_.Reserve(op.move, type) || moved;
  }
  moved = batches_.Reserve(tape) || moved;
  if (moved) ++memory_moves_;
}

void Network::LabelAllocations(int layer) {
  device_.set_allocation_label(labels_of_layers_[layer]);
}

absl::Status Network::Load(const BatchView& batch) {
  return batches_.Load(ProgramFor(batch.samples, /*training=*/true).tape, batch);
}

void Network::BeginStep(const PassOrder& order, std::span<const int64_t> samples) {
  stage_ = StageIn(order, plan_.mesh, comms_.rank());
  CHECK_LE(order.InFlight(stage_), in_flight_);
  Begin(order, samples, /*training=*/true, order.OfStage(stage_));
}

void Network::BeginForward(int64_t samples, bool training) {
  stage_ = 0;
  Begin(one_batch_, {&samples, 1}, training, one_batch_.OfStage(0).first(1));
}

void Network::Begin(const PassOrder& order, std::span<const int64_t> samples, bool training,
                    std::span<const Pass> passes) {
  CHECK_EQ(order.micro_batches(), std::ssize(samples));
  // The numbers of the step before end here. They may wrap around: a step has fewer than 2^31, and
  // they are compared modulo 2^32.
  first_number_ += numbers_;
  order_ = &order;
  samples_.assign(samples.begin(), samples.end());
  passes_.assign(passes.begin(), passes.end());
  playing_ = 0;
  training_ = training;
  forwards_done_ = false;
  sending_.assign(in_flight_, {});
  std::vector<uint32_t> numbers;
  bool receives = false;
  for (const Pass pass : passes) {
    const Program& program = ProgramFor(samples[pass.micro_batch], training);
    const Range range = RangeOf(program, pass.backward);
    for (size_t i = range.begin; i < range.end; ++i) {
      const TapeOp& op = program.tape.ops[i];
      receives = receives || op.kind == TapeOpKind::kReceive;
      if (op.kind == TapeOpKind::kSend)
        numbers.push_back(MessageNumber(order, graph_, plan_, op, pass, orders_));
    }
  }
  numbers_ = order.Positions() * orders_;
  if (messages_ == nullptr) {
    if (numbers.empty() && !receives) return;
    messages_ = PlacedMessages::Make(comms_.transport(), device_);
  }
  // In the order of the receives.
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t& number : numbers) number += first_number_;
  messages_->Expect(numbers);
}

Network::Range Network::RangeOf(const Program& program, bool backward) {
  if (!backward) return {0, program.forward_ops};
  return {program.forward_ops + 1, program.tape.ops.size()};
}

absl::Status Network::Enter(Pass pass) {
  // Not always the pass after the one before: a recorded pass is not entered.
  playing_ = std::ranges::find(passes_, pass) - passes_.begin();
  CHECK_LT(playing_, passes_.size()) << "the step has no such pass";
  const int position = order_->Position(stage_, pass);
  CADRE_RETURN_IF_ERROR(EndForwards(position));
  CADRE_RETURN_IF_ERROR(Precede(FirstNumber(position)));
  std::vector<uint32_t>& sending = sending_[BlockOf(pass)];
  if (!sending.empty()) {
    CADRE_RETURN_IF_ERROR(Moving([&] { return messages_->AwaitSent(sending); }));
    sending.clear();
  }
  if (receiving_ == nullptr) ReceiveNext(0);
  return absl::OkStatus();
}

absl::Status Network::PlayForward(int micro_batch, float loss_scale, double share) {
  Program& program = ProgramFor(samples_[micro_batch], /*training=*/true);
  CADRE_RETURN_IF_ERROR(device_.status());
  const Pass pass{.backward = false, .micro_batch = micro_batch};
  CADRE_RETURN_IF_ERROR(Enter(pass));
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->BeginForward());
  CADRE_RETURN_IF_ERROR(PlayRange(program, RangeOf(program, false), TrainingPass(share)));
  CADRE_RETURN_IF_ERROR(TakeLoss(program, loss_scale));
  if (listener_ == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(listener_->AfterLoss(sums_.span(), CountsLoss() ? program.label_rows : 0));
  // In a pipeline other stages have not come to the same place (Enter).
  if (order_->stages() > 1 || micro_batch + 1 < order_->micro_batches()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(Precede(FirstNumber(order_->Position(stage_, pass) + 1)));
  return listener_->AfterForwards();
}

absl::Status Network::EndForwards(int position) {
  const int last_backward = order_->Position(
      order_->stages() - 1, {.backward = true, .micro_batch = order_->micro_batches() - 1});
  if (order_->stages() == 1 || listener_ == nullptr || forwards_done_ || position < last_backward) {
    return absl::OkStatus();
  }
  forwards_done_ = true;
  CADRE_RETURN_IF_ERROR(Precede(FirstNumber(last_backward)));
  return listener_->AfterForwards();
}

absl::Status Network::PlayBackward(int micro_batch) {
  Program& program = ProgramFor(samples_[micro_batch], /*training=*/true);
  const Pass pass{.backward = true, .micro_batch = micro_batch};
  CADRE_RETURN_IF_ERROR(Enter(pass));
  CADRE_RETURN_IF_ERROR(PlayRange(program, RangeOf(program, true), TrainingPass(1)));
  // The caller may exchange gradients now.
  if (messages_ == nullptr || pass != passes_.back()) return absl::OkStatus();
  return messages_->PrecedeAll();
}

absl::Status Network::ForwardBackward(const BatchView& batch, float loss_scale, double share) {
  CADRE_RETURN_IF_ERROR(batches_.Load(ProgramFor(batch.samples, /*training=*/true).tape, batch));
  BeginStep(one_batch_, {&batch.samples, 1});
  CADRE_RETURN_IF_ERROR(PlayForward(0, loss_scale, share));
  CADRE_RETURN_IF_ERROR(PlayBackward(0));
  return EndStep();
}

absl::StatusOr<LossPart> Network::Evaluate(const BatchView& batch) {
  Program& program = ProgramFor(batch.samples, /*training=*/false);
  CADRE_RETURN_IF_ERROR(batches_.Load(program.tape, batch));
  BeginForward(batch.samples, /*training=*/false);
  CADRE_RETURN_IF_ERROR(Enter({}));
  if (listener_ != nullptr) CADRE_RETURN_IF_ERROR(listener_->BeginForward());
  CADRE_RETURN_IF_ERROR(PlayRange(program, RangeOf(program, false), {.seed = seed_}));
  CADRE_RETURN_IF_ERROR(EndStep());
  CADRE_RETURN_IF_ERROR(TakeLoss(program, 1.0F));
  double sums[2] = {};
  CADRE_RETURN_IF_ERROR(device_.CopyOut(sums_.data(), sums, sizeof(sums)));
  if (!CountsLoss()) return LossPart();
  LossPart part{.loss = sums[0], .samples = program.label_rows};
  part.correct = sums[1];
  return part;
}

absl::StatusOr<int> Network::FirstNotFinite(const BatchView& batch, bool training) {
  Program& program = ProgramFor(batch.samples, training);
  CADRE_RETURN_IF_ERROR(batches_.Load(program.tape, batch));
  const AllocationLabel allocation_label(device_);
  int first = graph_.size();
  BeginForward(batch.samples, training);
  CADRE_RETURN_IF_ERROR(Enter({}));
  for (size_t i = 0; i < program.forward_ops; ++i) {
    // One operation at a time: later ones may overwrite its output.
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(PrecedeOp(op));
    CADRE_RETURN_IF_ERROR(
        PlayOp(program, op, training ? TrainingPass(1) : PassContext{.seed = seed_}));
    if (op.kind != TapeOpKind::kForward) continue;
    if (!kernels_.memory().AllFinite(Buffer(program, op.y))) first = std::min(first, op.layer);
  }
  CADRE_RETURN_IF_ERROR(EndStep());
  CADRE_RETURN_IF_ERROR(device_.status());
  return first;
}

absl::Status Network::PlayRange(Program& program, Range range, const PassContext& pass) {
  const AllocationLabel allocation_label(device_);
  for (size_t i = range.begin; i < range.end; ++i) {
    const TapeOp& op = program.tape.ops[i];
    CADRE_RETURN_IF_ERROR(PrecedeOp(op));
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
  return messages_ == nullptr ? absl::OkStatus() : Moving([this] { return messages_->AwaitAll(); });
}

// The order of a send is that of its receive.
absl::Status Network::PrecedeOp(const TapeOp& op) {
  if (messages_ == nullptr || op.kind == TapeOpKind::kSend) return absl::OkStatus();
  return messages_->Precede(FirstNumber(order_->Position(stage_, passes_[playing_])) + op.order);
}

absl::Status Network::Moving(const std::function<absl::Status()>& wait) {
  const absl::Time start = Now();
  absl::Status status = wait();
  seconds_moving_ += absl::ToDoubleSeconds(Now() - start);
  return status;
}

void Network::Send(const Program& program, const TapeOp& op) {
  std::vector<Transfer> transfers =
      exchange_.Pack(op.move.steps[0], Input(program, op.x[0]), Buffer(program, op.scratch));
  for (const Transfer& transfer : transfers) comms_.AddSent(transfer.data.size());
  const Pass pass = passes_[playing_];
  const uint32_t number = NumberOf(op, pass);
  sending_[BlockOf(pass)].push_back(number);
  messages_->Post(number, std::move(transfers));
}

void Network::ReceiveNext(size_t from) {
  for (size_t p = playing_; p < std::min(passes_.size(), playing_ + 2); ++p) {
    const Pass pass = passes_[p];
    if (p != playing_) {
      // What forward sends lives until the loss, where the memory of receives in backward begins.
      const std::vector<uint32_t>& sending = sending_[BlockOf(pass)];
      const bool is_free = BlockOf(pass) != BlockOf(passes_[playing_]) &&
                           (pass.backward || sending.empty() || messages_->AreSent(sending));
      if (!is_free) return;
      from = 0;
    }
    const Program& program = ProgramFor(samples_[pass.micro_batch], training_);
    const Range range = RangeOf(program, pass.backward);
    const auto next = std::ranges::lower_bound(program.receives, std::max(from, range.begin));
    if (next == program.receives.end() || *next >= range.end) continue;
    return StartReceiving(program, program.tape.ops[*next], pass);
  }
}

void Network::StartReceiving(const Program& program, const TapeOp& op, Pass pass) {
  receiving_ = &op;
  const int block = BlockOf(pass);
  std::vector<Transfer> transfers = exchange_.PrepareReceives(
      op.move.steps[0], BufferIn(block, program, op.scratch), BufferIn(block, program, op.y));
  messages_->StartReceiving(NumberOf(op, pass), std::move(transfers));
}

absl::Status Network::Receive(const Program& program, const TapeOp& op) {
  CHECK(receiving_ == &op) << "messages are received in the order of the tape";
  const absl::Status status = messages_->FinishReceiving();
  receiving_ = nullptr;
  CADRE_RETURN_IF_ERROR(status);
  exchange_.FinishReceives(op.move.steps[0], Input(program, op.x[0]), Buffer(program, op.scratch),
                           Buffer(program, op.y));
  ReceiveNext(&op - program.tape.ops.data() + 1);
  return absl::OkStatus();
}

absl::Status Network::Before(const TapeOp& op) {
  const bool uses_weights = op.kind == TapeOpKind::kForward && !graph_[op.layer].parameters.empty();
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
  LabelAllocations(work.layer);
  const absl::Time start = Now();
  // Both operations are completed even if one fails, because they share memory.
  absl::Status status;
  if (!halo) status = layer.gradient_parts()->BackwardInput(tensors);
  const absl::Time starting = Now();
  if (move.kind == TapeOpKind::kSend) {
    Send(program, move);
  } else {
    background_->Start([&] { return exchange_.Run(move.move, moved_from, moved_to); });
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
  if (observer_ != nullptr) observer_->Played(program.tape, op, start, seconds);
  return status;
}

absl::Status Network::DoOp(Program& program, const TapeOp& op, const PassContext& pass) {
  LabelAllocations(op.layer);
  switch (op.kind) {
    case TapeOpKind::kMove:
    case TapeOpKind::kMoveGradient:
      return exchange_.Run(op.move, Input(program, op.x[0]), Buffer(program, op.y));
    case TapeOpKind::kSend:
      Send(program, op);
      return absl::OkStatus();
    case TapeOpKind::kReceive:
      return Receive(program, op);
    case TapeOpKind::kForward:
      return program.layers[op.layer]->Forward(pass, TensorsOf(program, op));
    case TapeOpKind::kBackward:
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

Values Network::BufferIn(int block, const Program& program, int number) {
  if (number < 0) return {};
  const TapeBuffer& buffer = program.tape.buffers[number];
  if (buffer.elements == 0) return {nullptr, 0, buffer.type};
  // Offsets and sizes in memory count units of four bytes; elements may be narrower.
  const std::span<float> memory =
      memory_.span().subspan(block * block_words_ + buffer.offset, buffer.words);
  return Values(memory.data(), buffer.elements, buffer.type);
}

ConstValues Network::Input(const Program& program, int number) {
  return number == TapeOp::kInput ? batches_.inputs() : ConstValues(Buffer(program, number));
}

LayerTensors Network::TensorsOf(const Program& program, const TapeOp& op) {
  LayerTensors tensors{.y = Buffer(program, op.y),
                       .saved = Buffer(program, op.saved),
                       .scratch = Buffer(program, op.scratch),
                       .dy = Buffer(program, op.dy),
                       .relu = op.relu,
                       .adds_dx = op.adds_dx,
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

bool Network::CountsLoss() const {
  const Layout& layout = plan_.layers.back().inputs[0];
  if (!plan_.mesh.IsAt(comms_.rank(), layout.at)) return false;
  for (const Mesh::Axis& axis : plan_.mesh.axes()) {
    const bool splits =
        std::any_of(layout.split.begin(), layout.split.end(), [&](const auto& axes) {
          return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
        });
    const bool places = std::any_of(layout.at.begin(), layout.at.end(),
                                    [&](const auto& at) { return at.axis == axis.name; });
    if (!splits && !places && plan_.mesh.Coordinate(comms_.rank(), axis.name) != 0) return false;
  }
  return true;
}

PassContext Network::TrainingPass(double share) const {
  const std::span<const float> candidates = batches_.candidates();
  return {.training = true,
          .seed = seed_,
          .share = share,
          .candidates = candidates.first(candidates.size() / 2),
          .candidate_offsets = candidates.subspan(candidates.size() / 2)};
}

absl::Status Network::TakeLoss(const Program& program, float loss_scale) {
  const TapeOp& op = program.tape.ops[program.forward_ops];
  CHECK_EQ(std::ssize(batches_.labels()), program.label_rows) << "what was loaded";
  const AllocationLabel allocation_label(device_, labels_of_layers_[op.layer]);
  const absl::Time start = Now();
  const v1::SoftmaxCrossEntropy& settings = graph_.layers().back().settings.softmax_cross_entropy();
  kernels_.pointwise().SoftmaxCrossEntropyAsync(
      program.label_rows, program.classes, settings.label_smoothing(), Buffer(program, op.x[0]),
      batches_.labels(), loss_scale, Buffer(program, op.dx[0]), sums_.span());
  if (observer_ != nullptr) {
    observer_->Played(program.tape, op, start, absl::ToDoubleSeconds(Now() - start));
  }
  return device_.status();
}

}  // namespace cadre
