#include "member/rank_protocol.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using P = RankProtocol;

class RankProtocolTest : public ::testing::Test {
 protected:
  RankProtocolTest() {
    assignment_.mutable_place()->set_generation(3);
    assignment_.mutable_spec()->set_batch_per_group(8);
    assignment_.mutable_spec()->mutable_averaging()->set_every_steps(4);
  }

  // Handles the event. The action must be of this type, and last.
  template <typename Action>
  Action Expect(const P::Event& event) {
    if (!protocol_) protocol_.emplace(assignment_);
    actions_ = protocol_->Handle(event);
    // Most tests begin without a checkpoint.
    const bool begins = !actions_.empty() && std::holds_alternative<P::Begin>(actions_.back());
    if (begins && !std::is_same_v<Action, P::Begin>) actions_ = protocol_->Handle(P::Kept{});
    const auto* action = actions_.empty() ? nullptr : std::get_if<Action>(&actions_.back());
    if (action != nullptr) return *action;
    ADD_FAILURE() << "another action";
    return {};
  }
  // The report before the last action.
  template <typename Report>
  Report Sent() {
    const auto* send = std::get_if<P::Send>(&actions_.front());
    const auto* report = send == nullptr ? nullptr : std::get_if<Report>(&send->report);
    if (actions_.size() == 2 && report != nullptr) return *report;
    ADD_FAILURE() << "not sent";
    return {};
  }
  static P::Started StartTo(uint32_t step, uint32_t total = 100) {
    P::Started started;
    started.start.set_version(2);
    started.start.set_step(20);
    started.start.set_digest(77);
    started.start.set_next_step(step);
    started.start.set_total_steps(total);
    return started;
  }
  static v1::Decision Version(uint32_t version, uint32_t step, uint32_t next_step) {
    v1::Decision decision;
    decision.set_adopt(true);
    decision.set_version(version);
    decision.set_step(step);
    decision.set_digest(77);
    decision.set_next_step(next_step);
    return decision;
  }
  // Contributes at the boundary 24, trains two steps beyond it and adopts the version of the
  // decision.
  void TrainAheadUntil(const v1::Decision& decision) {
    assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(2);
    Expect<P::Train>(StartTo(24));
    Expect<P::Stage>(P::Trained{});
    Expect<P::Train>(P::Unfinished{});
    Expect<P::AwaitStaged>(P::Trained{});
    Expect<P::AwaitDecision>(P::Staged{});
    Expect<P::Pull>(P::Decided{decision});
    Expect<P::Train>(P::Unfinished{});
    Expect<P::Pull>(P::Trained{});
    Expect<P::Keep>(P::Pulled{.digest = 77});
  }
  void set_max_solo(uint32_t steps) {
    assignment_.mutable_spec()->mutable_averaging()->set_max_solo_steps(steps);
  }

  v1::Assignment assignment_;
  std::optional<P> protocol_;
  P::Actions actions_;
};

TEST_F(RankProtocolTest, OneRound) {
  EXPECT_EQ(Expect<P::Train>(StartTo(24)).until, 24U);
  const auto stage = Expect<P::Stage>(P::Trained{});
  EXPECT_EQ(stage.round, 3U);
  EXPECT_EQ(stage.base_version, 2U);
  EXPECT_EQ(stage.samples, 32U);
  P::Staged staged{.loss = 0.5, .payload_bytes = 9};
  staged.metrics.set_tokens(640);
  EXPECT_FALSE(Expect<P::AwaitDecision>(staged).run_ended);
  const auto contributed = Sent<v1::Contributed>();
  EXPECT_EQ(contributed.place().generation(), 3U);
  EXPECT_EQ(contributed.round(), 3U);
  EXPECT_EQ(contributed.step(), 24U);
  EXPECT_EQ(contributed.samples(), 32U);
  EXPECT_EQ(contributed.payload_bytes(), 9U);
  EXPECT_EQ(contributed.loss(), 0.5F);
  EXPECT_EQ(contributed.metrics().tokens(), 640U);
  // Another group has trained further.
  EXPECT_EQ(Expect<P::Pull>(P::Decided{Version(3, 26, 30)}).version, 3U);
  EXPECT_FALSE(Expect<P::Keep>(P::Pulled{.digest = 77}).may_be_last);
  EXPECT_EQ(Sent<v1::Adopted>().version(), 3U);
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 30U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 32U) << "steps 26 to 30";
}

TEST_F(RankProtocolTest, FirstVersionIsNotPulled) {
  assignment_.add_shards();
  P::Started started = StartTo(4);
  started.start.clear_version();
  started.start.clear_step();
  Expect<P::Initialize>(started);
  Expect<P::Begin>(P::Pulled{.digest = 77});
  EXPECT_EQ(Sent<v1::Adopted>().payload_bytes(), 0U);
  Expect<P::Train>(P::Kept{});
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  // The shards have the values, and the group not any more.
  EXPECT_FALSE(Sent<v1::Contributed>().has_loss()) << "none is known";
  EXPECT_FALSE(Sent<v1::Contributed>().has_metrics());
  EXPECT_EQ(Expect<P::Pull>(P::Decided{Version(0, 0, 4)}).version, 0U);
}

// The run takes its first values from one group; all adopt them before the first step.
TEST_F(RankProtocolTest, OpaqueModelBeginsWithTheValuesOfAGroup) {
  assignment_.mutable_spec()->mutable_model()->mutable_opaque();
  assignment_.mutable_plan()->set_own_loop(true);
  assignment_.add_shards();
  P::Started started;
  started.start.set_next_step(4);
  const auto stage = Expect<P::Stage>(started);
  EXPECT_TRUE(stage.initial);
  EXPECT_EQ(stage.round, 1U);
  EXPECT_FALSE(stage.background);
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_EQ(Sent<v1::Contributed>().step(), 0U);
  EXPECT_EQ(Sent<v1::Contributed>().samples(), 1U);
  EXPECT_EQ(Expect<P::Pull>(P::Decided{Version(1, 0, 4)}).version, 1U);
  EXPECT_EQ(Expect<P::Train>(P::Pulled{.digest = 77}).until, 4U);
  EXPECT_FALSE(Expect<P::Stage>(P::Trained{}).initial);
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_EQ(Sent<v1::Contributed>().samples(), 4U * 8U);
}

TEST_F(RankProtocolTest, FirstContributionHasTheSamplesOfItsSteps) {
  P::Started started;
  started.start.set_digest(77);
  started.start.set_next_step(4);
  Expect<P::Train>(started);
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_EQ(Sent<v1::Contributed>().samples(), 4U * 8U);
}

TEST_F(RankProtocolTest, ProgramsPullVersionZero) {
  assignment_.mutable_plan()->set_own_loop(true);
  assignment_.add_shards();
  P::Started started;
  started.start.set_next_step(4);
  EXPECT_EQ(Expect<P::Pull>(started).version, 0U);
}

TEST_F(RankProtocolTest, OtherRanksSendNothing) {
  assignment_.mutable_place()->set_rank(1);
  Expect<P::Train>(StartTo(24));
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_EQ(actions_.size(), 1U);
}

TEST_F(RankProtocolTest, WrongDigestIsReportedAndEndsTheGeneration) {
  Expect<P::Train>(StartTo(24));
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  Expect<P::Pull>(P::Decided{Version(3, 24, 28)});
  EXPECT_THAT(Expect<P::Fail>(P::Pulled{.digest = 78}).status,
              IsError(kDataLoss, "version 3 as pulled has digest "));
  EXPECT_EQ(Sent<v1::Adopted>().digest(), 78U);
}

TEST_F(RankProtocolTest, SoloStepsEndAtTheLimit) {
  set_max_solo(6);
  Expect<P::Train>(StartTo(24));
  Expect<P::AskPresence>(P::Trained{});
  auto train = Expect<P::Train>(P::Presence{.away = true});
  EXPECT_TRUE(train.resumes);
  EXPECT_EQ(train.until, 28U);
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Presence{.away = true}).until, 30U);
  EXPECT_EQ(protocol_->solo_steps(), 6U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 80U) << "they count";
}

// The other groups wait for it, so it checks after each step whether the coordinator is back.
TEST_F(RankProtocolTest, GroupThatCatchesUpTrainsSoloStepByStep) {
  set_max_solo(6);
  P::Started started = StartTo(21);
  started.start.set_catch_up(true);
  EXPECT_EQ(Expect<P::Train>(started).until, 21U);
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Presence{.away = true}).until, 22U);
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Stage>(P::Presence{}).samples, 16U);
}

TEST_F(RankProtocolTest, SoloStepsEndWithTheRunAndWhenTheCoordinatorIsBack) {
  set_max_solo(20);
  Expect<P::Train>(StartTo(24, /*total=*/29));
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Presence{.away = true}).until, 28U);
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Presence{.away = true}).until, 29U);
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  Expect<P::Pull>(P::Decided{Version(3, 20, 24)});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_FALSE(Expect<P::Train>(P::Kept{}).resumes);
  EXPECT_EQ(protocol_->solo_steps(), 0U);
  Expect<P::AskPresence>(P::Trained{});
  Expect<P::Stage>(P::Presence{.away = false});
}

TEST_F(RankProtocolTest, DecisionChangesDivisionAndTotalSteps) {
  set_max_solo(20);
  assignment_.mutable_spec()->mutable_stop()->set_epochs(1);
  P::Started started = StartTo(24, /*total=*/50);
  started.train_samples = 400;
  started.start.mutable_division()->set_groups(1);
  Expect<P::Train>(started);
  Expect<P::AskPresence>(P::Trained{});
  Expect<P::Stage>(P::Presence{.away = false});
  Expect<P::AwaitDecision>(P::Staged{});
  v1::Decision decision = Version(3, 24, 28);
  decision.mutable_division()->set_groups(4);
  decision.mutable_division()->set_step(24);
  decision.mutable_division()->set_position(192);
  Expect<P::Pull>(P::Decided{decision});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_EQ(protocol_->division().groups(), 4U);
  EXPECT_EQ(protocol_->total_steps(), 31U) << "208 samples are left, 32 per step";
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 28U);
  Expect<P::AskPresence>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Presence{.away = true}).until, 31U) << "solo training ends there";
}

TEST_F(RankProtocolTest, EvaluatesAtTheStartAndAtTheEnd) {
  P::Started started = StartTo(24);
  started.start.set_evaluate_end(10);
  EXPECT_EQ(Expect<P::Evaluate>(started).end, 10U);
  EXPECT_EQ(Expect<P::Train>(P::Evaluated{.correct = 4, .digest = 5, .seconds = 1.5}).until, 24U);
  EXPECT_EQ(Sent<v1::Evaluated>().version(), 2U);
  EXPECT_EQ(Sent<v1::Evaluated>().seconds(), 1.5F);
  EXPECT_EQ(Sent<v1::Evaluated>().end(), 10U);
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  v1::Decision last = Version(3, 24, 0);
  last.set_evaluate_end(7);
  Expect<P::Pull>(P::Decided{last});
  EXPECT_TRUE(Expect<P::Keep>(P::Pulled{.digest = 77}).may_be_last);
  EXPECT_EQ(Expect<P::Evaluate>(P::Kept{}).end, 7U);
  EXPECT_TRUE(Expect<P::AwaitDecision>(P::Evaluated{}).run_ended);
  EXPECT_EQ(Sent<v1::Evaluated>().version(), 3U);
  // Samples of a group that was lost: the version is not pulled again.
  last.set_evaluate_begin(7);
  last.set_evaluate_end(9);
  EXPECT_EQ(Expect<P::Evaluate>(P::Decided{last}).begin, 7U);
}

// The boundary is step 24, and the adoption step 27.
TEST_F(RankProtocolTest, RoundOverlapsSteps) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(3);
  Expect<P::Train>(StartTo(24));
  EXPECT_TRUE(Expect<P::Stage>(P::Trained{}).background);
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 25U);
  EXPECT_FALSE(Expect<P::AwaitStaged>(P::Trained{}).wait);
  EXPECT_FALSE(Expect<P::AwaitDecision>(P::Staged{}).wait);
  EXPECT_EQ(Sent<v1::Contributed>().step(), 24U) << "the boundary";
  EXPECT_EQ(Sent<v1::Contributed>().samples(), 32U) << "those until the boundary";
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 26U);
  EXPECT_FALSE(Expect<P::AwaitDecision>(P::Trained{}).wait);
  EXPECT_TRUE(Expect<P::Pull>(P::Decided{Version(3, 24, 28)}).background);
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 27U);
  EXPECT_FALSE(Expect<P::Pull>(P::Trained{}).background);
  EXPECT_EQ(protocol_->step(), 27U);
  Expect<P::Keep>(P::Pulled{.digest = 77, .exchange_seconds = 0.25, .transfer_seconds = 2});
  EXPECT_EQ(Sent<v1::Adopted>().exchange_seconds(), 0.25F);
  EXPECT_EQ(Sent<v1::Adopted>().transfer_seconds(), 2);
  EXPECT_EQ(protocol_->step(), 24U) << "the version's";
  const auto train = Expect<P::Train>(P::Kept{});
  EXPECT_EQ(train.until, 28U);
  EXPECT_TRUE(train.resumes);
  EXPECT_EQ(std::get<P::Merge>(actions_.front()).step, 27U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 32U) << "steps 24 to 28";
}

TEST_F(RankProtocolTest, AdoptionWaitsForTheRound) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(2);
  Expect<P::Train>(StartTo(24));
  Expect<P::Stage>(P::Trained{});
  Expect<P::Train>(P::Unfinished{});
  Expect<P::AwaitStaged>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 26U);
  EXPECT_TRUE(Expect<P::AwaitStaged>(P::Trained{}).wait);
  EXPECT_TRUE(Expect<P::AwaitDecision>(P::Staged{}).wait);
  EXPECT_FALSE(Expect<P::Pull>(P::Decided{Version(3, 24, 28)}).background);
}

TEST_F(RankProtocolTest, OverlapEndsWithTheRun) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(3);
  Expect<P::Train>(StartTo(24, /*total=*/25));
  Expect<P::Stage>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 25U);
  EXPECT_TRUE(Expect<P::AwaitStaged>(P::Trained{}).wait);
  Expect<P::AwaitDecision>(P::Staged{});
  Expect<P::Pull>(P::Decided{Version(3, 24, 25)});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 25U) << "without a step";
  const auto last = Expect<P::Stage>(P::Trained{});
  EXPECT_EQ(last.samples, 8U);
  EXPECT_FALSE(last.background);
}

// Others have gone on while this group trained ahead of the boundary: it adopts a version beyond
// the next one.
TEST_F(RankProtocolTest, StepsBeyondTheNextBoundaryCount) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(3);
  Expect<P::Train>(StartTo(24, /*total=*/29));
  Expect<P::Stage>(P::Trained{});
  Expect<P::Train>(P::Unfinished{});
  Expect<P::AwaitStaged>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  Expect<P::Train>(P::Unfinished{});
  Expect<P::AwaitDecision>(P::Trained{});
  Expect<P::Pull>(P::Decided{Version(4, 28, 29)});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 29U) << "without a step";
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 16U) << "two steps, which the weights contain";
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_EQ(Sent<v1::Contributed>().step(), 29U) << "not beyond the end";
}

// A group that stops before the boundary, because the others wait for it, trains ahead of theirs.
TEST_F(RankProtocolTest, OverlapOfAnEarlyContributionEndsWithTheRun) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(3);
  P::Started started = StartTo(24, /*total=*/25);
  started.start.set_catch_up(true);
  Expect<P::Train>(started);
  Expect<P::AskNudge>(P::Trained{});
  EXPECT_TRUE(Expect<P::Stage>(P::Nudged{.nudged = true}).background);
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 22U);
  EXPECT_TRUE(Expect<P::AwaitStaged>(P::Trained{}).wait) << "one step follows the version's 24";
}

// The whole version is adopted, and the group's values of other fragments are restored afterwards.
TEST_F(RankProtocolTest, GroupKeepsTheOtherFragments) {
  assignment_.mutable_spec()->mutable_averaging()->mutable_fragments()->set_count(2);
  P::Started started = StartTo(24);
  started.start.set_fragment(1);
  EXPECT_FALSE(Expect<P::Train>(started).resumes);
  const auto first = Expect<P::Stage>(P::Trained{});
  EXPECT_EQ(first.fragment, 1U);
  EXPECT_FALSE(first.background);
  Expect<P::AwaitDecision>(P::Staged{});
  v1::Decision decision = Version(3, 24, 26);
  decision.set_fragment(2);
  Expect<P::Pull>(P::Decided{decision});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_TRUE(Expect<P::Train>(P::Kept{}).resumes);
  ASSERT_EQ(actions_.size(), 2U);
  EXPECT_EQ(std::get<P::Merge>(actions_.front()).step, 24U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).fragment, 2U);
  Expect<P::AwaitDecision>(P::Staged{});
  // The last round exchanges the whole model.
  Expect<P::Pull>(P::Decided{Version(4, 26, 28)});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  Expect<P::Train>(P::Kept{});
  EXPECT_EQ(actions_.size(), 2U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).fragment, 0U);
  Expect<P::AwaitDecision>(P::Staged{});
  Expect<P::Pull>(P::Decided{Version(5, 28, 30)});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  Expect<P::Train>(P::Kept{});
  EXPECT_EQ(actions_.size(), 1U) << "nothing is left to merge";
}

// Their samples now belong to other groups.
TEST_F(RankProtocolTest, NewDivisionDiscardsStepsSinceTheBoundary) {
  v1::Decision decision = Version(3, 24, 28);
  decision.mutable_division()->set_step(24);
  decision.mutable_division()->set_groups(2);
  TrainAheadUntil(decision);
  EXPECT_FALSE(Expect<P::Train>(P::Kept{}).resumes);
  EXPECT_EQ(actions_.size(), 1U) << "nothing is merged";
  EXPECT_EQ(protocol_->step(), 24U);
}

// The group has trained solo, and the others have closed the round without it.
TEST_F(RankProtocolTest, VersionOfAnEarlierStepDiscardsStepsSinceTheBoundary) {
  TrainAheadUntil(Version(3, 22, 26));
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 26U);
  EXPECT_EQ(actions_.size(), 1U) << "nothing is merged";
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 32U) << "the steps 22 to 26";
}

TEST_F(RankProtocolTest, RunThatDoesNotAverageKeepsItsWeights) {
  Expect<P::Train>(StartTo(24));
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  v1::Decision decision;
  decision.set_next_step(30);
  Expect<P::Keep>(P::Decided{decision});
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 30U);
  EXPECT_EQ(Expect<P::Stage>(P::Trained{}).samples, 48U);
}

// ---- Leaving

TEST_F(RankProtocolTest, RankThatLeavesContributesWhereItStops) {
  EXPECT_EQ(Expect<P::Train>(StartTo(500)).until, 500U);
  const auto stage = Expect<P::Stage>(P::Trained{.leaves = true, .step = 57});
  EXPECT_EQ(stage.samples, 37 * 8U) << "steps 20 to 57";
  EXPECT_FALSE(stage.background);
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_TRUE(Sent<v1::Contributed>().leaves());
  EXPECT_EQ(Sent<v1::Contributed>().step(), 57U);
  Expect<P::Pull>(P::Decided{Version(3, 57, 500)});
}

TEST_F(RankProtocolTest, EndedLoopWithoutStepsContributesNothing) {
  Expect<P::Train>(StartTo(500));
  Expect<P::Leave>(P::Trained{.leaves = true, .step = 20});
}

TEST_F(RankProtocolTest, EndedLoopContributesAlsoTheStepsThatARoundOverlaps) {
  assignment_.add_shards();
  assignment_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(3);
  P::Started started = StartTo(24);
  Expect<P::Pull>(started);
  Expect<P::Train>(P::Pulled{.digest = 77});
  Expect<P::Stage>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 25U);
  Expect<P::AwaitStaged>(P::Trained{});
  EXPECT_EQ(Expect<P::Train>(P::Unfinished{}).until, 26U);
  // It ends before step 26: the round is awaited now.
  EXPECT_TRUE(Expect<P::AwaitStaged>(P::Trained{.leaves = true, .step = 25}).wait);
  EXPECT_TRUE(Expect<P::AwaitDecision>(P::Staged{}).wait);
  EXPECT_FALSE(Sent<v1::Contributed>().leaves());
  EXPECT_FALSE(Expect<P::Pull>(P::Decided{Version(3, 24, 28)}).background);
  EXPECT_EQ(protocol_->steps_ahead(), 1U);
  Expect<P::Keep>(P::Pulled{.digest = 77});
  Expect<P::Train>(P::Kept{});
  const auto stage = Expect<P::Stage>(P::Trained{.leaves = true, .step = 25});
  EXPECT_EQ(stage.samples, 8U);
  EXPECT_FALSE(stage.background);
}

TEST_F(RankProtocolTest, RanksAgreeWhetherOneLeaves) {
  P::Started started = StartTo(30);
  started.start.set_agree_steps(4);
  EXPECT_EQ(Expect<P::Train>(started).until, 24U);
  EXPECT_EQ(Expect<P::AskNudge>(P::Trained{}).steps, 6U);
  const auto train = Expect<P::Train>(P::Nudged{});
  EXPECT_EQ(train.until, 28U);
  EXPECT_TRUE(train.resumes);
  Expect<P::AskNudge>(P::Trained{});
  EXPECT_EQ(Expect<P::Stage>(P::Nudged{.leaves = true}).samples, 64U);
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_TRUE(Sent<v1::Contributed>().leaves());
  v1::Decision decision = Version(3, 28, 36);
  decision.set_agree_steps(8);
  Expect<P::Pull>(P::Decided{decision});
  Expect<P::Keep>(P::Pulled{.digest = 77});
  EXPECT_EQ(Expect<P::Train>(P::Kept{}).until, 36U) << "the period is not longer than that";
  Expect<P::Stage>(P::Trained{});
  Expect<P::AwaitDecision>(P::Staged{});
  EXPECT_FALSE(Sent<v1::Contributed>().leaves());
}

}  // namespace
}  // namespace cadre
