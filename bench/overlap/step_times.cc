// The trace of a step names its intervals after what they do: "forward L", "backward L", "move to
// L", "reduce-scatter bucket B part P" and so on. Without overlap no two intervals run at the same
// time, so the duration of an interval is the cost of its operation. The model takes the median of
// each operation over the steps, and divides the time of a bucket evenly among its chunks.
#include "bench/overlap/step_times.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/median.h"
#include "plan/plan_collectives.h"

namespace cadre {
namespace {

// Seconds by step, summed over all intervals with the same name.
using BySteps = std::map<int64_t, double>;

double MedianOf(const BySteps& seconds, size_t steps) {
  std::vector<double> values;
  for (const auto& [step, value] : seconds) values.push_back(value);
  // A step without such an interval counts as zero.
  values.resize(std::max(values.size(), steps), 0.0);
  return values.empty() ? 0 : Median(std::move(values));
}

// "reduce-scatter bucket 3 part 1" -> 3.
int BucketOf(absl::string_view name) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, ' ');
  int bucket = -1;
  if (words.size() < 3 || words[1] != "bucket" || !absl::SimpleAtoi(words[2], &bucket)) return -1;
  return bucket;
}

}  // namespace

StepModel StepModelFrom(const Graph& graph, const ParameterIndex& index, const Plan& plan,
                        const std::vector<TraceInterval>& intervals) {
  std::vector<BySteps> forward(graph.size());
  std::vector<BySteps> backward(forward.size());
  std::vector<BySteps> reduce(plan.buckets.size());
  std::vector<BySteps> update(plan.buckets.size());
  std::vector<BySteps> gather(plan.buckets.size());
  BySteps steps;
  for (const TraceInterval& interval : intervals) {
    const double seconds = static_cast<double>(interval.duration_us) * 1e-6;
    steps[interval.step] += seconds;
    absl::string_view name = interval.name;
    const int bucket = BucketOf(name);
    if (bucket >= 0) {
      std::vector<BySteps>& of = absl::StartsWith(name, "reduce") ? reduce
                                 : absl::StartsWith(name, "all")  ? gather
                                                                  : update;
      of[bucket][interval.step] += seconds;
      continue;
    }
    const bool back =
        absl::ConsumePrefix(&name, "backward ") || absl::ConsumePrefix(&name, "move gradient of ");
    if (!back && !absl::ConsumePrefix(&name, "forward ") &&
        !absl::ConsumePrefix(&name, "move to ") && !absl::ConsumePrefix(&name, "loss ") &&
        !absl::ConsumePrefix(&name, "add gradients of ")) {
      continue;
    }
    for (int l = 0; l < graph.size(); ++l) {
      if (graph[l].name != name) continue;
      (back ? backward : forward)[l][interval.step] += seconds;
    }
  }
  StepModel model;
  for (size_t l = 0; l < forward.size(); ++l) {
    model.layers.push_back({.forward = MedianOf(forward[l], steps.size()),
                            .backward = MedianOf(backward[l], steps.size())});
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const int chunks = ChunksOf(plan, index, plan.buckets[b]);
    const StepModel::Bucket chunk{.layer = index[plan.buckets[b].parameters.front()].layer,
                                  .reduce_scatter = MedianOf(reduce[b], steps.size()) / chunks,
                                  .update = MedianOf(update[b], steps.size()) / chunks,
                                  .all_gather = MedianOf(gather[b], steps.size()) / chunks};
    model.buckets.insert(model.buckets.end(), chunks, chunk);
  }
  return model;
}

StepTime RecurrenceOf(const StepModel& model) {
  std::vector<LayerTimes> layers;
  for (const StepModel::Layer& layer : model.layers) {
    layers.push_back({.forward = layer.forward, .backward = layer.backward});
  }
  for (const StepModel::Bucket& bucket : model.buckets) {
    layers[bucket.layer].communication += bucket.reduce_scatter + bucket.update + bucket.all_gather;
  }
  return OverlapRecurrence(layers);
}

std::map<int64_t, double> WaitsOf(const std::vector<TraceInterval>& intervals) {
  std::map<int64_t, double> waits;
  for (const TraceInterval& interval : intervals) {
    if (interval.track == 0 && interval.category == "step") waits[interval.step] += 0;
    if (interval.track == 0 && interval.category == "wait") {
      waits[interval.step] += static_cast<double>(interval.duration_us);
    }
  }
  return waits;
}

}  // namespace cadre
