// Versions that the coordinator judges before it publishes them (Apply.attempt), and what
// aggregators measure for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "model/change_sums.h"
#include "server/block_changes.h"
#include "server/client/refusal.h"
#include "server/order_execution.h"
#include "tests/base/expect.h"
#include "tests/server/coded_rounds_fixture.h"
#include "tests/server/ledger_fixture.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Apply Attempt(v1::Apply order, uint32_t attempt) {
  order.set_attempt(attempt);
  return order;
}

v1::Publish PublishOf(const SmallRun& run, uint32_t version) {
  v1::Publish publish;
  publish.set_run(run.run);
  publish.set_round(version);
  return publish;
}

std::vector<double> LengthsIn(const v1::Applied& applied) {
  std::vector<double> lengths;
  for (const double squared : applied.changes().squared()) lengths.push_back(std::sqrt(squared));
  return lengths;
}

TEST(ChangeSumsTest, AreThoseOfTheChanges) {
  const std::vector<float> before = {1, 2, 3};
  const std::vector<float> weights = {0.25F, 0.75F};
  v1::ChangeSums sums = NoChanges(2);
  BlockChanges block;
  for (int repeat = 0; repeat < 2; ++repeat) {
    block.Begin(before, weights);
    block.Add(std::vector<float>{2, 2, 3}, 1);
    block.Add(std::vector<float>{1, 4, 4}, 5);
    block.End(sums);
  }
  // The changes are (1, 0, 0) and (0, 2, 1), their mean (0.25, 1.5, 0.75).
  EXPECT_THAT(sums.squared(), ElementsAre(2, 10));
  EXPECT_THAT(sums.sampled_squared(), ElementsAre(2, 10));
  EXPECT_THAT(sums.product(), ElementsAre(0.5, 7.5));
  EXPECT_THAT(sums.mean_squared(), ElementsAre(2 * 2.875));
}

TEST(ChangeSumsTest, SampleIsASixteenth) {
  const std::vector<float> before(4096 + 100);
  v1::ChangeSums sums = NoChanges(1);
  BlockChanges block;
  const std::vector<float> weights = {1};
  block.Begin(before, weights);
  block.Add(std::vector<float>(before.size(), 1), 4196);
  block.End(sums);
  EXPECT_EQ(sums.sampled_squared(0), 4 * 64 + 64);
}

TEST(ChangeSumsTest, InfiniteSumsRemain) {
  v1::ChangeSums sums = NoChanges(2);
  v1::ChangeSums more = UnknownChanges(2);
  more.set_squared(1, std::numeric_limits<double>::infinity());
  AddChanges(more, sums);
  AddChanges(UnknownChanges(2), sums);
  EXPECT_TRUE(std::isnan(sums.squared(0)));
  EXPECT_TRUE(std::isinf(sums.squared(1)));
}

TEST_F(LedgerTest, UnpublishedVersionIsMadeAgain) {
  StageAll({.round = 1, .group = 0}, 0, 15);
  StageAll({.round = 1, .group = 1}, 0, 15);
  const v1::Apply both = MakeApply(run_, 1, {{.group = 0}, {.group = 1}});
  const v1::Apply one = MakeApply(run_, 1, {{.group = 1}});
  Plan(Attempt(both, 1));
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {1001}), IsEmpty()) << "they may be needed";
  EXPECT_EQ(ledger_.Unpublished(run_.run)->version, 1u);
  EXPECT_EQ(Get<AlreadyApplied>(ledger_.BeginApply(Attempt(both, 1))).stats.digest, 1001u);
  EXPECT_THAT(WhyNot(Attempt(one, 1)), HasSubstr("was made of group 0"));
  EXPECT_EQ(Plan(Attempt(one, 2)).groups.size(), 1u);
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {1002}), IsEmpty());
  EXPECT_EQ(Get<AlreadyApplied>(ledger_.BeginApply(Attempt(one, 2))).stats.digest, 1002u);
  EXPECT_THAT(WhyNot(Attempt(both, 1)), HasSubstr("was made of group 1")) << "an old order";
  EXPECT_EQ(ledger_.Publish(run_.run, 0).size(), 0u) << "another version";
  EXPECT_EQ(ledger_.Publish(run_.run, 1).size(), 2u);
  EXPECT_FALSE(ledger_.Unpublished(run_.run).has_value());
  EXPECT_THAT(WhyNot(Attempt(both, 3)), HasSubstr("was made of group 1")) << "it is published";
}

TEST_F(LedgerTest, HollowShardMakesAVersionAgain) {
  SmallRun run = run_;
  RunTerms terms = Terms(run);
  terms.hollow = 4;
  terms.version = 4;
  Get<Opened>(ledger_.OpenRun(terms));
  StageAll({.round = 5, .group = 0}, 0, 15);
  StageAll({.round = 5, .group = 1}, 0, 15);
  Plan(Attempt(MakeApply(run_, 5, {{.group = 0}, {.group = 1}}), 1));
  ledger_.VersionDurable(run_.run, 5, {1005});
  EXPECT_EQ(Plan(Attempt(MakeApply(run_, 5, {{.group = 1}}), 2)).groups.size(), 1u);
}

TEST_F(LedgerTest, HollowShardDoesNotClip) {
  RunTerms terms = Terms(run_);
  terms.hollow = 4;
  terms.version = 4;
  Get<Opened>(ledger_.OpenRun(terms));
  StageAll({.round = 5, .group = 0}, 0, 15);
  v1::Apply order = MakeApply(run_, 5, {{.group = 0}});
  order.mutable_participants(0)->set_scale(0.5F);
  EXPECT_EQ(Get<LacksVersion>(ledger_.BeginApply(order)).version, 4u);
}

TEST_F(LedgerTest, OrdersThatLeaveEverythingOutAreRefused) {
  StageAll({.round = 1, .group = 0}, 0, 15);
  StageAll({.round = 1, .group = 1}, 0, 15);
  v1::Apply order = MakeApply(run_, 1, {{.group = 0}, {.group = 1}});
  order.set_trim(1);
  EXPECT_THAT(WhyNot(order), HasSubstr("leaves all values out"));
}

class ScreenedHostTest : public ShardHostTest {
 protected:
  void SetUp() override {
    ShardHostTest::SetUp();
    run_.ranks = 1;
    Open();
    before_ = PullAll(0);
  }
  // The version before, with this change at every position.
  std::vector<float> Changed(float change) const {
    std::vector<float> values = before_;
    for (float& value : values) value += change;
    return values;
  }
  v1::Apply OrderOf(const std::vector<Part>& parts, uint32_t attempt) {
    return Attempt(MakeApply(run_, 1, parts), attempt);
  }

  std::vector<float> before_;
};

TEST_F(ScreenedHostTest, MeasuresTheChanges) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, Changed(-2)).ok());
  const v1::Applied applied = Apply(OrderOf({{.group = 0}, {.group = 1}}, 1));
  EXPECT_EQ(applied.attempt(), 1u);
  const double side = std::sqrt(15);
  EXPECT_NEAR(LengthsIn(applied)[0], side, 1e-5);
  EXPECT_NEAR(LengthsIn(applied)[1], 2 * side, 1e-5);
  EXPECT_NEAR(applied.changes().product(1), 15 * -2 * -0.5, 1e-4);
  EXPECT_NEAR(applied.changes().mean_squared(0), 15 * 0.25, 1e-4);
  // They are stored with the version.
  Restart();
  const v1::Applied again = Apply(OrderOf({{.group = 0}, {.group = 1}}, 1));
  EXPECT_EQ(again.digest(), applied.digest());
  EXPECT_EQ(again.changes().SerializeAsString(), applied.changes().SerializeAsString());
}

TEST_F(ScreenedHostTest, ValuesThatAreNotFiniteAreFoundAlsoInOneGroup) {
  std::vector<float> values = Changed(1);
  values[7] = std::nanf("");
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, values).ok());
  values[7] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, values).ok());
  EXPECT_THAT(LengthsIn(Apply(OrderOf({{.group = 0}}, 1))),
              ElementsAre(std::numeric_limits<double>::infinity()));
  EXPECT_THAT(LengthsIn(Apply(OrderOf({{.group = 0}, {.group = 1}}, 2))),
              ElementsAre(std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::infinity()));
}

// Its values are finite, and what the outer optimizer would make of them is not.
TEST_F(ScreenedHostTest, GroupThatMakesTheVersionOverflowIsFound) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  std::vector<float> values = Changed(2);
  values[7] = 3e38F;
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, values).ok());
  v1::Apply order = WithMomentum(OrderOf({{.group = 0}, {.group = 1}}, 1));
  v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
  nesterov.set_learning_rate(2);
  const v1::Applied applied = Apply(order);
  EXPECT_EQ(applied.error(), "");
  EXPECT_TRUE(std::isfinite(LengthsIn(applied)[0]));
  EXPECT_TRUE(std::isinf(LengthsIn(applied)[1]));
  EXPECT_TRUE(std::isfinite(applied.outer().change_squared()));
  EXPECT_EQ(PullAll(1), before_);
  // Without the group, the version is the one that it would be otherwise.
  v1::Apply without = WithMomentum(OrderOf({{.group = 0}}, 2));
  without.mutable_outer()->mutable_optimizer()->mutable_nesterov()->set_learning_rate(2);
  EXPECT_TRUE(std::isfinite(LengthsIn(Apply(without))[0]));
  EXPECT_NEAR(PullAll(1)[7], before_[7] + 2 * 1.9F, 1e-4);
}

// The disk has made a value infinite, and not the group.
TEST_F(ScreenedHostTest, DamageIsNotTakenForValuesThatAreNotFinite) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, Changed(2)).ok());
  std::string bytes = ReadAll(RunPath("stage-1-0-1-0"));
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + bytes.size() - sizeof(infinite), &infinite, sizeof(infinite));
  WriteAll(RunPath("stage-1-0-1-0"), bytes);
  const v1::Apply order = OrderOf({{.group = 0}, {.group = 1}}, 1);
  EXPECT_THAT(host_->Apply(order), IsError(absl::StatusCode::kDataLoss, "stage-1-0-1-0"));
  EXPECT_THAT(Apply(order).missing(), ElementsAre(0U));
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  EXPECT_TRUE(std::isfinite(LengthsIn(Apply(order))[0]));
}

TEST_F(ScreenedHostTest, ValuesThatAreNotFiniteAreFoundInATrimmedMean) {
  run_.run = "run-trimmed";
  run_.groups = 3;
  Open();
  for (uint32_t group = 0; group < 3; ++group) {
    host_->Fence(FenceOf(run_.run, group, run_.generation));
    std::vector<float> values = Changed(group);
    if (group == 2) values[7] = std::nanf("");
    ASSERT_TRUE(Stage({.round = 1, .group = group}, values).ok());
  }
  v1::Apply order = OrderOf({{.group = 0}, {.group = 1}, {.group = 2}}, 1);
  order.set_trim(1);
  const v1::Applied applied = Apply(order);
  EXPECT_TRUE(std::isfinite(LengthsIn(applied)[1]));
  EXPECT_TRUE(std::isinf(LengthsIn(applied)[2]));
}

TEST_F(ScreenedHostTest, VersionIsMadeAgainAlsoAfterARestart) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, Changed(2)).ok());
  const uint64_t both = Apply(OrderOf({{.group = 0}, {.group = 1}}, 1)).digest();
  Restart();
  const v1::Applied one = Apply(OrderOf({{.group = 1}}, 2));
  EXPECT_NE(one.digest(), both);
  EXPECT_EQ(PullAll(1), Changed(2));
  Restart();
  EXPECT_EQ(Apply(OrderOf({{.group = 1}}, 2)).digest(), one.digest());
  EXPECT_EQ(Apply(OrderOf({{.group = 0}, {.group = 1}}, 3)).digest(), both);
  EXPECT_THAT(Files(RunPath("")), ::testing::Contains(HasSubstr("stage-1-")));
  host_->Publish(PublishOf(run_, 1));
  EXPECT_THAT(Files(RunPath("")), ::testing::Not(::testing::Contains(HasSubstr("stage-"))));
  EXPECT_EQ(Apply(OrderOf({{.group = 1}}, 4)).refusal(), v1::REFUSAL_CLOSED_ROUND);
}

// Version 0 is damaged while version 1 is not published: the second attempt needs it.
TEST_F(ScreenedHostTest, ShardWithoutTheVersionBeforeIsHollow) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  ASSERT_TRUE(Stage({.round = 1, .group = 1}, Changed(2)).ok());
  const v1::Applied both = Apply(WithMomentum(OrderOf({{.group = 0}, {.group = 1}}, 1)));
  std::string bytes = ReadAll(RunPath("version-0"));
  bytes.back() ^= 1;
  WriteAll(RunPath("version-0"), bytes);
  Restart();
  const v1::RunOpened opened = Open();
  EXPECT_FALSE(opened.hollow());
  EXPECT_EQ(opened.digest(), both.digest());
  v1::CoordinatorMessage order;
  *order.mutable_apply() = WithMomentum(OrderOf({{.group = 1}}, 2));
  const OrderResult result = ExecuteOrder(*host_, order);
  EXPECT_EQ(result.repeat, absl::OkStatus());
  ASSERT_TRUE(result.answer.has_value());
  EXPECT_TRUE(result.answer->run_opened().hollow()) << result.answer->DebugString();
  EXPECT_EQ(result.answer->run_opened().version(), 0u);
  EXPECT_EQ(result.answer->run_opened().shards(), 1u);
}

TEST_F(ScreenedHostTest, OpenRunPublishes) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  Apply(OrderOf({{.group = 0}}, 1));
  Restart();
  v1::OpenRun open = run_.Open();
  open.set_version(0);
  ASSERT_TRUE(host_->OpenRun(open).ok());
  EXPECT_THAT(Files(RunPath("")), ::testing::Contains(HasSubstr("stage-1-")));
  open.set_version(1);
  ASSERT_TRUE(host_->OpenRun(open).ok());
  EXPECT_THAT(Files(RunPath("")), ::testing::Not(::testing::Contains(HasSubstr("stage-"))));
}

TEST_F(ScreenedHostTest, ReportNamesTheVersionBeforeUntilTheNewestIsPublished) {
  uint64_t before = Digest(before_, 0);
  for (const uint32_t round : {1, 2}) {
    ASSERT_TRUE(Stage({.round = round, .group = 0}, Changed(static_cast<float>(round))).ok());
    v1::Apply order = OrderOf({{.group = 0}}, 1);
    order.set_round(round);
    const uint64_t digest = Apply(order).digest();
    Restart();
    const v1::RunReport report = host_->ReportRun(run_.run);
    EXPECT_EQ(report.newest().round(), round);
    ASSERT_TRUE(report.has_before());
    EXPECT_EQ(report.before().round(), round - 1);
    EXPECT_EQ(report.before_digest(), before);
    host_->Publish(PublishOf(run_, round));
    EXPECT_FALSE(host_->ReportRun(run_.run).has_before());
    before = digest;
  }
}

TEST_F(ScreenedHostTest, ChangeIsClipped) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  v1::Apply order = OrderOf({{.group = 0}}, 1);
  order.mutable_participants(0)->set_scale(0.25F);
  Apply(order);
  const std::vector<float> values = PullAll(1);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], before_[i] + 0.25F, 1e-6);
}

TEST_F(ScreenedHostTest, CopyAfterAnAttemptIsTheVersionBefore) {
  ASSERT_TRUE(Stage({.round = 1, .group = 0}, Changed(1)).ok());
  Apply(WithMomentum(OrderOf({{.group = 0}}, 1)));
  v1::Apply copy = OrderOf({}, 2);
  copy.set_restores(0);
  Apply(copy);
  EXPECT_EQ(PullAll(1), before_);
  Restart();
  EXPECT_EQ(PullAll(1), before_);
}

TEST_F(CodedRoundsTest, GroupThatMakesTheVersionOverflowIsFound) {
  const std::vector<float> change(size(), 0.5F);
  const std::vector<float> large(size(), 3e38F);
  ASSERT_TRUE(Stage({.group = 0}, FrameOf(large)).ok());
  ASSERT_TRUE(Stage({.group = 1}, FrameOf(change)).ok());
  const auto made = host_->Apply(Attempt(Order(1, {{.group = 0}, {.group = 1}}), 1));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->error(), "");
  EXPECT_TRUE(std::isinf(LengthsIn(*made)[0]));
  EXPECT_TRUE(std::isfinite(LengthsIn(*made)[1]));
  EXPECT_EQ(*Pull(1, {0, size()}), initial_);
  const auto without = host_->Apply(Attempt(Order(1, {{.group = 1}}), 2));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->error(), "");
  EXPECT_TRUE(std::isfinite(LengthsIn(*without)[0]));
  EXPECT_NE(*Pull(1, {0, size()}), initial_);
}

// Whatever the length of one group's change is, the version can be made again without it.
TEST_F(CodedRoundsTest, RoundWithALongChangeIsMade) {
  const std::string frame = FrameOf(std::vector<float>(size(), 0.5F));
  uint64_t digest = 0;
  for (const float length : {1e30F, 1e34F, 1e36F, 1e38F}) {
    run_.run += "0";
    open_.set_run(run_.run);
    ASSERT_TRUE(host_->OpenRun(open_).ok());
    for (const uint32_t group : {0, 1}) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
      const std::string of_group = group == 1 ? frame : FrameOf(std::vector<float>(size(), length));
      const absl::Status staged = Stage({.group = group}, of_group);
      ASSERT_TRUE(staged.ok()) << staged;
    }
    const auto both = host_->Apply(Attempt(Order(1, {{.group = 0}, {.group = 1}}), 1));
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(both->error(), "") << length;
    const auto without = host_->Apply(Attempt(Order(1, {{.group = 1}}), 2));
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_EQ(without->error(), "") << length;
    EXPECT_TRUE(digest == 0 || digest == without->digest()) << length;
    digest = without->digest();
  }
}

TEST_F(CodedRoundsTest, AttemptIsMadeAgainWithItsFrameAndStates) {
  const std::vector<float> change(size(), 0.5F);
  const auto order = [&](std::vector<Part> parts, uint32_t attempt) {
    return Attempt(Order(1, parts), attempt);
  };
  ASSERT_TRUE(Stage({.group = 0}, FrameOf(change)).ok());
  ASSERT_TRUE(Stage({.group = 1}, FrameOf(std::vector<float>(size(), -3))).ok());
  const auto first = host_->Apply(order({{.group = 0}}, 1));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(host_->Apply(order({{.group = 0}, {.group = 1}}, 2)).ok());
  const auto third = host_->Apply(order({{.group = 0}}, 3));
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->digest(), first->digest());
  EXPECT_EQ(third->residual().residual_squared(), first->residual().residual_squared());
  EXPECT_THAT(Files(RunFolder()), ::testing::Not(::testing::Contains("order-1")))
      << "it is archived when it is published";
  host_->Publish(PublishOf(run_, 1));
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->digest, first->digest());
}

}  // namespace
}  // namespace cadre::testing
