// AlexNet of the zoo with the parameters of Gholami et al. 2018, for tests whose expected numbers
// are computed by hand: 512 workers, 2048 samples, 2 us per message, 6 GB/s.
#pragma once

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/graph.h"
#include "model/run_file.h"
#include "plan/cost/group_hybrid.h"
#include "plan/cost/network_shape.h"
#include "tests/model/testing.h"

namespace cadre::testing {

inline NetworkShape ZooShape(const std::string& name) {
  const auto file = ReadRunSpec(absl::StrCat(ZooFolder(), "/", name, ".textproto"));
  EXPECT_TRUE(file.ok()) << file.status();
  const auto graph = Graph::FromModel(file->spec.model());
  EXPECT_TRUE(graph.ok()) << graph.status();
  return NetworkShapeOf(*graph);
}

inline WordLink GholamiLink() { return WordLink::OfBandwidth(2e-6, 6e9); }

inline HybridProblem GholamiProblem(const NetworkShape& network, int64_t workers = 512,
                                    double batch = 2048) {
  return {.network = &network, .workers = workers, .batch = batch, .link = GholamiLink()};
}

}  // namespace cadre::testing
