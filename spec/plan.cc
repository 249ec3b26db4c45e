#include "spec/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

// What a plan may ask for. The hierarchical way is no bucket's: its ranks would have to know hosts.
// Whether its ranks have native ones is no plan's to know (CheckNative).
constexpr Algorithm kLegal[] = {Algorithm::kRing, Algorithm::kButterfly,
                                Algorithm::kHalvingDoubling, Algorithm::kNative};

// Which ranks have a part in a parameter's gradient, and which have the same one.
struct GradientAxes {
  Axes sums;
  Axes same;
  friend auto operator<=>(const GradientAxes&, const GradientAxes&) = default;

  std::string ToString() const {
    return absl::StrCat("[", absl::StrJoin(sums, ", "), "]",
                        same.empty() ? "" : " shared by [" + absl::StrJoin(same, ", ") + "]");
  }
};

const Layout& LayoutOf(const std::vector<LayerLayouts>& layers, const Parameter& parameter) {
  return layers[static_cast<size_t>(parameter.layer)]
      .parameters[static_cast<size_t>(parameter.number)];
}

GradientAxes GradientAxesOf(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                            const Parameter& parameter) {
  const LayerLayouts& layer = layers[static_cast<size_t>(parameter.layer)];
  return {layer.gradient_sums[static_cast<size_t>(parameter.number)],
          SameAxes(layer, parameter.number, mesh)};
}

// Of the rank that holds most.
int64_t LocalElements(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                      const Parameter& parameter) {
  const Layout& layout = LayoutOf(layers, parameter);
  int64_t elements = 1;
  for (int d = 0; d < parameter.shape.rank(); ++d) {
    const int64_t parts = mesh.Size(layout.axes(d));
    elements *= (parameter.shape[d] + parts - 1) / parts;
  }
  return elements;
}

class Checker {
 public:
  Checker(const Plan& plan, const Graph& graph, const ParameterIndex& index)
      : plan_(plan), graph_(graph), index_(index) {}

  absl::Status Run() const {
    if (static_cast<int>(plan_.layers.size()) != graph_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan has ", plan_.layers.size(), " layers, the model ", graph_.size()));
    }
    for (int l = 0; l < graph_.size(); ++l) CADRE_RETURN_IF_ERROR(CheckLayer(l));
    return CheckBuckets();
  }

 private:
  // The layouts must be what the splits make of the layer.
  absl::Status CheckLayer(int l) const {
    const LayerLayouts& layer = plan_.layers[static_cast<size_t>(l)];
    if (layer.name != graph_[l].name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan has layer '", layer.name, "' where the model has '", graph_[l].name, "'"));
    }
    CADRE_ASSIGN_OR_RETURN(const LayerLayouts right, LayOut(graph_[l], plan_.mesh, layer.splits));
    if (layer.inputs == right.inputs && layer.output == right.output &&
        layer.input_gradients == right.input_gradients && layer.parameters == right.parameters &&
        layer.gradient_sums == right.gradient_sums) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("layer '", layer.name, "': layouts do not follow from its splits"));
  }

  absl::Status CheckBuckets() const {
    std::vector<int> seen(index_.parameters().size(), 0);
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      CADRE_RETURN_IF_ERROR(CheckBucket(b, seen));
    }
    for (size_t p = 0; p < seen.size(); ++p) {
      if (seen[p] == 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(index_[static_cast<int>(p)].name, " is in ",
                                                     seen[p], " buckets instead of one"));
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
    const GradientAxes has{bucket.axes, bucket.same};
    for (const int parameter : bucket.parameters) {
      if (parameter < 0 || parameter >= static_cast<int>(seen.size())) {
        return bad("there is no parameter ", parameter);
      }
      ++seen[static_cast<size_t>(parameter)];
      const GradientAxes wanted = GradientAxesOf(plan_.layers, plan_.mesh, index_[parameter]);
      if (has == wanted) continue;
      return bad("reduces over ", has.ToString(), ", but ", index_[parameter].name, " needs ",
                 wanted.ToString());
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Graph& graph_;
  const ParameterIndex& index_;
};

}  // namespace

std::vector<std::string> SameAxes(const LayerLayouts& layer, int parameter, const Mesh& mesh) {
  const auto number = static_cast<size_t>(parameter);
  Axes used = layer.gradient_sums[number];
  for (const Axes& split : layer.parameters[number].split) {
    used.insert(used.end(), split.begin(), split.end());
  }
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
  // Parameters that may share a bucket have the same.
  using Key = std::pair<int, GradientAxes>;
  std::vector<Bucket> buckets;
  std::map<Key, Open> open;
  for (int l = static_cast<int>(layers.size()) - 1; l >= 0; --l) {
    const int kind = rules.kinds.empty() ? 0 : rules.kinds[static_cast<size_t>(l)];
    // A layer's gradients are finished together, so those that are alike stay together.
    std::map<Key, std::vector<int>> alike;
    for (const int p : index.OfLayer(l)) {
      alike[{kind, GradientAxesOf(layers, mesh, index[p])}].push_back(p);
    }
    for (const auto& [key, parameters] : alike) {
      const GradientAxes& axes = key.second;
      int64_t elements = 0;
      for (const int p : parameters) elements += LocalElements(layers, mesh, index[p]);
      const int64_t most = rules.most_elements ? rules.most_elements(mesh.Size(axes.sums)) : 0;
      auto at = open.find(key);
      if (at == open.end() || (most > 0 && at->second.elements + elements > most)) {
        buckets.push_back({.axes = axes.sums, .same = axes.same, .algorithm = rules.algorithm});
        at = open.insert_or_assign(key, Open{.bucket = buckets.size() - 1}).first;
      }
      at->second.elements += elements;
      std::vector<int>& into = buckets[at->second.bucket].parameters;
      into.insert(into.end(), parameters.begin(), parameters.end());
    }
  }
  for (Bucket& bucket : buckets) std::sort(bucket.parameters.begin(), bucket.parameters.end());
  // A bucket is finished with its first layer.
  std::stable_sort(buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) {
    return index[a.parameters.front()].layer > index[b.parameters.front()].layer;
  });
  return buckets;
}

std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, int64_t most_elements) {
  return MakeBuckets(layers, mesh, index,
                     BucketRules{.most_elements = [=](int) { return most_elements; }});
}

int64_t BufferElements(const Plan& plan, const ParameterIndex& index, const Bucket& bucket) {
  int64_t elements = 0;
  for (const int p : bucket.parameters) elements += LocalElements(plan.layers, plan.mesh, index[p]);
  return elements;
}

absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index) {
  return Checker(plan, graph, index).Run();
}

}  // namespace cadre
