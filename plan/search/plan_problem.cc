// Reads what the user has fixed.
//
// A valid spec (model/validate.h) describes a group of full size. The problem may be about another
// number of ranks: a group that has lost workers shrinks its mesh to divisors of the remaining
// ranks, and `cadre plan` plans for any number of workers. The pins are therefore checked here
// again, for the actual number of ranks. A pin of a layer assigns all axes but `data` to one index,
// so a mesh of `data` alone can satisfy only pins to samples.
#include "plan/search/plan_problem.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/optimizer_state.h"
#include "plan/exchange_memory.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

constexpr int64_t kMaxProblemRanks = 1 << 20;

template <typename... Text>
absl::Status Invalid(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat(text...));
}

int OrOne(uint32_t value) { return std::clamp<int64_t>(value, 1, kMaxProblemRanks); }

std::string ToText(const std::vector<Mesh::Axis>& axes) {
  return absl::StrJoin(axes, ",", [](std::string* out, const Mesh::Axis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
  });
}

const Mesh::Axis* FindAxis(const std::vector<Mesh::Axis>& axes, absl::string_view name) {
  const auto found =
      std::find_if(axes.begin(), axes.end(), [&](const Mesh::Axis& a) { return a.name == name; });
  return found == axes.end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<Mesh::Axis>> MeshInSpec(const v1::Cluster& cluster) {
  std::vector<Mesh::Axis> axes;
  for (const v1::MeshAxis& axis : cluster.mesh()) {
    if (axis.name() != kDataAxis && axis.name() != kSpaceAxis && axis.name() != kModelAxis &&
        axis.name() != kStageAxis) {
      return Invalid("cluster.mesh: axis '", absl::CEscape(axis.name()),
                     "' is not data, space, model or stage");
    }
    if (FindAxis(axes, axis.name()) != nullptr) {
      return Invalid("cluster.mesh: axis '", axis.name(), "' is listed twice");
    }
    if (axis.size() < 1 || axis.size() > kMaxProblemRanks) {
      return Invalid("cluster.mesh: axis '", axis.name(), "' has ", axis.size(), " ranks");
    }
    Mesh::Axis& pinned = axes.emplace_back();
    pinned.name = axis.name();
    pinned.size = axis.size();
  }
  return axes;
}

// Checks model_ranks or space_ranks against the pinned mesh, if the spec has both.
absl::Status CheckAgrees(const std::vector<Mesh::Axis>& mesh, absl::string_view field,
                         uint32_t ranks, absl::string_view axis) {
  if (ranks == 0) return absl::OkStatus();
  const Mesh::Axis* pinned = FindAxis(mesh, axis);
  const int size = pinned == nullptr ? 1 : pinned->size;
  if (size == OrOne(ranks)) return absl::OkStatus();
  return Invalid("cluster.", field, " is ", ranks, ", but cluster.mesh (", ToText(mesh), ") has ",
                 size, " along ", axis);
}

// The mesh of a group with fewer ranks than its pinned mesh: `stage`, `model` and then `space` get
// the largest divisors up to their pinned sizes, `data` gets the rest.
std::vector<Mesh::Axis> ShrinkMesh(std::vector<Mesh::Axis> axes, int ranks) {
  for (const char* name : {kStageAxis, kModelAxis, kSpaceAxis, kDataAxis}) {
    for (Mesh::Axis& axis : axes) {
      if (axis.name != name) continue;
      axis.size = axis.name == kDataAxis ? ranks : LargestDivisor(ranks, axis.size);
      ranks /= axis.size;
    }
  }
  if (FindAxis(axes, kDataAxis) == nullptr && ranks > 1) {
    axes.insert(axes.begin(), {kDataAxis, ranks});
  }
  return axes;
}

absl::StatusOr<std::vector<Mesh::Axis>> PinnedMesh(const v1::Cluster& cluster, int ranks) {
  CADRE_ASSIGN_OR_RETURN(std::vector<Mesh::Axis> axes, MeshInSpec(cluster));
  const bool smaller = ranks < OrOne(cluster.ranks_per_group());
  if (!axes.empty()) {
    CADRE_RETURN_IF_ERROR(CheckAgrees(axes, "model_ranks", cluster.model_ranks(), kModelAxis));
    CADRE_RETURN_IF_ERROR(CheckAgrees(axes, "space_ranks", cluster.space_ranks(), kSpaceAxis));
    if (smaller) return ShrinkMesh(std::move(axes), ranks);
    int64_t product = 1;
    for (const Mesh::Axis& axis : axes)
      product = std::min(product * axis.size, kMaxProblemRanks + 1);
    if (product != ranks) {
      return Invalid("cluster.mesh (", ToText(axes), ") makes ", product, " ranks; there are ",
                     ranks);
    }
    return axes;
  }
  const int model = OrOne(cluster.model_ranks());
  const int space = OrOne(cluster.space_ranks());
  if (cluster.space_ranks() > 0) axes.push_back({kSpaceAxis, space});
  if (cluster.model_ranks() > 0) axes.push_back({kModelAxis, model});
  if (smaller) return axes.empty() ? axes : ShrinkMesh(std::move(axes), ranks);
  if (ranks % model != 0) {
    return Invalid("cluster.model_ranks is ", model, ", which does not divide the ", ranks,
                   " ranks");
  }
  if (ranks / model % space != 0) {
    return Invalid("cluster.space_ranks is ", space, ", which does not divide the ", ranks / model,
                   " ranks that model_ranks leaves of ", ranks);
  }
  return axes;
}

// Adapts coordinates of cluster.mesh to the sizes of the group's mesh.
void Scale(const v1::Cluster& cluster, const std::vector<Mesh::Axis>& mesh, LayerCoordinates& at) {
  for (std::vector<AxisCoordinate>& of_layer : at) {
    for (AxisCoordinate& each : of_layer) {
      for (const v1::MeshAxis& pinned : cluster.mesh()) {
        const Mesh::Axis* axis = FindAxis(mesh, each.axis);
        if (pinned.name() != each.axis || axis == nullptr) continue;
        each.coordinate = int64_t{each.coordinate} * axis->size / pinned.size();
      }
    }
  }
}

absl::Status PlaceByPins(v1::Cluster cluster, const Graph& graph, Pins* pins) {
  // Stages without pins are balanced for the stages that there are.
  for (v1::MeshAxis& axis : *cluster.mutable_mesh()) {
    const Mesh::Axis* actual = FindAxis(pins->mesh, axis.name());
    if (axis.name() == kStageAxis && actual != nullptr && !PinsStages(cluster)) {
      axis.set_size(actual->size);
    }
  }
  if (const auto error = PlaceLayers(cluster, graph, &pins->at)) {
    return Invalid(error->pin == PlacementError::kMesh ? "cluster.mesh " : "cluster.layer ",
                   error->text);
  }
  Scale(cluster, pins->mesh, pins->at);
  return absl::OkStatus();
}

absl::Status PinLayer(const v1::LayerPin& pin, const Graph& graph, Pins* pins) {
  const bool splits = pin.parallelism() != v1::LayerPin::PARALLELISM_UNSPECIFIED;
  if (!splits && !pin.at().empty()) return absl::OkStatus();
  const absl::string_view index = IndexOfParallelism(pin.parallelism());
  if (index.empty()) {
    return Invalid("cluster.layer: parallelism of '", absl::CEscape(pin.layer()), "' is ",
                   pin.parallelism(), "; give DATA, MODEL, MODEL_IN or DOMAIN");
  }
  const auto layer = std::find_if(graph.layers().begin(), graph.layers().end(),
                                  [&](const GraphLayer& each) { return each.name == pin.layer(); });
  if (layer == graph.layers().end()) {
    return Invalid("cluster.layer: the model has no layer '", absl::CEscape(pin.layer()), "'");
  }
  if (!HasIndex(*layer, index)) {
    return Invalid("cluster.layer: layer '", layer->name, "' cannot be split along '",
                   EnumText(pin.parallelism()), "', only along ", ParallelismsOf(&*layer));
  }
  if (!pins->layers.emplace(layer->name, std::string(index)).second) {
    return Invalid("cluster.layer: layer '", layer->name, "' is pinned twice");
  }
  return absl::OkStatus();
}

bool HasRanks(const std::vector<Mesh::Axis>& mesh, absl::string_view axis) {
  const Mesh::Axis* found = FindAxis(mesh, axis);
  return found != nullptr && found->size > 1;
}

// A mesh of data alone has no axis for a layer that is pinned to outputs, inputs or rows.
absl::Status CheckTogether(const Pins& pins, int ranks) {
  int64_t product = 1;
  for (const Mesh::Axis& axis : pins.mesh) product *= axis.size;
  if (ranks == 1 || product != ranks) return absl::OkStatus();
  if (HasRanks(pins.mesh, kSpaceAxis) || HasRanks(pins.mesh, kModelAxis)) return absl::OkStatus();
  for (const auto& [layer, index] : pins.layers) {
    if (index == "samples") continue;
    return Invalid("cluster.layer: layer '", layer, "' is pinned to ", index, ", but the mesh (",
                   ToText(pins.mesh), ") has no axis besides data for it");
  }
  return absl::OkStatus();
}

}  // namespace

int LargestDivisor(int ranks, int at_most) {
  int divisor = std::clamp(at_most, 1, ranks);
  while (ranks % divisor != 0) --divisor;
  return divisor;
}

absl::StatusOr<Pins> PinsOf(const v1::RunSpec& spec, const Graph& graph, int ranks) {
  Pins pins;
  CADRE_ASSIGN_OR_RETURN(pins.mesh, PinnedMesh(spec.cluster(), ranks));
  if (HasRanks(pins.mesh, kSpaceAxis) && graph.input().rank() != 3) {
    return Invalid("the mesh (", ToText(pins.mesh),
                   ") has ranks along space, but the model takes no images, which have rows");
  }
  for (const v1::LayerPin& pin : spec.cluster().layer()) {
    CADRE_RETURN_IF_ERROR(PinLayer(pin, graph, &pins));
  }
  CADRE_RETURN_IF_ERROR(PlaceByPins(spec.cluster(), graph, &pins));
  CADRE_RETURN_IF_ERROR(CheckTogether(pins, ranks));
  return pins;
}

absl::StatusOr<PlanProblem> ProblemOf(const v1::RunSpec& spec, const Graph& graph,
                                      const ParameterIndex& index, int ranks,
                                      HardwareModel hardware) {
  PlanProblem problem{.spec = std::make_shared<v1::RunSpec>(spec),
                      .graph = &graph,
                      .index = &index,
                      .ranks = ranks};
  problem.batch = std::max<int64_t>(1, spec.batch_per_group());
  problem.micro_batches = OrOne(spec.micro_batches());
  problem.pipeline = spec.cluster().pipeline();
  problem.device = spec.cluster().device();
  problem.optimizer_states = std::ssize(OptimizerStateNames(spec.optimizer()));
  if (spec.cluster().device() != v1::Cluster::CUDA) {
    problem.exchange_alone = ExchangeBytesPerValue(spec, 1, /*on_device=*/false);
    problem.exchange_shared = ExchangeBytesPerValue(spec, 2, /*on_device=*/false);
  }
  problem.bf16_weights = spec.precision() == v1::RunSpec::BF16;
  problem.update_together = spec.optimizer().clip_norm() > 0 || UsesTensorNorms(spec.optimizer());
  problem.overlap = spec.cluster().overlap() != v1::Cluster::OFF;
  problem.collectives = spec.cluster().collectives();
  problem.recompute = spec.cluster().recompute();
  problem.hardware = std::move(hardware);
  CADRE_ASSIGN_OR_RETURN(problem.pins, PinsOf(spec, graph, ranks));
  return problem;
}

}  // namespace cadre
