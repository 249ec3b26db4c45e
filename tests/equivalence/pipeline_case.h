// Runs whose layers are divided into stages, for tests of pipelines.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "google/protobuf/text_format.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {

struct PipelineCase {
  std::string model;
  int stages = 2;
  int data = 1;
  uint32_t micro_batches = 4;
  uint32_t batch = 8;
  // More of the run file.
  std::string more;

  int ranks() const { return stages * data; }
};

inline void PrintTo(const PipelineCase& tried, std::ostream* out) {
  *out << tried.model << " in " << tried.stages << " stages";
}

// The layers are divided into stages of about equal numbers of layers.
inline v1::RunSpec SpecOf(const PipelineCase& tried) {
  v1::RunSpec spec = ZooSpec(tried.model);
  spec.set_batch_per_group(tried.batch);
  spec.set_micro_batches(tried.micro_batches);
  CHECK(google::protobuf::TextFormat::MergeFromString(tried.more, &spec)) << tried.more;
  const Graph graph = *Graph::FromModel(spec.model());
  v1::Cluster& cluster = *spec.mutable_cluster();
  for (const auto& [name, size] : {std::pair{"data", tried.data}, {"stage", tried.stages}}) {
    v1::MeshAxis& axis = *cluster.add_mesh();
    axis.set_name(name);
    axis.set_size(size);
  }
  for (int stage = 1; stage < tried.stages; ++stage) {
    v1::LayerPin& pin = *cluster.add_layer();
    pin.set_layer(graph[graph.size() * stage / tried.stages].name);
    v1::AxisCoordinate& at = *pin.add_at();
    at.set_axis("stage");
    at.set_coordinate(stage);
  }
  return spec;
}

}  // namespace cadre
