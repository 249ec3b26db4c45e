// What the commit of a round says of the version that the aggregators make.
#include "coordinator/run/commit_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/expect.h"

namespace cadre {
namespace {

v1::RunRecord RunAtVersion3() {
  return Parse<v1::RunRecord>(R"(
      run: "run-1" version: 3 step: 30 samples: 600 train_samples: 1000
      spec {
        batch_per_group: 10
        stop { steps: 100 }
        averaging {
          every_steps: 10
          fragments { count: 4 }
          up { codec: CODEC_INT8 }
          down { codec: CODEC_INT8 }
          outer { nesterov {} }
          screen { trimmed_mean { share: 0.34 } }
        }
        cluster { groups: 3 }
      }
      division { groups: 3 })");
}

v1::CommitRecord ClosedRound(uint32_t groups) {
  v1::CommitRecord commit;
  commit.set_run("run-1");
  commit.set_round(4);
  for (uint32_t group = 0; group < groups; ++group) {
    commit.add_participants()->set_group(group);
    v1::Contributed& claim = *commit.add_claims();
    claim.set_step(40);
    claim.set_samples(100);
    claim.set_loss(2);
    claim.set_rate(0.5F);
    claim.mutable_metrics()->set_tokens(7);
  }
  return commit;
}

TEST(CommitRulesTest, FilledFromTheClaimsAndTheSpec) {
  v1::CommitRecord commit = ClosedRound(3);
  FillFromClaims(RunAtVersion3(), commit);
  EXPECT_EQ(commit.step(), 40U);
  EXPECT_EQ(commit.samples(), 300U);
  EXPECT_EQ(commit.run_samples(), 900U);
  EXPECT_EQ(commit.loss(), 2);
  EXPECT_TRUE(commit.outer().optimizer().has_nesterov());
  EXPECT_EQ(commit.outer().rate(), 0.5F);
  EXPECT_TRUE(commit.has_up());
  EXPECT_TRUE(commit.has_down());
  EXPECT_EQ(commit.fragment(), 4U) << "of the round after version 3";
  EXPECT_EQ(commit.trim(), 1U) << "a third of three groups";
  EXPECT_EQ(commit.division().groups(), 3U);
}

TEST(CommitRulesTest, RunWithTheMeanAlone) {
  v1::RunRecord run = RunAtVersion3();
  run.mutable_spec()->mutable_averaging()->Clear();
  run.mutable_spec()->mutable_averaging()->set_every_steps(10);
  v1::CommitRecord commit = ClosedRound(3);
  FillFromClaims(run, commit);
  EXPECT_FALSE(commit.has_outer());
  EXPECT_FALSE(commit.has_up());
  EXPECT_FALSE(commit.has_down());
  EXPECT_EQ(commit.fragment(), 0U);
  EXPECT_EQ(commit.trim(), 0U);
}

// Nothing remains of the round, so its version says what the version before says.
TEST(CommitRulesTest, CopyKeepsNothingOfTheRound) {
  v1::RunRecord run = RunAtVersion3();
  v1::CommitRecord commit = ClosedRound(3);
  FillFromClaims(run, commit);
  commit.clear_participants();
  commit.clear_claims();
  commit.clear_rate();
  v1::CommitRecord expected = Parse<v1::CommitRecord>(R"(
      run: "run-1" round: 4 restores: 3 step: 30 samples: 0 run_samples: 600 division { groups: 3 })");
  FillCopy(run, commit);
  EXPECT_EQ(commit.DebugString(), expected.DebugString());
  run.set_loss(1.5F);
  expected.set_loss(1.5F);
  FillCopy(run, commit);
  EXPECT_EQ(commit.DebugString(), expected.DebugString());
}

TEST(CommitRulesTest, DivisionFollowsTheNumberOfGroups) {
  v1::RunRecord run = RunAtVersion3();
  EXPECT_EQ(NextDivision(run, 40).DebugString(), run.division().DebugString());
  run.set_scaling_to(3);
  EXPECT_EQ(NextDivision(run, 40).DebugString(), run.division().DebugString());
  run.set_scaling_to(5);
  EXPECT_EQ(NextDivision(run, 40).groups(), 5U);
  EXPECT_NE(NextDivision(run, 40).DebugString(), NextDivision(run, 30).DebugString());
}

}  // namespace
}  // namespace cadre
