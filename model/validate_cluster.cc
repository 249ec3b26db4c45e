// A spec describes the mesh either by counts (model_ranks and space_ranks, with `data` as the
// rest) or by a list of axes. Both may be given if they agree. The planner reads the same fields
// again for a group that has fewer ranks than the spec requests (plan/search/plan_problem.h).
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/counted_noun.h"
#include "model/layer_placement.h"
#include "model/op_indices.h"
#include "model/ops/inference.h"
#include "model/validate.h"
#include "model/validation_parts.h"
#include "proto/enum_text.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

// The limits of --aggregator-patience.
constexpr uint32_t kMinAggregatorWaitMs = 1000;
constexpr uint32_t kMaxAggregatorWaitMs = 24 * 3600 * 1000;

std::string MeshToText(const v1::Cluster& cluster) {
  return absl::StrJoin(cluster.mesh(), ", ", [](std::string* out, const v1::MeshAxis& axis) {
    absl::StrAppend(out, absl::CEscape(axis.name()), "=", axis.size());
  });
}

class ClusterValidation : private SpecChecker {
 public:
  using SpecChecker::SpecChecker;

  std::vector<Problem> Run() {
    const v1::Cluster& cluster = spec_.cluster();
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    AtMost("cluster.groups", cluster.groups(), kMaxGroups);
    AtMost("cluster.ranks_per_group", cluster.ranks_per_group(), kMaxRanksPerGroup);
    if (cluster.min_ranks_per_group() > ranks) {
      Add("cluster.min_ranks_per_group", "is ", cluster.min_ranks_per_group(),
          "; a group has only ", Counted(ranks, "rank"));
    }
    if (cluster.mesh().empty()) {
      CheckMesh();
    } else {
      CheckPinnedMesh();
    }
    AtMost("cluster.aggregators", cluster.aggregators(), kMaxAggregators);
    if (cluster.has_max_pause_ms() && cluster.max_pause_ms() == 0) {
      Add("cluster.max_pause_ms", "is 0; it must be positive");
    }
    const uint32_t wait = cluster.aggregator_wait_ms();
    if (cluster.has_aggregator_wait_ms() &&
        (wait < kMinAggregatorWaitMs || wait > kMaxAggregatorWaitMs)) {
      Add("cluster.aggregator_wait_ms", "is ", wait, "; it must be from ", kMinAggregatorWaitMs,
          " to ", kMaxAggregatorWaitMs);
    }
    // Numbers without names can only come from other programs, not from run files.
    if (!v1::Cluster::CollectivePolicy_IsValid(cluster.collectives())) {
      Add("cluster.collectives", "is ", cluster.collectives(),
          "; give AUTO, RING, BUTTERFLY, HALVING_DOUBLING, PAPER or NATIVE");
    }
    CheckDevice();
    if (!v1::Cluster::Overlap_IsValid(cluster.overlap())) {
      Add("cluster.overlap", "is ", cluster.overlap(), "; give ON or OFF");
    }
    if (!v1::Cluster::Pipeline_IsValid(cluster.pipeline())) {
      Add("cluster.pipeline", "is ", cluster.pipeline(),
          "; give ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD_FIRST or NO_PIPELINE");
    }
    CheckLayerPins();
    CheckRecompute();
    return std::move(problems_);
  }

 private:
  // Whether the mesh is pinned, has several ranks and consists of `data` alone, so that no layer
  // can be split by another index than samples.
  bool IsDataAlone() const {
    return !spec_.cluster().mesh().empty() && RanksAlong(spec_.cluster(), kModelAxis) == 1 &&
           RanksAlong(spec_.cluster(), kSpaceAxis) == 1 &&
           OrOne(spec_.cluster().ranks_per_group()) > 1;
  }

  // NCCL and TF32 exist on CUDA devices only.
  void CheckDevice() {
    const v1::Cluster& cluster = spec_.cluster();
    if (!v1::Cluster::Device_IsValid(cluster.device())) {
      Add("cluster.device", "is ", cluster.device(), "; give CPU or CUDA");
    }
    const bool cuda = cluster.device() == v1::Cluster::CUDA;
    if (cluster.collectives() == v1::Cluster::NATIVE && !cuda) {
      Add("cluster.collectives",
          "is NATIVE, which is NCCL's; set cluster.device to CUDA, or give AUTO");
    }
    if (!v1::RunSpec::Precision_IsValid(spec_.precision())) {
      Add("precision", "is ", spec_.precision(), "; give FP32, TF32 or BF16");
    } else if (!cuda && spec_.precision() == v1::RunSpec::TF32) {
      Add("precision",
          "is TF32, which only CUDA devices have; set cluster.device to CUDA, or give FP32 or "
          "BF16");
    }
  }

  // Checks the counts of the mesh. `data` has the remaining ranks, so the product of the counts
  // must divide the ranks.
  void CheckMesh() {
    const v1::Cluster& cluster = spec_.cluster();
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    const uint32_t space = OrOne(cluster.space_ranks());
    const uint32_t model = OrOne(cluster.model_ranks());
    const bool model_fits = ranks % model == 0;
    if (!model_fits) {
      Add("cluster.model_ranks", "is ", model, ", which does not divide the ",
          Counted(ranks, "rank"), " of a group");
    }
    if (space == 1) return;
    if (ranks % space != 0) {
      Add("cluster.space_ranks", "is ", space, ", which does not divide the ",
          Counted(ranks, "rank"), " of a group");
    } else if (model_fits && ranks % (uint64_t{space} * model) != 0) {
      Add("cluster.space_ranks", "is ", space, " and model_ranks is ", model, "; their product, ",
          uint64_t{space} * model, ", does not divide the ", ranks, " ranks of a group");
    }
    CheckRows("cluster.space_ranks", space);
  }

  // The space axis splits the rows of images; every rank needs at least one row.
  void CheckRows(const std::string& field, uint32_t space) {
    if (!graph_ || space == 1) return;
    if (graph_->takes_tokens()) {
      Add(field, "is ", space,
          ", but only images have rows to split; the model takes tokens, leave it out");
    } else if (graph_->input()[0] < space) {
      Add(field, "is ", space, ", but the model's input has only ", graph_->input()[0],
          " rows to split");
    }
  }

  // Stops at an invalid size: the product of the axes is then unknown.
  void CheckPinnedMesh() {
    const v1::Cluster& cluster = spec_.cluster();
    std::set<std::string> names;
    uint64_t product = 1;
    for (int i = 0; i < cluster.mesh_size(); ++i) {
      const v1::MeshAxis& axis = cluster.mesh(i);
      const std::string field = absl::StrCat("cluster.mesh[", i, "]");
      if (axis.name() != kDataAxis && axis.name() != kSpaceAxis && axis.name() != kModelAxis &&
          axis.name() != kStageAxis) {
        Add(field + ".name", "is ", Quoted(axis.name()), "; give data, space, model or stage");
      } else if (!names.insert(axis.name()).second) {
        Add(field + ".name", "is '", axis.name(), "' once more; each axis is given once");
      }
      AtLeastOne(field + ".size", axis.size());
      AtMost(field + ".size", axis.size(), kMaxRanksPerGroup);
      if (axis.size() == 0 || axis.size() > kMaxRanksPerGroup) return;
      if (axis.name() == kSpaceAxis) CheckRows(field + ".size", axis.size());
      product = std::min<uint64_t>(product * axis.size(), uint64_t{1} << 32);
    }
    const uint32_t ranks = OrOne(cluster.ranks_per_group());
    if (product != ranks) {
      Add("cluster.mesh", "is ", MeshToText(cluster), ", which makes ", product,
          " ranks; ranks_per_group is ", ranks);
    }
    CheckMeshAgrees("cluster.model_ranks", cluster.model_ranks(), kModelAxis);
    CheckMeshAgrees("cluster.space_ranks", cluster.space_ranks(), kSpaceAxis);
  }

  // A count of zero is unset; otherwise the count and the list of axes must describe the same mesh.
  void CheckMeshAgrees(absl::string_view field, uint32_t ranks, absl::string_view axis) {
    if (ranks == 0 || ranks == RanksAlong(spec_.cluster(), axis)) return;
    Add(field, "is ", ranks, ", but cluster.mesh has ", RanksAlong(spec_.cluster(), axis),
        " along ", axis, "; give one of them");
  }

  // Checked here because the planner would report these problems only after the run was accepted.
  void CheckLayerPins() {
    const auto& pins = spec_.cluster().layer();
    // Without a graph another problem has been reported.
    const int max_pins = graph_ ? graph_->size() : kMaxLayers;
    if (pins.size() > max_pins) {
      Add("cluster.layer", "pins ", pins.size(), " layers; the model has ",
          graph_ ? "" : "at most ", max_pins);
      return;
    }
    std::map<absl::string_view, const GraphLayer*> layers;
    if (graph_) {
      for (const GraphLayer& layer : graph_->layers()) layers[layer.name] = &layer;
    }
    std::set<absl::string_view> pinned;
    for (int i = 0; i < pins.size(); ++i) {
      const v1::LayerPin& pin = pins[i];
      const std::string field = absl::StrCat("cluster.layer[", i, "]");
      if (!pinned.insert(pin.layer()).second) {
        Add(field + ".layer", "is ", Quoted(pin.layer()), " once more; pin a layer once");
        continue;
      }
      const bool splits = pin.parallelism() != v1::LayerPin::PARALLELISM_UNSPECIFIED;
      if (!splits && !pin.at().empty()) continue;
      if (IndexOfParallelism(pin.parallelism()).empty()) {
        Add(field + ".parallelism", "is ", pin.parallelism(),
            "; give DATA, MODEL, MODEL_IN or DOMAIN, or place the layer with 'at'");
        continue;
      }
      if (!graph_) continue;
      const auto layer = layers.find(pin.layer());
      if (layer == layers.end()) {
        Add(field + ".layer", "is ", Quoted(pin.layer()), ", which is not a layer of the model");
      } else {
        CheckLayerPin(field + ".parallelism", pin, *layer->second);
      }
    }
    CheckPlacement();
  }

  void CheckRecompute() {
    const v1::Cluster& cluster = spec_.cluster();
    if (!v1::Recomputation::Choice_IsValid(cluster.recompute())) {
      Add("cluster.recompute", "is ", cluster.recompute(), "; give AUTO, OFF or ALL");
    }
  }

  void CheckPlacement() {
    if (!graph_) return;
    LayerCoordinates placed;
    if (const auto error = PlaceLayers(spec_.cluster(), *graph_, &placed)) {
      Add(error->pin == PlacementError::kMesh ? "cluster.mesh"
                                              : absl::StrCat("cluster.layer[", error->pin, "].at"),
          error->text);
    }
  }

  // Checks that the layer has the index of the pin.
  void CheckLayerPin(const std::string& field, const v1::LayerPin& pin, const GraphLayer& layer) {
    const absl::string_view index = IndexOfParallelism(pin.parallelism());
    if (!HasIndex(layer, index)) {
      absl::string_view reason;
      if (layer.shares_weight) {
        reason = ", since it shares its weight with another layer";
      } else if (layer.sampled_classes > 0 && index == "out") {
        reason = ", since the loss samples its outputs";
      }
      Add(field, "is '", EnumText(pin.parallelism()), "', but layer '", layer.name,
          "' can only be split along ", ParallelismsOf(&layer), reason);
    } else if (index != "samples" && IsDataAlone()) {
      Add(field, "is '", EnumText(pin.parallelism()),
          "', but cluster.mesh has no axis besides data to give to it");
    }
  }
};

}  // namespace

uint32_t RanksAlong(const v1::Cluster& cluster, absl::string_view name) {
  if (cluster.mesh().empty()) {
    if (name == kStageAxis) return 1;
    return OrOne(name == kModelAxis ? cluster.model_ranks() : cluster.space_ranks());
  }
  for (const v1::MeshAxis& axis : cluster.mesh()) {
    if (axis.name() == name) return OrOne(axis.size());
  }
  return 1;
}

std::vector<Problem> ClusterProblems(const v1::RunSpec& spec, const Graph* graph) {
  return ClusterValidation(spec, graph).Run();
}

}  // namespace cadre
