// Divides the time of a step into parts:
//
// The network reports every operation of its tape, with its duration on the rank's own thread; the
// gradient flow reports every operation of its executor. A step's time is then
//
//   step = compute + moves + exposed + the rest (loading, bookkeeping)
//
// where `exposed` is the time for which the rank's own thread waited for the flow. The times of the
// flow's operations (collectives, update) overlap with the others and are reported separately.
// Medians over steps are reported, because other processes on the host disturb single steps.
//
// A layer's time is its computing alone. Norms that sum over ranks communicate inside the layer;
// the time that the transport has spent in the meantime is subtracted and counted as moves. If a
// move overlaps with computing, only the wait for its end is counted, which does not tell how fast
// it copied; so copying is measured on the other moves, less their time in the transport. A rank
// whose part of a layer is smaller than the largest part scales its time up: the planner needs the
// time of the slowest rank.
//
// Limits. On devices the host synchronizes around every operation while there is an observer, so
// overlap is not visible and observed steps take longer than others. The host cannot observe a
// device's time in the transport: sums of norms count as computing, copying is unknown, and
// `exposed` is unset.
#include "worker/train/step_profile.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/median.h"
#include "base/status.h"
#include "plan/cluster_profile.h"
#include "plan/layer_part.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

bool IsForward(const TapeOp& op) {
  return op.kind == TapeOpKind::kForward || op.kind == TapeOpKind::kLoss;
}

// Elements copied into messages, out of them, and from this rank to itself.
double CopiedElements(const Move& move) {
  int64_t elements = 0;
  for (const Exchange& exchange : move.steps) {
    elements += exchange.packed_elements() + exchange.unpacked_elements();
    for (const Exchange::Message& message : exchange.receives) {
      if (message.peer == exchange.index) elements += message.box.shape().elements();
    }
  }
  return elements;
}

template <typename T>
double MedianOf(const std::vector<T>& values, const std::function<double(const T&)>& number_of) {
  std::vector<double> numbers;
  for (const T& value : values) numbers.push_back(number_of(value));
  return Median(std::move(numbers));
}

}  // namespace

StepProfile::StepProfile(Replica& replica) : replica_(replica) {}

StepProfile::~StepProfile() {
  if (observing_) Stop().IgnoreError();
}

absl::Status StepProfile::Start() {
  CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
  steps_.clear();
  {
    absl::MutexLock lock(&mutex_);
    flows_.clear();
  }
  return Resume();
}

absl::Status StepProfile::Resume() {
  CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
  observing_ = true;
  replica_.network().set_observer(this);
  replica_.flow().set_observer(this);
  return absl::OkStatus();
}

absl::Status StepProfile::Stop() {
  const absl::Status status = replica_.AwaitOperations();
  observing_ = false;
  in_step_ = false;
  replica_.network().set_observer(nullptr);
  replica_.flow().set_observer(nullptr);
  return status;
}

void StepProfile::BeginStep(int64_t step) {
  if (!steps_.empty() && steps_.back().step >= step) Forget(step);
  steps_.push_back({.step = step});
  in_step_ = true;
  waited_before_ = replica_.flow().seconds_waited();
  TakeTransportSeconds();
  step_start_ = clock_.Now();
}

void StepProfile::Forget(int64_t from) {
  while (!steps_.empty() && steps_.back().step >= from) steps_.pop_back();
  absl::MutexLock lock(&mutex_);
  flows_.erase(flows_.lower_bound(from), flows_.end());
}

void StepProfile::EndStep() {
  CountCopies();
  StepSums& step = steps_.back();
  step.seconds = absl::ToDoubleSeconds(clock_.Now() - step_start_);
  step.exposed = replica_.flow().seconds_waited() - waited_before_;
  in_step_ = false;
}

double StepProfile::TakeTransportSeconds() {
  if (replica_.on_device()) return 0;
  const double now = replica_.data_comms().seconds(Transport::kMoves);
  return now - std::exchange(transport_before_, now);
}

void StepProfile::Played(const Tape& tape, const TapeOp& op, absl::Time /*begin*/, double seconds) {
  if (!in_step_) return;
  CountCopies();
  const double in_transport = TakeTransportSeconds();
  if (IsMove(op)) return AddMove(op, seconds, in_transport);
  // A move that overlapped with this operation was reported first, with its transport time.
  const double norms = std::min(seconds, in_transport);
  steps_.back().moves += norms;
  AddWork(tape, op, seconds - norms);
}

void StepProfile::AddMove(const TapeOp& op, double seconds, double in_transport) {
  steps_.back().moves += seconds;
  // A receive waits for other ranks' layers, which is not known from the transport's time.
  const bool copies = op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
  if (replica_.on_device() || !copies) return;
  copying_ = std::max(0.0, seconds - in_transport);
  copied_elements_ = CopiedElements(op.move);
}

void StepProfile::CountCopies() {
  steps_.back().copying += std::exchange(copying_, 0);
  steps_.back().copied_elements += std::exchange(copied_elements_, 0);
}

void StepProfile::AddWork(const Tape& tape, const TapeOp& op, double seconds) {
  StepSums& step = steps_.back();
  step.compute += seconds;
  // A layer's times are those of one forward and one backward pass.
  if (op.again) return;
  PassSums& pass = step.passes[tape.samples];
  pass.forward.resize(replica_.graph().size());
  pass.backward.resize(replica_.graph().size());
  if (op.kind == TapeOpKind::kLoss) ++pass.passes;
  (IsForward(op) ? pass.forward : pass.backward)[op.layer] += seconds;
}

// The move ran on another thread: the time that it was waited for is not the time of its copies.
void StepProfile::Waited(double /*seconds*/) {
  copying_ = 0;
  copied_elements_ = 0;
}

void StepProfile::Done(const BucketOp& op, int64_t step, double seconds) {
  absl::MutexLock lock(&mutex_);
  FlowSums& sums = flows_[step];
  (op.kind == BucketOp::Kind::kUpdate ? sums.update : sums.collectives) += seconds;
}

std::vector<StepProfile::FlowSums> StepProfile::Flows() const {
  absl::MutexLock lock(&mutex_);
  std::vector<FlowSums> flows;
  for (const StepSums& step : steps_) {
    const auto found = flows_.find(step.step);
    flows.push_back(found == flows_.end() ? FlowSums() : found->second);
  }
  return flows;
}

double StepProfile::LargestByOwn(int layer, int64_t samples) const {
  const Plan& plan = replica_.plan();
  const GraphLayer& graph_layer = replica_.graph()[layer];
  const LayerLayouts& layouts = plan.layers[layer];
  const auto ratio = [&](const Shape& sample, const Layout& layout) {
    const auto elements = [&](int rank) {
      return LocalBox(BatchShape(samples, sample), layout, plan.mesh, rank).shape().elements();
    };
    int64_t largest = 0;
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
      largest = std::max(largest, elements(rank));
    }
    const double own = elements(replica_.comms().rank());
    return own == 0 ? 0.0 : largest / own;
  };
  // The loss's output is a single number; its input determines the ratio.
  const double in = ratio(graph_layer.input(), layouts.inputs[0]);
  if (graph_layer.kind == LayerKind::kSoftmaxCrossEntropy) return in;
  const double out = ratio(graph_layer.output, layouts.output);
  return in == 0 || out == 0 ? 0 : std::max(in, out);
}

v1::ModelTimes StepProfile::Layers() const {
  v1::ModelTimes times;
  times.set_model(ModelKey(replica_.spec().model()));
  times.set_name(replica_.spec().name());
  std::map<int64_t, std::vector<const PassSums*>> by_samples;
  for (const StepSums& step : steps_) {
    for (const auto& [samples, pass] : step.passes) {
      if (pass.passes > 0) by_samples[samples].push_back(&pass);
    }
  }
  for (const auto& [samples, passes] : by_samples) {
    for (int l = 0; l < replica_.graph().size(); ++l) {
      const double scale = LargestByOwn(l, samples);
      if (scale == 0) continue;
      const auto median = [&, &all = passes](std::vector<double> PassSums::*direction) {
        return scale * MedianOf<const PassSums*>(all, [&](const PassSums* const& pass) {
                 return (pass->*direction)[l] / pass->passes;
               });
      };
      const LayerPart part = PartOf(replica_.plan().layers[l], replica_.plan().mesh, samples);
      v1::LayerTime& time = *times.add_time();
      time = TimeOf({.layer = replica_.graph()[l].name, .part = part});
      time.set_forward(median(&PassSums::forward));
      time.set_backward(median(&PassSums::backward));
    }
  }
  return times;
}

v1::StepTimes StepProfile::Times() const {
  const auto of_steps = [&](double StepSums::*part) {
    return MedianOf<StepSums>(steps_, [part](const StepSums& step) { return step.*part; });
  };
  const std::vector<FlowSums> flows = Flows();
  const auto of_flows = [&](double FlowSums::*part) {
    return MedianOf<FlowSums>(flows, [part](const FlowSums& flow) { return flow.*part; });
  };
  v1::StepTimes times;
  times.set_step(of_steps(&StepSums::seconds));
  times.set_compute(of_steps(&StepSums::compute));
  times.set_moves(of_steps(&StepSums::moves));
  if (!replica_.on_device()) times.set_exposed(of_steps(&StepSums::exposed));
  times.set_collectives(of_flows(&FlowSums::collectives));
  times.set_update(of_flows(&FlowSums::update));
  return times;
}

double StepProfile::UpdateSeconds() const {
  int64_t owned = 0;
  for (const Owned& each : replica_.owned()) owned += each.positions.size();
  return owned == 0 ? 0 : Times().update() / owned;
}

double StepProfile::CopySeconds() const {
  std::vector<double> each;
  for (const StepSums& step : steps_) {
    if (step.copied_elements > 0) each.push_back(step.copying / step.copied_elements);
  }
  return Median(std::move(each));
}

}  // namespace cadre
