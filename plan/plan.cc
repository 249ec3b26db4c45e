// Checks plans, and divides parameters into buckets.
//
// Parameters share a bucket if they are on the same ranks, their gradients are summed over the same
// axes and the sums are replicated along the same axes: one reduce-scatter then reduces them all,
// and the same ranks divide the ownership. Layers are visited from the last to the first, as
// backward completes them. A bucket is closed when the next layer would exceed its limit. All
// parameters of a layer with these axes are in one bucket, since backward completes them at the
// same time. A bucket is complete when backward has passed its first layer; this determines the
// order of buckets.
#include "plan/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "plan/layer_part.h"
#include "plan/recomputation.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

// Algorithms that a plan may contain. Whether ranks have native collectives is checked separately
// (CheckNative).
constexpr Algorithm kLegal[] = {Algorithm::kRing, Algorithm::kButterfly,
                                Algorithm::kHalvingDoubling, Algorithm::kNative};

// The axes over which a parameter's gradient is summed, and along which the sum is replicated; the
// coordinates at which both are.
struct GradientAxes {
  Axes sums;
  Axes replica_axes;
  std::vector<AxisCoordinate> at;
  friend auto operator<=>(const GradientAxes&, const GradientAxes&) = default;
};

GradientAxes GradientAxesOf(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                            const Parameter& parameter) {
  const LayerLayouts& layer = layers[parameter.layer];
  return {layer.gradient_sums[parameter.number], ReplicaAxes(layer, parameter.number, mesh),
          layer.at};
}

int64_t LocalElements(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                      const Parameter& parameter) {
  return LocalElements(parameter.shape, layers[parameter.layer].parameters[parameter.number], mesh);
}

class Checker {
 public:
  Checker(const Plan& plan, const Graph& graph, const ParameterIndex& index)
      : plan_(plan), graph_(graph), index_(index) {}

  absl::Status Run() const {
    if (std::ssize(plan_.layers) != graph_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan has ", plan_.layers.size(), " layers, the model ", graph_.size()));
    }
    for (int l = 0; l < graph_.size(); ++l) CADRE_RETURN_IF_ERROR(CheckLayer(l));
    CADRE_RETURN_IF_ERROR(CheckBlocks(graph_, plan_.recomputed));
    return CheckBuckets();
  }

 private:
  // The layouts must follow from the splits.
  absl::Status CheckLayer(int l) const {
    const LayerLayouts& layer = plan_.layers[l];
    if (layer.name != graph_[l].name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan has layer '", layer.name, "' where the model has '", graph_[l].name, "'"));
    }
    CADRE_ASSIGN_OR_RETURN(const LayerLayouts expected,
                           LayOut(graph_[l], plan_.mesh, layer.splits, layer.at));
    if (layer.at == expected.at && layer.inputs == expected.inputs &&
        layer.output == expected.output && layer.input_gradients == expected.input_gradients &&
        layer.parameters == expected.parameters && layer.gradient_sums == expected.gradient_sums) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "layer '", layer.name, "': layouts do not follow from its splits and coordinates"));
  }

  absl::Status CheckBuckets() const {
    std::vector<int> seen(index_.parameters().size(), 0);
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      CADRE_RETURN_IF_ERROR(CheckBucket(b, seen));
    }
    for (size_t p = 0; p < seen.size(); ++p) {
      if (seen[p] == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(index_[p].name, " is in ", seen[p], " buckets instead of one"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBucket(size_t b, std::vector<int>& seen) const {
    const Bucket& bucket = plan_.buckets[b];
    const auto bad = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("bucket ", b, ": ", what...));
    };
    if (std::find(std::begin(kLegal), std::end(kLegal), bucket.algorithm) == std::end(kLegal)) {
      return bad("cannot be reduced by '", AlgorithmName(bucket.algorithm),
                 "', only by ring, butterfly, halving-doubling or native");
    }
    if (bucket.parameters.empty()) return bad("has no parameters");
    if (!std::is_sorted(bucket.parameters.begin(), bucket.parameters.end())) {
      return bad("parameters are not in the order of the index");
    }
    const GradientAxes has{bucket.axes, bucket.replica_axes, bucket.at};
    for (const int parameter : bucket.parameters) {
      if (parameter < 0 || parameter >= std::ssize(seen)) {
        return bad("there is no parameter ", parameter);
      }
      ++seen[parameter];
      const GradientAxes expected = GradientAxesOf(plan_.layers, plan_.mesh, index_[parameter]);
      if (has == expected) continue;
      const Bucket needed{
          .axes = expected.sums, .replica_axes = expected.replica_axes, .at = expected.at};
      return bad("reduces over ", bucket.AxesText(), ", but ", index_[parameter].name, " needs ",
                 needed.AxesText());
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Graph& graph_;
  const ParameterIndex& index_;
};

}  // namespace

std::vector<std::string> Bucket::owner_axes() const {
  Axes owners = axes;
  owners.insert(owners.end(), replica_axes.begin(), replica_axes.end());
  return owners;
}

std::string Bucket::AxesText() const {
  return absl::StrCat(
      "[", absl::StrJoin(axes, ", "), "]",
      replica_axes.empty() ? "" : " shared by [" + absl::StrJoin(replica_axes, ", ") + "]",
      at.empty() ? "" : " on " + ToText(at));
}

std::vector<std::string> ReplicaAxes(const LayerLayouts& layer, int parameter, const Mesh& mesh) {
  Axes used = layer.gradient_sums[parameter];
  for (const Axes& split : layer.parameters[parameter].split) {
    used.insert(used.end(), split.begin(), split.end());
  }
  for (const AxisCoordinate& each : layer.at) used.push_back(each.axis);
  Axes same;
  for (const Mesh::Axis& axis : mesh.axes()) {
    if (axis.size > 1 && std::find(used.begin(), used.end(), axis.name) == used.end()) {
      same.push_back(axis.name);
    }
  }
  return same;
}

std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, const BucketRules& rules) {
  struct Open {
    size_t bucket = 0;
    int64_t elements = 0;
  };
  // Equal for parameters that may share a bucket.
  using Key = std::pair<int, GradientAxes>;
  std::vector<Bucket> buckets;
  std::map<Key, Open> open;
  for (int l = std::ssize(layers) - 1; l >= 0; --l) {
    const int kind = rules.kinds.empty() ? 0 : rules.kinds[l];
    // A layer's gradients are completed together, so parameters with equal keys share a bucket.
    std::map<Key, std::vector<int>> alike;
    for (const int p : index.OfLayer(l)) {
      alike[{kind, GradientAxesOf(layers, mesh, index[p])}].push_back(p);
    }
    for (const auto& [key, parameters] : alike) {
      const GradientAxes& axes = key.second;
      int64_t elements = 0;
      for (const int p : parameters) elements += LocalElements(layers, mesh, index[p]);
      const int64_t max_elements =
          rules.max_elements ? rules.max_elements(mesh.Size(axes.sums)) : 0;
      auto at = open.find(key);
      if (at == open.end() || (max_elements > 0 && at->second.elements + elements > max_elements)) {
        buckets.push_back({.axes = axes.sums,
                           .replica_axes = axes.replica_axes,
                           .at = axes.at,
                           .algorithm = rules.algorithm});
        at = open.insert_or_assign(key, Open{.bucket = buckets.size() - 1}).first;
      }
      at->second.elements += elements;
      std::vector<int>& into = buckets[at->second.bucket].parameters;
      into.insert(into.end(), parameters.begin(), parameters.end());
    }
  }
  for (Bucket& bucket : buckets) std::sort(bucket.parameters.begin(), bucket.parameters.end());
  // A bucket is complete when backward has reached its first layer.
  std::stable_sort(buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) {
    return index[a.parameters.front()].layer > index[b.parameters.front()].layer;
  });
  return buckets;
}

std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, int64_t max_elements) {
  return MakeBuckets(layers, mesh, index,
                     BucketRules{.max_elements = [=](int) { return max_elements; }});
}

int64_t LocalElements(const Shape& shape, const Layout& layout, const Mesh& mesh) {
  int64_t elements = 1;
  for (int d = 0; d < shape.rank(); ++d) {
    elements *= LargestPart(shape[d], mesh.Size(layout.axes(d)));
  }
  return elements;
}

int64_t BufferElements(const Plan& plan, const ParameterIndex& index, const Bucket& bucket) {
  int64_t elements = 0;
  for (const int p : bucket.parameters) elements += LocalElements(plan.layers, plan.mesh, index[p]);
  return elements;
}

bool PlacesLayers(const Plan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const LayerLayouts& layouts) { return !layouts.at.empty(); });
}

absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index) {
  return Checker(plan, graph, index).Run();
}

}  // namespace cadre
