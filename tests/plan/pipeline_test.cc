#include "plan/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

constexpr auto kAlternating = v1::Cluster::ONE_FORWARD_ONE_BACKWARD;
constexpr auto kForwardFirst = v1::Cluster::ALL_FORWARD_FIRST;

// Like "F0 F1 B0 B1".
std::string TextOf(const PassOrder& order, int stage) {
  std::string text;
  for (const Pass pass : order.OfStage(stage)) {
    absl::StrAppend(&text, text.empty() ? "" : " ", pass.backward ? "B" : "F", pass.micro_batch);
  }
  return text;
}

TEST(PassOrder, AlternatesAfterTheFirstForwards) {
  const PassOrder order(kAlternating, 3, 4, 1);
  EXPECT_EQ(TextOf(order, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(TextOf(order, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(TextOf(order, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(order.InFlight(0), 3);
  EXPECT_EQ(order.InFlight(2), 1);
}

TEST(PassOrder, AllForwardFirst) {
  const PassOrder order(kForwardFirst, 2, 3, 1);
  for (const int stage : {0, 1}) {
    EXPECT_EQ(TextOf(order, stage), "F0 F1 F2 B0 B1 B2");
    EXPECT_EQ(order.InFlight(stage), 3);
  }
}

TEST(PassOrder, OneStagePlaysOneMicroBatchAfterTheOther) {
  for (const auto pipeline : {kAlternating, kForwardFirst}) {
    const PassOrder order(pipeline, 1, 3, 0);
    EXPECT_EQ(TextOf(order, 0), "F0 B0 F1 B1 F2 B2");
    EXPECT_EQ(order.InFlight(0), 1);
  }
}

// The sequence that plan/pipeline.cc needs to show that ranks cannot deadlock.
void ExpectSequence(const PassOrder& order, int reach) {
  std::vector<bool> taken(order.Positions(), false);
  for (int s = 0; s < order.stages(); ++s) {
    int last = -1;
    for (const Pass pass : order.OfStage(s)) {
      const int position = order.Position(s, pass);
      ASSERT_GT(position, last) << "the order of the stage";
      last = position;
      ASSERT_FALSE(taken.at(position));
      taken[position] = true;
      const int i = pass.micro_batch;
      if (pass.backward) {
        ASSERT_GT(position, order.Position(s, {.micro_batch = i}));
        if (s + 1 < order.stages()) {
          ASSERT_GT(position, order.Position(s + 1, {.backward = true, .micro_batch = i}));
        }
        continue;
      }
      if (s > 0) {
        ASSERT_GT(position, order.Position(s - 1, {.micro_batch = i}));
      }
      const int reused = i - order.InFlight(s);
      for (int to = std::max(0, s - reach); to <= s && reused >= 0; ++to) {
        ASSERT_GT(position, order.Position(to, {.backward = true, .micro_batch = reused}))
            << "gradients that are sent from the memory are received";
      }
    }
  }
}

TEST(PassOrder, HasASequenceInWhichSendsPrecedeReceives) {
  for (const auto pipeline : {kAlternating, kForwardFirst}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        for (int reach = stages == 1 ? 0 : 1; reach < stages; ++reach) {
          SCOPED_TRACE(absl::StrCat(stages, " stages, ", micro_batches, " micro-batches"));
          ExpectSequence(PassOrder(pipeline, stages, micro_batches, reach), reach);
        }
      }
    }
  }
}

// a -> b -> c, and a second edge from a to c.
constexpr char kChain[] = R"(model {
  input { channels: 4 height: 1 width: 1 }
  layer { name: "a" convolution { out_channels: 4 kernel: 1 } }
  layer { name: "b" relu {} }
  layer { name: "c" input: "b" input: "a" add {} }
  layer { name: "flat" flatten {} }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class PlannedOrder : public ::testing::Test {
 protected:
  // The layers are at these stages.
  Plan PlanOf(const std::vector<int>& stages) const {
    Plan plan{.mesh = Mesh({{"stage", 3}})};
    for (int l = 0; l < graph_.size(); ++l) {
      plan.layers.push_back(
          *LayOut(graph_[l], plan.mesh, {}, {{.axis = "stage", .coordinate = stages[l]}}));
    }
    return plan;
  }
  int StagesOf(const Plan& plan, int micro_batches = 4) const {
    return PassOrderOf(kAlternating, micro_batches, graph_, plan).stages();
  }

  const Graph graph_ = *Graph::FromModel(testing::SpecOf(kChain).model());
};

TEST_F(PlannedOrder, IsAPipelineIfStagesFollowOneAnother) {
  EXPECT_EQ(StagesOf(PlanOf({0, 1, 2, 2, 2})), 3);
  EXPECT_EQ(StagesOf(PlanOf({0, 1, 0, 0, 0})), 1) << "c would be before b, which it reads";
  EXPECT_EQ(StagesOf(PlanOf({0, 1, 2, 2, 2}), /*micro_batches=*/1), 1);
  Plan everywhere{.mesh = Mesh({{"stage", 3}})};
  for (int l = 0; l < graph_.size(); ++l) {
    everywhere.layers.push_back(*LayOut(graph_[l], everywhere.mesh, {}, {}));
  }
  EXPECT_EQ(StagesOf(everywhere), 1);
  EXPECT_EQ(PassOrderOf(v1::Cluster::NO_PIPELINE, 4, graph_, PlanOf({0, 1, 2, 2, 2})).stages(), 1);
}

}  // namespace
}  // namespace cadre
