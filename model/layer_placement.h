// The ranks on which a run places layers: by the pins cluster.layer.at, and by the axis `stage`.
//
// Thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/graph.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/mesh.h"

namespace cadre {

// By layer, in the order of the pin: the coordinates at which it exists; empty: on all ranks.
using LayerCoordinates = std::vector<std::vector<AxisCoordinate>>;

struct PlacementError {
  // Position in cluster.layer; kMesh: the error is in cluster.mesh.
  int pin = 0;
  static constexpr int kMesh = -1;
  // A sentence that begins with a verb: the pin, or the mesh, is its subject. It names the layer.
  std::string text;
};

// Whether the run places layers: by a pin, or because its mesh has several stages.
bool PlacesLayers(const v1::Cluster& cluster);

// Whether a pin of the run places a layer on a stage. Otherwise stages are balanced.
bool PinsStages(const v1::Cluster& cluster);

// Places the layers. A pin concerns the layer of its name, or all layers of the block of its name
// ("mixed5" concerns "mixed5/a1/conv"); for each layer and axis the pin with the longest name
// applies. If the mesh has an axis `stage`, every layer has a stage: without a pin, the latest
// stage of the layers that it reads, or 0; if no pin of the run has a stage, stages have about
// equal work (model/balanced_stages.h). If the run does not place layers, `placed` has no entries.
// Returns the first error: more stages than layers, a name without layers, an axis that is not in
// cluster.mesh or is given twice, a coordinate that does not exist, a layer that shares its weight,
// or a layer at an earlier stage than one that it reads (stages would then wait for one another in
// a cycle).
std::optional<PlacementError> PlaceLayers(const v1::Cluster& cluster, const Graph& graph,
                                          LayerCoordinates* placed);

}  // namespace cadre
