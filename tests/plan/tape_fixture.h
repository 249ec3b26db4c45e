// What tests of tapes share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/graph.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tests/model/testing.h"

namespace cadre::testing {

// Splits `index` over `ranks` in every layer that has it.
inline Plan PlanSplitting(const Graph& graph, const std::string& index, int ranks) {
  Plan plan{.mesh = Mesh({{"axis", ranks}})};
  for (const GraphLayer& layer : graph.layers()) {
    auto layouts = LayOut(layer, plan.mesh, {{index, {"axis"}}});
    if (!layouts.ok()) layouts = LayOut(layer, plan.mesh, {});
    EXPECT_TRUE(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph));
  return plan;
}

// One of two ranks has the layer `far`, and rank 0 has all others.
inline Plan PlanPlacing(const Graph& graph, const std::string& far) {
  Plan plan{.mesh = Mesh({{"stage", 2}})};
  for (const GraphLayer& layer : graph.layers()) {
    const int stage = layer.name == far ? 1 : 0;
    plan.layers.push_back(*LayOut(layer, plan.mesh, {}, {{.axis = "stage", .coordinate = stage}}));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph));
  return plan;
}

inline void ExpectLiveBuffersDoNotOverlap(const Tape& tape) {
  for (const TapeBuffer& a : tape.buffers) {
    EXPECT_LE(a.offset + a.words, tape.words);
    for (const TapeBuffer& b : tape.buffers) {
      if (&a == &b || a.words == 0 || b.words == 0) continue;
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool apart = a.offset + a.words <= b.offset || b.offset + b.words <= a.offset;
      EXPECT_TRUE(!together || apart) << a.name << " and " << b.name;
    }
  }
}

class TapeFixture : public ::testing::Test {
 protected:
  explicit TapeFixture(const char* model) : graph_(*Graph::FromModel(SpecOf(model).model())) {}

  Plan PlanSplitting(const std::string& index, int ranks) const {
    return testing::PlanSplitting(graph_, index, ranks);
  }

  const TapeOp& Find(const Tape& tape, TapeOpKind kind, const std::string& layer) const {
    const auto found = std::find_if(tape.ops.begin(), tape.ops.end(), [&](const TapeOp& op) {
      return op.kind == kind && graph_[op.layer].name == layer;
    });
    EXPECT_NE(found, tape.ops.end()) << layer;
    return *found;
  }

  const Graph graph_;
};

}  // namespace cadre::testing
