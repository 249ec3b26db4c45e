// The planner predicts the time of any plan from the times of layer parts. A layer part is the
// share of a layer that one rank computes. Most parts occur in many plans, so a plan is timed only
// if it has a part that no earlier plan had.
//
// A part is timed inside a whole training step, with the kernels, memory and caches of training,
// rather than alone. That needs a replica for each plan, but no peers: the transport is a loopback.
//
// Cost: for each plan, the creation of a replica and at least kDefaultSteps steps or kMinTime.
#include "worker/probe/layer_probe.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/median.h"
#include "base/status.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cluster_profile.h"
#include "plan/layer_part.h"
#include "plan/memory.h"
#include "plan/plan.h"
#include "tensor/box.h"
#include "worker/probe/loopback_transport.h"
#include "worker/train/batches.h"
#include "worker/train/replica.h"
#include "worker/train/step_profile.h"

namespace cadre {
namespace {

// Number of steps if the request does not specify it.
constexpr int kDefaultSteps = 5;
// Short steps are repeated until they have taken this long in total, up to a maximum number.
constexpr absl::Duration kMinTime = absl::Milliseconds(60);
constexpr int kMaxSteps = 200;
// The rate does not affect the time; a higher one could diverge on a repeated batch.
constexpr float kRate = 1e-6F;
// If no plan moves data, copies of this size are timed in place of moves: half of each row, as for
// channels that are split in two.
constexpr int64_t kCopiedRows = 4096;
constexpr int64_t kCopiedColumns = 64;
constexpr int kCopies = 9;

class LayerProbe {
 public:
  LayerProbe(const v1::ProbeRequest& request, Graph graph, Backend& kernels,
             const LayerProbeOptions& options)
      : request_(request),
        graph_(std::move(graph)),
        index_(ParameterIndex::FromGraph(graph_)),
        kernels_(kernels),
        options_(options) {}

  absl::StatusOr<v1::DeviceProfile> Run() {
    for (int i = 0; i < request_.plan_size(); ++i) {
      CADRE_RETURN_IF_ERROR(TimeIfNew(request_.plan(i)));
      if (options_.progress) options_.progress(i + 1, request_.plan_size());
    }
    return Profile();
  }

 private:
  // Times a single micro-batch, because all micro-batches of a step take the same time.
  v1::RunSpec SpecFor(int ranks) const {
    v1::RunSpec spec = request_.spec();
    const int64_t samples = std::max<int64_t>(1, MicroBatchSamples(spec));
    spec.set_batch_per_group((samples + ranks - 1) / ranks * ranks);
    spec.set_micro_batches(1);
    return spec;
  }

  // Registers the plan's layer parts. Returns true if some of them are new.
  bool AddParts(const Plan& plan, int64_t samples) {
    bool any = false;
    for (int l = 0; l < graph_.size(); ++l) {
      const LayerPart part = PartOf(plan.layers[l], plan.mesh, samples);
      any = parts_.emplace(l, part).second || any;
    }
    return any;
  }

  absl::Status TimeIfNew(const v1::Plan& proto) {
    CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(proto, graph_, index_));
    const v1::RunSpec spec = SpecFor(plan.mesh.ranks());
    if (!AddParts(plan, spec.batch_per_group())) return absl::OkStatus();
    LoopbackTransport transport(plan.mesh.ranks());
    CADRE_ASSIGN_OR_RETURN(const auto replica, Replica::Make(spec, proto, kernels_, transport));
    return Time(*replica, spec.batch_per_group());
  }

  absl::Status Time(Replica& replica, int64_t samples) {
    const RandomBatch batch(replica, samples);
    StepProfile profile(replica);
    int64_t step = 0;
    const auto take_step = [&] {
      replica.flow().set_step(step);
      const BatchView view = batch.View(samples, step++);
      return replica.Step({&view, 1}, kRate, /*gather=*/true).status();
    };
    // The first step touches memory and creates primitives; it is not timed.
    CADRE_RETURN_IF_ERROR(take_step());
    if (options_.before_each_plan) CADRE_RETURN_IF_ERROR(options_.before_each_plan());
    CADRE_RETURN_IF_ERROR(profile.Start());
    const absl::Time start = absl::Now();
    while (!Enough(profile.steps(), absl::Now() - start)) {
      profile.BeginStep(step);
      CADRE_RETURN_IF_ERROR(take_step());
      profile.EndStep();
    }
    CADRE_RETURN_IF_ERROR(profile.Stop());
    Add(profile, replica);
    return absl::OkStatus();
  }

  bool Enough(int steps, absl::Duration elapsed) const {
    const int min_steps = request_.steps() == 0 ? kDefaultSteps : request_.steps();
    return steps >= min_steps && (elapsed >= kMinTime || steps >= kMaxSteps);
  }

  void Add(const StepProfile& profile, const Replica& replica) {
    const v1::ModelTimes layers = profile.Layers();
    double flops = 0;
    double seconds = 0;
    for (const v1::LayerTime& time : layers.time()) {
      auto& [forward, backward] = times_[KeyOf(time)];
      forward.push_back(time.forward());
      backward.push_back(time.backward());
      flops += FlopsOf(time);
      seconds += time.forward() + time.backward();
    }
    if (seconds > 0) flops_.push_back(flops / seconds);
    for (const Owned& owned : replica.owned()) owned_ += owned.positions.size();
    updating_ += profile.Times().update();
    if (const double copy = profile.CopySeconds(); copy > 0) copies_.push_back(copy);
  }

  // Operations of forward and backward; backward has twice as many as forward.
  double FlopsOf(const v1::LayerTime& time) const {
    for (const GraphLayer& layer : graph_.layers()) {
      if (layer.name != time.layer()) continue;
      return 3.0 * layer.flops * time.samples() / (1.0 * time.rows() * time.outs() * time.ins());
    }
    return 0;
  }

  // Seconds per element of a copy, measured without a plan.
  static double TimedCopy() {
    const Box from({0, 0}, {kCopiedRows, kCopiedColumns});
    const Box half({0, 0}, {kCopiedRows, kCopiedColumns / 2});
    const std::vector<float> tensor(kCopiedRows * kCopiedColumns, 1.0F);
    std::vector<float> message(tensor.size() / 2);
    std::vector<double> seconds;
    for (int i = 0; i < kCopies; ++i) {
      const absl::Time start = absl::Now();
      CopyBox(tensor, from, message, half, half);
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    }
    return Median(std::move(seconds)) / message.size();
  }

  v1::DeviceProfile Profile() const {
    v1::DeviceProfile device;
    device.set_flops(Median(flops_));
    device.set_update_seconds(owned_ > 0 ? updating_ / owned_ : 0);
    device.set_copy_seconds(copies_.empty() ? TimedCopy() : Median(copies_));
    v1::ModelTimes& model = *device.add_model();
    model.set_model(ModelKey(request_.spec().model()));
    model.set_name(request_.spec().name());
    for (int l = 0; l < graph_.size(); ++l) AddTimes(graph_[l].name, model);
    return device;
  }

  void AddTimes(const std::string& layer, v1::ModelTimes& model) const {
    // Sorted by part, the whole layer first.
    for (auto at = times_.lower_bound({.layer = layer, .part = {}});
         at != times_.end() && at->first.layer == layer; ++at) {
      v1::LayerTime& time = *model.add_time();
      time = TimeOf(at->first);
      time.set_forward(Median(at->second.first));
      time.set_backward(Median(at->second.second));
    }
  }

  const v1::ProbeRequest& request_;
  const Graph graph_;
  const ParameterIndex index_;
  Backend& kernels_;
  const LayerProbeOptions& options_;
  std::set<std::pair<int, LayerPart>> parts_;
  // By part: the seconds of forward, and the seconds of backward, one element per plan.
  std::map<LayerPartKey, std::pair<std::vector<double>, std::vector<double>>> times_;
  std::vector<double> flops_;
  std::vector<double> copies_;
  // Sums over plans: owned elements, and seconds to update them.
  double owned_ = 0;
  double updating_ = 0;
};

}  // namespace

absl::StatusOr<v1::DeviceProfile> ProbeLayers(const v1::ProbeRequest& request, Backend& kernels,
                                              const LayerProbeOptions& options) {
  if (request.plan_size() == 0) {
    return absl::InvalidArgumentError("a probe request without plans has nothing to time");
  }
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(request.spec().model()));
  return LayerProbe(request, std::move(graph), kernels, options).Run();
}

}  // namespace cadre
