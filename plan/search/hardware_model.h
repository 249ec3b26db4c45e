// The hardware of one group as the planner models it: identical ranks on hosts of `per_host` ranks
// each, numbered host by host.
//
// A value and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "plan/cost/collective_cost.h"
#include "plan/cost/overlap.h"
#include "plan/layer_part.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tensor/mesh.h"

namespace cadre {

// Measured times of a model's layers on one kind of device. Layers are timed in parts (the part of
// a layer that one rank computes, plan/layer_part.h); times of other parts are interpolated.
class MeasuredLayers {
 public:
  MeasuredLayers() = default;
  // Ignores entries of layers that the graph does not have.
  MeasuredLayers(const v1::ModelTimes& times, const Graph& graph);

  bool empty() const { return times_.empty(); }
  // The time of this part if exactly this part was measured. Otherwise interpolates linearly by
  // work between the nearest smaller and larger measured parts, or scales the nearest one. nullopt:
  // the layer was not measured.
  std::optional<LayerSeconds> Of(int layer, const LayerPart& part) const;

 private:
  std::map<int, std::map<LayerPart, LayerSeconds>> times_;
};

struct HardwareModel {
  // The link between ranks of different hosts.
  LinkProfile link;
  v1::LinkProfile::Kind link_kind = v1::LinkProfile::KIND_UNSPECIFIED;
  // The link between ranks of one host.
  LinkProfile inside;
  int per_host = 1;
  // Cores that the `per_host` ranks of a host share; 0: every thread has its own core.
  double cores = 0;
  // Floating-point operations per second of a rank; 0: compute time is not modelled.
  double flops = 0;
  MeasuredLayers times;
  // Seconds to update, and to copy, one element.
  double update_seconds = 0;
  double copy_seconds = 0;
  // Memory of a rank; 0: no limit.
  int64_t memory_bytes = 0;

  bool computes() const { return flops > 0 || !times.empty(); }

  // The link between ranks that differ only along these axes of the mesh: `inside` if all of them
  // are on one host, `link` otherwise.
  const LinkProfile& LinkOf(const Mesh& mesh, const std::vector<std::string>& axes) const;
  // Compute time of a part of layer `number`: measured, or work over flops with backward taking
  // twice as long as forward; 0 if neither is known.
  LayerSeconds SecondsOf(const GraphLayer& layer, int number, const LayerPart& part) const;
};

// Hardware with the same link between all ranks; the rest is unknown except `flops`.
HardwareModel UniformHardware(const LinkProfile& link, double flops);

// The hardware of `ranks` workers, numbered host by host in the profile's order and beginning with
// first_worker: the slowest link between their hosts, the slowest device, the minimum memory.
// Errors: InvalidArgument if the profile has fewer workers, and errors of CheckProfile.
absl::StatusOr<HardwareModel> HardwareOf(const v1::ClusterProfile& profile, const v1::Model& model,
                                         const Graph& graph, int first_worker, int ranks);

}  // namespace cadre
