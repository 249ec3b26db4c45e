#include "spec/plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

constexpr int kSamples = 0;
constexpr int kFeatures = 1;
constexpr char kRing[] = "ring";

bool IsSplitOnlyAlong(const Layout& layout, int dims) {
  for (int d = dims; d < static_cast<int>(layout.split.size()); ++d) {
    if (!layout.axes(d).empty()) return false;
  }
  return layout.partial_sum.empty();
}

bool Disjoint(const Axes& a, const Axes& b) {
  return std::none_of(a.begin(), a.end(), [&](const std::string& axis) {
    return std::find(b.begin(), b.end(), axis) != b.end();
  });
}

class Checker {
 public:
  Checker(const Plan& plan, const Graph& graph, const ParameterIndex& index)
      : plan_(plan), graph_(graph), index_(index) {}

  absl::Status Run() const {
    if (plan_.layers.size() != graph_.layers().size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan has ", plan_.layers.size(), " layers, the model ", graph_.layers().size()));
    }
    for (size_t l = 0; l < plan_.layers.size(); ++l) {
      CADRE_RETURN_IF_ERROR(CheckLayer(plan_.layers[l], graph_.layers()[l]));
    }
    return CheckBuckets();
  }

 private:
  absl::Status CheckAxes(const LayerLayouts& layer, const Layout& layout) const {
    std::set<std::string> used;
    for (const Axes& axes : layout.split) {
      for (const std::string& axis : axes) {
        const bool known = std::any_of(plan_.mesh.axes().begin(), plan_.mesh.axes().end(),
                                       [&](const Mesh::Axis& a) { return a.name == axis; });
        if (!known || !used.insert(axis).second) {
          return absl::InvalidArgumentError(
              absl::StrCat("layer '", layer.name, "': axis '", axis, "' of ", layout.ToString(),
                           known ? " is used twice" : " is not in the mesh"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLayer(const LayerLayouts& layer, const GraphLayer& node) const {
    if (layer.name != node.name) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has layer '", layer.name,
                                                     "' where the model has '", node.name, "'"));
    }
    CADRE_RETURN_IF_ERROR(CheckAxes(layer, layer.input));
    CADRE_RETURN_IF_ERROR(CheckAxes(layer, layer.output));
    for (const Layout& layout : layer.parameters) CADRE_RETURN_IF_ERROR(CheckAxes(layer, layout));
    if (layer.parameters.size() != (node.has_parameters() ? 2U : 0U)) {
      return absl::InvalidArgumentError(absl::StrCat("layer '", layer.name, "': the plan lays out ",
                                                     layer.parameters.size(), " parameters"));
    }
    if (IsLegal(layer, node)) return CheckEveryAxisIsUsed(layer);
    return absl::InvalidArgumentError(absl::StrCat(
        "layer '", layer.name, "': a ", LayerKindName(node.kind), " cannot take ",
        layer.input.ToString(), " to ", layer.output.ToString(),
        layer.parameters.empty() ? ""
                                 : absl::StrCat(" with weight ", layer.parameters[0].ToString())));
  }

  // Ranks along an axis that splits neither samples nor parameters would all own the same elements.
  absl::Status CheckEveryAxisIsUsed(const LayerLayouts& layer) const {
    if (layer.parameters.empty()) return absl::OkStatus();
    Axes used = layer.input.axes(kSamples);
    const Axes& sharded = layer.parameters[0].axes(0);
    used.insert(used.end(), sharded.begin(), sharded.end());
    for (const Mesh::Axis& axis : plan_.mesh.axes()) {
      if (axis.size == 1 || !Disjoint({axis.name}, used)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("layer '", layer.name, "': axis '", axis.name,
                       "' splits neither its samples nor its parameters"));
    }
    return absl::OkStatus();
  }

  // The table of spec/plan.h.
  static bool IsLegal(const LayerLayouts& layer, const GraphLayer& node) {
    const bool samples_only = IsSplitOnlyAlong(layer.input, 1);
    switch (node.kind) {
      case LayerKind::kConvolution:
      case LayerKind::kMaxPool:
      case LayerKind::kAveragePool:
        return samples_only && layer.output == layer.input && Replicated(layer.parameters);
      case LayerKind::kRelu:
        return layer.output == layer.input &&
               IsSplitOnlyAlong(layer.input, node.input.rank() == 1 ? 2 : 1);
      case LayerKind::kFullyConnected: {
        const Axes& features = layer.output.axes(kFeatures);
        const Layout sharded = Layout::Split(0, features);
        return samples_only && IsSplitOnlyAlong(layer.output, 2) &&
               layer.output.axes(kSamples) == layer.input.axes(kSamples) &&
               Disjoint(layer.input.axes(kSamples), features) && layer.parameters[0] == sharded &&
               layer.parameters[1] == sharded;
      }
      case LayerKind::kSoftmaxCrossEntropy:
        return samples_only;
    }
    return false;
  }

  static bool Replicated(const std::vector<Layout>& layouts) {
    return std::all_of(layouts.begin(), layouts.end(),
                       [](const Layout& layout) { return layout == Layout::Replicated(); });
  }

  absl::Status CheckBuckets() const {
    std::vector<int> seen(index_.parameters().size(), 0);
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Bucket& bucket = plan_.buckets[b];
      if (bucket.algorithm != kRing) {
        return absl::InvalidArgumentError(absl::StrCat(
            "bucket ", b, ": algorithm '", bucket.algorithm, "' is not known, '", kRing, "' is"));
      }
      if (!std::is_sorted(bucket.parameters.begin(), bucket.parameters.end())) {
        return absl::InvalidArgumentError(
            absl::StrCat("bucket ", b, ": parameters are not in the order of the index"));
      }
      for (const int parameter : bucket.parameters) {
        ++seen[static_cast<size_t>(parameter)];
        const auto layer = static_cast<size_t>(index_[parameter].layer);
        const Axes& wanted = plan_.layers[layer].input.axes(kSamples);
        if (bucket.axes != wanted) {
          return absl::InvalidArgumentError(absl::StrCat(
              "bucket ", b, ": reduces over [", absl::StrJoin(bucket.axes, ", "), "], but ",
              index_[parameter].name, " needs [", absl::StrJoin(wanted, ", "), "]"));
        }
      }
    }
    for (size_t p = 0; p < seen.size(); ++p) {
      if (seen[p] != 1) {
        return absl::InvalidArgumentError(absl::StrCat(index_[static_cast<int>(p)].name, " is in ",
                                                       seen[p], " buckets instead of one"));
      }
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Graph& graph_;
  const ParameterIndex& index_;
};

}  // namespace

absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index) {
  return Checker(plan, graph, index).Run();
}

std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index) {
  std::string text = absl::StrCat("mesh ", plan.mesh.ToString(), "\n");
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerLayouts& layer = plan.layers[l];
    if (l > 0 && !(plan.layers[l - 1].output == layer.input)) {
      absl::StrAppendFormat(&text, "  %-12s %s -> %s\n", "(reshard)",
                            plan.layers[l - 1].output.ToString(), layer.input.ToString());
    }
    absl::StrAppendFormat(&text, "  %-12s %-22s %s -> %s", layer.name,
                          LayerKindName(graph.layers()[l].kind), layer.input.ToString(),
                          layer.output.ToString());
    if (!layer.parameters.empty()) {
      absl::StrAppend(&text, ", weight ", layer.parameters[0].ToString());
    }
    absl::StrAppend(&text, "\n");
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    std::vector<std::string> names;
    for (const int parameter : bucket.parameters) names.push_back(index[parameter].name);
    absl::StrAppend(&text, "  bucket ", b, ": ", absl::StrJoin(names, ", "), " over [",
                    absl::StrJoin(bucket.axes, ", "), "] by ", bucket.algorithm, "\n");
  }
  return text;
}

}  // namespace cadre
