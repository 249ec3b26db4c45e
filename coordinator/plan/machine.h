// The ranks of one group as the planner sees them: all alike, on hosts of `per_host` ranks each,
// numbered host by host.
//
// A value and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/profile.pb.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/layer_part.h"
#include "tensor/mesh.h"

namespace cadre {

// Seconds.
struct LayerSeconds {
  double forward = 0;
  double backward = 0;
};

// Measured times of a model's layers on one kind of device, and what follows for sizes in between.
class MeasuredLayers {
 public:
  MeasuredLayers() = default;
  // Entries of layers that the graph has not are left out.
  MeasuredLayers(const v1::ModelTimes& times, const Graph& graph);

  bool empty() const { return times_.empty(); }
  // What was measured of that very part; else, in proportion to work, between the two measured
  // parts that are nearest below and above in work, or from the nearest. Nothing: the layer was not
  // measured.
  std::optional<LayerSeconds> Of(int layer, const LayerPart& part) const;

 private:
  std::map<int, std::map<LayerPart, LayerSeconds>> times_;
};

// (Not to be taken for the coordinator's state machine, coordinator/machine.h.)
struct GroupMachine {
  // Between ranks of different hosts, and of one.
  LinkProfile link;
  std::string link_kind;
  LinkProfile inside;
  int per_host = 1;
  // Cores that the `per_host` ranks of a host share; 0: one for every thread.
  double cores = 0;
  // Floating-point operations a second of a rank; 0: computing is not predicted.
  double flops = 0;
  MeasuredLayers times;
  double update_seconds = 0;
  double copy_seconds = 0;
  // Of a rank; 0: no limit.
  int64_t memory_bytes = 0;

  bool computes() const { return flops > 0 || !times.empty(); }

  // What connects ranks that differ only along these axes of the mesh: `inside` where they are
  // all on one host, `link` otherwise.
  const LinkProfile& LinkOf(const Mesh& mesh, const std::vector<std::string>& axes) const;
  // Seconds of a layer's part: measured, or work over flops, backward taking two forwards; 0 where
  // nothing is known.
  LayerSeconds SecondsOf(const GraphLayer& layer, int number, const LayerPart& part) const;
};

// A link that all ranks share, and nothing else.
GroupMachine UniformMachine(const LinkProfile& link, double flops);

// The machine of `ranks` workers, taken host by host in the profile's order: the slowest link among
// the hosts that they are on, the slowest device, the least memory. Errors: InvalidArgument when
// the profile has fewer workers; what CheckProfile finds.
absl::StatusOr<GroupMachine> MachineOf(const v1::ClusterProfile& profile, const v1::Model& model,
                                       const Graph& graph, int first_worker, int ranks);

// Workers of all hosts.
int64_t WorkersOf(const v1::ClusterProfile& profile);

}  // namespace cadre
