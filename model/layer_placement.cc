#include "model/layer_placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/balanced_stages.h"

namespace cadre {
namespace {

template <typename... Text>
PlacementError Error(int pin, const Text&... text) {
  return {pin, absl::StrCat(text...)};
}

std::string CoordinateText(const v1::AxisCoordinate& at) {
  return absl::StrCat(absl::CEscape(at.axis()), "@", at.coordinate());
}

class Placer {
 public:
  Placer(const v1::Cluster& cluster, const Graph& graph) : cluster_(cluster), graph_(graph) {}

  std::optional<PlacementError> Run(LayerCoordinates* placed) {
    placed->clear();
    if (!PlacesLayers(cluster_)) return std::nullopt;
    for (int p = 0; p < cluster_.layer_size(); ++p) {
      if (auto error = CheckPin(p)) return error;
    }
    if (auto error = BalanceStages()) return error;
    for (int l = 0; l < graph_.size(); ++l) {
      placed->emplace_back();
      if (auto error = Place(l, *placed)) return error;
    }
    return std::nullopt;
  }

 private:
  // The coordinate of a layer on an axis, and the pin that determines it.
  struct Choice {
    int pin = -1;
    int coordinate = 0;
  };

  static bool Concerns(const v1::LayerPin& pin, const std::string& layer) {
    return layer == pin.layer() || absl::StartsWith(layer, pin.layer() + "/");
  }

  const v1::MeshAxis* FindAxis(const std::string& name) const {
    const auto found = std::find_if(cluster_.mesh().begin(), cluster_.mesh().end(),
                                    [&](const auto& axis) { return axis.name() == name; });
    return found == cluster_.mesh().end() ? nullptr : &*found;
  }

  std::optional<PlacementError> CheckPin(int p) const {
    const v1::LayerPin& pin = cluster_.layer(p);
    if (pin.at().empty()) return std::nullopt;
    const std::string name = absl::StrCat("'", absl::CEscape(pin.layer()), "'");
    const bool known = std::any_of(graph_.layers().begin(), graph_.layers().end(),
                                   [&](const auto& layer) { return Concerns(pin, layer.name); });
    if (!known)
      return Error(p, "places ", name, ", which is neither a layer nor a block of layers");
    std::set<std::string> axes;
    for (const v1::AxisCoordinate& at : pin.at()) {
      const v1::MeshAxis* axis = FindAxis(at.axis());
      if (axis == nullptr) {
        return Error(p, "places layer ", name, " at ", CoordinateText(at),
                     ", but cluster.mesh has no axis '", absl::CEscape(at.axis()), "'");
      }
      if (!axes.insert(at.axis()).second) {
        return Error(p, "places layer ", name, " twice on axis ", at.axis());
      }
      if (at.coordinate() >= axis->size()) {
        return Error(p, "places layer ", name, " at ", CoordinateText(at),
                     ", which does not exist; axis ", at.axis(),
                     " of cluster.mesh has the coordinates 0 to ",
                     static_cast<int64_t>(axis->size()) - 1);
      }
    }
    return std::nullopt;
  }

  Choice PinOf(const std::string& layer, const std::string& axis) const {
    Choice choice;
    for (int p = 0; p < cluster_.layer_size(); ++p) {
      const v1::LayerPin& pin = cluster_.layer(p);
      if (!Concerns(pin, layer)) continue;
      for (const v1::AxisCoordinate& at : pin.at()) {
        if (at.axis() != axis) continue;
        const bool longer =
            choice.pin < 0 || pin.layer().size() > cluster_.layer(choice.pin).layer().size();
        if (!longer) continue;
        choice.pin = p;
        choice.coordinate = at.coordinate();
      }
    }
    return choice;
  }

  // Sets balanced_ if no pin has a stage.
  std::optional<PlacementError> BalanceStages() {
    const v1::MeshAxis* stages = FindAxis(kStageAxis);
    if (stages == nullptr || stages->size() <= 1 || PinsStages(cluster_)) return std::nullopt;
    if (stages->size() > static_cast<uint32_t>(graph_.size())) {
      return Error(PlacementError::kMesh, "has ", stages->size(), " stages, but the model has ",
                   graph_.size(), " layers");
    }
    balanced_ = BalancedStages(graph_, static_cast<int>(stages->size()));
    return std::nullopt;
  }

  // Requires: layers before `l` are placed.
  std::optional<PlacementError> Place(int l, LayerCoordinates& placed) const {
    const GraphLayer& layer = graph_[l];
    for (const v1::MeshAxis& axis : cluster_.mesh()) {
      Choice choice = PinOf(layer.name, axis.name());
      if (axis.name() == kStageAxis && !balanced_.empty()) {
        choice.coordinate = balanced_[l];
      } else if (axis.name() == kStageAxis) {
        if (auto error = FollowStages(layer, placed, choice)) return error;
      } else if (choice.pin < 0) {
        continue;
      }
      if (layer.shares_weight && axis.size() > 1) {
        return Error(choice.pin, "places layer '", layer.name, "' on some ranks of axis ",
                     axis.name(), ", but it shares its weight, so every rank needs it");
      }
      placed[l].push_back({.axis = axis.name(), .coordinate = choice.coordinate});
    }
    return std::nullopt;
  }

  // Sets the stage of a layer without a pin; checks that of a pinned one.
  std::optional<PlacementError> FollowStages(const GraphLayer& layer,
                                             const LayerCoordinates& placed, Choice& choice) const {
    for (const int producer : layer.inputs) {
      if (producer == Graph::kInput) continue;
      const auto at = std::find_if(placed[producer].begin(), placed[producer].end(),
                                   [](const auto& each) { return each.axis == kStageAxis; });
      if (at->coordinate <= choice.coordinate) continue;
      if (choice.pin >= 0) {
        return Error(choice.pin, "places layer '", layer.name, "' at stage@", choice.coordinate,
                     ", but it reads layer '", graph_[producer].name, "' at stage@", at->coordinate,
                     "; a layer cannot be at an earlier stage than a layer that it reads");
      }
      choice.coordinate = at->coordinate;
    }
    return std::nullopt;
  }

  const v1::Cluster& cluster_;
  const Graph& graph_;
  // By layer; empty: stages follow from pins.
  std::vector<int> balanced_;
};

}  // namespace

bool PlacesLayers(const v1::Cluster& cluster) {
  return std::any_of(cluster.layer().begin(), cluster.layer().end(),
                     [](const v1::LayerPin& pin) { return !pin.at().empty(); }) ||
         std::any_of(cluster.mesh().begin(), cluster.mesh().end(), [](const v1::MeshAxis& axis) {
           return axis.name() == kStageAxis && axis.size() > 1;
         });
}

bool PinsStages(const v1::Cluster& cluster) {
  return std::any_of(cluster.layer().begin(), cluster.layer().end(), [](const v1::LayerPin& pin) {
    return std::any_of(pin.at().begin(), pin.at().end(),
                       [](const v1::AxisCoordinate& at) { return at.axis() == kStageAxis; });
  });
}

std::optional<PlacementError> PlaceLayers(const v1::Cluster& cluster, const Graph& graph,
                                          LayerCoordinates* placed) {
  return Placer(cluster, graph).Run(placed);
}

}  // namespace cadre
