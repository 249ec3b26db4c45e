// Tests runs from their submission to their end, with real processes and without faults.
#include <cmath>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);

// The newest status of each group with members.
using Groups = std::map<uint32_t, v1::GroupStatus>;

// Trains to the end; stores the status of the groups, which have no members at the end.
absl::StatusOr<v1::StatusReply> Train(Cluster& cluster, const v1::RunSpec& spec, Groups* groups) {
  const absl::StatusOr<std::string> run = cluster.client().Submit(spec);
  if (!run.ok()) return run.status();
  const auto seen = cluster.Await(
      [&](const v1::StatusReply& status) {
        for (const v1::GroupStatus& group : status.groups()) {
          if (group.run() == *run && group.members_size() > 0 &&
              group.members(group.members_size() - 1).held_size() > 0) {
            (*groups)[group.group()] = group;
          }
        }
        return groups->size() == spec.cluster().groups();
      },
      kLong, "all groups hold their parameters");
  if (!seen.ok()) return seen.status();
  return cluster.AwaitDone(*run, kLong);
}

// The fully connected weights are halved over the group's two ranks; the convolution is whole on
// both.
void ExpectHeld(const v1::GroupStatus& group, uint64_t parameters) {
  EXPECT_GT(group.generation(), 0u);
  EXPECT_EQ(group.mesh().at("model"), 2u);
  ASSERT_EQ(group.members_size(), 2);
  // Every parameter has exactly one owner.
  uint64_t owned = 0;
  for (const v1::GroupMember& member : group.members()) {
    std::map<std::string, v1::HeldParameter> held;
    for (const auto& parameter : member.held()) {
      held[parameter.parameter()] = parameter;
      owned += parameter.owned();
    }
    EXPECT_EQ(held["fc1/weight"].of(), 64u * 1024);
    EXPECT_EQ(held["fc1/weight"].elements(), 64u * 1024 / 2);
    EXPECT_EQ(held["fc2/weight"].elements(), held["fc2/weight"].of() / 2);
    EXPECT_EQ(held["conv1/weight"].elements(), 36u);
    EXPECT_EQ(held["conv1/weight"].of(), 36u);
  }
  EXPECT_EQ(owned, parameters);
}

TEST(TrainingTest, TwoGroupsLearnAndCountBytes) {
  // Slices of about 30 KB, so that headers are a small part of the bytes.
  const SmallRun small = {.epochs = 4, .hidden = 1024};
  Cluster cluster;
  ASSERT_EQ(cluster.StartAll(2, 4), absl::OkStatus());
  Groups groups;
  const auto status = Train(cluster, SmallSpec(small), &groups);
  ASSERT_TRUE(status.ok()) << status.status();
  const v1::RunStatus& run = status->runs(0);

  // 4 epochs of 2048 samples in steps of 2 x 32; a round every 4 steps.
  EXPECT_EQ(run.total_steps(), 128u);
  EXPECT_EQ(run.step(), 128u);
  EXPECT_EQ(run.rounds_committed(), 32u);
  EXPECT_EQ(run.version(), 32u);
  EXPECT_EQ(run.samples(), 4u * 2048);
  EXPECT_NEAR(run.epoch(), 4, 1e-9);
  EXPECT_GT(run.samples_per_second(), 0);
  EXPECT_GT(run.seconds(), 0);

  // The accuracy is between that of guessing, 0.25, and the best possible, 0.99 (cluster.h).
  EXPECT_EQ(run.test().samples(), 512u);
  EXPECT_EQ(run.test().version(), 32u);
  EXPECT_GE(run.test().accuracy(), 0.9);
  EXPECT_THAT(run.digest(), ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(run.digest(), "0000000000000000");

  const uint64_t parameters = SmallParameters(small);
  EXPECT_EQ(run.parameters(), parameters);
  // Each rank stages and pulls its slice. With any mesh these are n values in each direction per
  // group and round.
  EXPECT_EQ(run.payload_bytes_across_groups(), uint64_t{32} * 2 * 2 * parameters * 4);
  EXPECT_GT(run.bytes_across_groups(), run.payload_bytes_across_groups());
  EXPECT_LT(static_cast<double>(run.bytes_across_groups()),
            1.01 * static_cast<double>(run.payload_bytes_across_groups()));
  EXPECT_EQ(run.bytes_across_groups_synchronous(), uint64_t{128} * 2 * 1 * parameters * 4);

  // Both groups learn the same function from different samples, so their models differ, but less
  // than by independent noise.
  EXPECT_EQ(run.discrepancy().rounds(), 32u);
  EXPECT_GT(run.discrepancy().newest(), 0);
  EXPECT_GT(run.discrepancy().smoothed(), 0);
  EXPECT_LE(run.discrepancy().smoothed(), 1);
  EXPECT_NE(run.discrepancy().recommendation(), "");

  EXPECT_EQ(Counter(*status, "rounds_committed"), 32u);
  for (const auto& [name, value] : status->counters()) {
    if (name.rfind("refused_", 0) != 0 && name != "groups_failed") continue;
    EXPECT_EQ(value, 0u) << name;
  }

  ASSERT_EQ(groups.size(), 2u);
  for (const auto& [slot, group] : groups) ExpectHeld(group, parameters);
}

// Predictions are compared with measured times; later runs have predictions from the start.
// Two bits in both directions; the workers of a group exchange other parts than they own.
TEST(TrainingTest, CodedRoundsSendATwelfthOfTheBytes) {
  const SmallRun small = {.epochs = 4, .hidden = 1024};
  Cluster cluster;
  ASSERT_EQ(cluster.StartAll(2, 4), absl::OkStatus());
  v1::RunSpec spec = SmallSpec(small);
  spec.mutable_cluster()->set_keep_plan(true);
  v1::Averaging& averaging = *spec.mutable_averaging();
  averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
  averaging.mutable_down()->set_codec(v1::CODEC_STAT2);
  averaging.mutable_outer()->mutable_nesterov()->set_momentum(0.5F);
  Groups groups;
  const auto status = Train(cluster, spec, &groups);
  ASSERT_TRUE(status.ok()) << status.status();
  const v1::RunStatus& run = status->runs(0);
  EXPECT_EQ(run.rounds_committed(), 32U);
  EXPECT_GE(run.test().accuracy(), 0.9);
  EXPECT_EQ(Counter(*status, "refused_wrong_digest"), 0U);
  const double values = 32.0 * 2 * 2 * static_cast<double>(SmallParameters(small)) * 4;
  EXPECT_LT(static_cast<double>(run.payload_bytes_across_groups()), values / 12);
  EXPECT_GT(run.traffic_factor(), 4 * 10);
  EXPECT_GT(run.outer().correlation(), -1);
  EXPECT_LT(run.outer().correlation(), 1);
}

TEST(TrainingTest, StatusComparesPredictions) {
  Cluster cluster;
  ASSERT_EQ(cluster.StartAll(1, 2), absl::OkStatus());
  const v1::RunSpec spec = SmallSpec(
      {.groups = 1, .ranks = 2, .aggregators = 1, .every_steps = 4, .epochs = 0, .steps = 1000000});
  const auto first = cluster.client().Submit(spec);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto measured = cluster.Await(
      [](const v1::StatusReply& status) {
        return status.groups_size() == 1 && status.groups(0).has_predicted() &&
               status.groups(0).has_measured();
      },
      kLong, "the group has measured its steps");
  ASSERT_TRUE(measured.ok()) << measured.status();
  const v1::GroupStatus& group = measured->groups(0);
  EXPECT_GT(group.predicted().step(), 0);
  EXPECT_GT(group.predicted().compute(), 0);
  EXPECT_GT(group.measured().step(), 0);
  EXPECT_GT(group.measured().compute(), 0);
  EXPECT_GT(group.measured().collectives(), 0);
  EXPECT_DOUBLE_EQ(group.prediction_error(),
                   group.predicted().step() / group.measured().step() - 1);
  EXPECT_EQ(group.prediction_error_cause().empty(), std::abs(group.prediction_error()) <= 0.2)
      << group.prediction_error_cause();
  ASSERT_EQ(cluster.client().Stop(*first, "enough"), absl::OkStatus());

  const auto second = cluster.client().Submit(spec);
  ASSERT_TRUE(second.ok()) << second.status();
  const auto predicted = cluster.Await(
      [&](const v1::StatusReply& status) {
        return status.groups_size() == 1 && status.groups(0).run() == *second &&
               status.groups(0).has_predicted();
      },
      kLong, "the second run has a prediction");
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  EXPECT_GT(predicted->groups(0).predicted().step(), 0);
  EXPECT_FALSE(predicted->groups(0).prediction_from_own_measurement());
}

}  // namespace
}  // namespace cadre::testing
