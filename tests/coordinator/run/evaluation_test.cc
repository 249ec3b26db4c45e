#include "coordinator/run/evaluation.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

namespace cadre {
namespace {

v1::Evaluated EvaluatedBy(uint32_t version, uint32_t group, uint64_t begin, uint64_t end,
                          uint64_t correct) {
  v1::Evaluated evaluated;
  evaluated.mutable_place()->set_group(group);
  evaluated.set_version(version);
  evaluated.set_begin(begin);
  evaluated.set_end(end);
  evaluated.set_correct(correct);
  evaluated.set_labels(end - begin);
  evaluated.set_loss_sum(end - begin);
  return evaluated;
}

TEST(EvaluationTest, PartsPartitionTheSplit) {
  for (uint64_t samples : {0, 1, 2, 7, 100}) {
    for (uint32_t groups : {0, 1, 2, 3, 8}) {
      std::vector<uint32_t> ids(groups);
      std::iota(ids.begin(), ids.end(), 0);
      const v1::EvaluationRecord evaluation = CutTestSplit(3, 30, samples, ids);
      uint64_t next = 0;
      for (const v1::EvaluationPart& part : evaluation.parts()) {
        EXPECT_EQ(part.begin(), next);
        EXPECT_LT(part.begin(), part.end());
        EXPECT_EQ(part.given(), groups > 0);
        next = part.end();
      }
      EXPECT_EQ(next, samples);
    }
  }
}

TEST(EvaluationTest, EmptySplitIsComplete) {
  const v1::EvaluationRecord evaluation = CutTestSplit(1, 1, 0, {0});
  EXPECT_TRUE(IsComplete(evaluation));
  EXPECT_EQ(ResultOf(evaluation).samples(), 0u);
  EXPECT_EQ(ResultOf(evaluation).accuracy(), 0);
  EXPECT_EQ(ResultOf(evaluation).loss(), 0);
}

TEST(EvaluationTest, OneLabelIsAResult) {
  v1::EvaluationRecord evaluation = CutTestSplit(3, 30, 1, {0});
  EXPECT_TRUE(RecordPart(evaluation, EvaluatedBy(3, 0, 0, 1, 1)));
  EXPECT_EQ(ResultOf(evaluation).accuracy(), 1);
}

TEST(EvaluationTest, RecordsEachPartOnce) {
  v1::EvaluationRecord evaluation = CutTestSplit(3, 30, 100, {0, 1});
  EXPECT_TRUE(RecordPart(evaluation, EvaluatedBy(3, 0, 0, 50, 40)));
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(3, 0, 0, 50, 40)))
      << "the part is reported twice";
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(2, 1, 50, 100, 20)))
      << "the version is another one";
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(3, 1, 50, 99, 20))) << "the range is another one";
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(3, 1, 51, 100, 20)));
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(3, 0, 50, 100, 20)))
      << "the part belongs to another group";
  EXPECT_FALSE(IsComplete(evaluation));
  EXPECT_TRUE(RecordPart(evaluation, EvaluatedBy(3, 1, 50, 100, 20)));
  EXPECT_TRUE(IsComplete(evaluation));
  const v1::EvaluationResult result = ResultOf(evaluation);
  EXPECT_EQ(result.samples(), 100u);
  EXPECT_DOUBLE_EQ(result.accuracy(), 0.6);
  EXPECT_DOUBLE_EQ(result.loss(), 1.0);
  EXPECT_EQ(result.version(), 3u);
  EXPECT_EQ(result.step(), 30u);
}

TEST(EvaluationTest, CountsSamplesAndLabels) {
  v1::EvaluationRecord evaluation = CutTestSplit(3, 30, 10, {0});
  v1::Evaluated answer = EvaluatedBy(3, 0, 0, 10, 60);
  answer.set_labels(80);
  answer.set_loss_sum(40);
  EXPECT_TRUE(RecordPart(evaluation, answer));
  const v1::EvaluationResult result = ResultOf(evaluation);
  EXPECT_EQ(result.samples(), 10u);
  EXPECT_DOUBLE_EQ(result.accuracy(), 0.75);
  EXPECT_DOUBLE_EQ(result.loss(), 0.5);
}

TEST(EvaluationTest, FreedPartIsReassigned) {
  v1::EvaluationRecord evaluation = CutTestSplit(3, 30, 100, {0, 1});
  EXPECT_TRUE(RecordPart(evaluation, EvaluatedBy(3, 0, 0, 50, 40)));
  EXPECT_FALSE(FreePart(evaluation, 0)) << "its part is finished";
  EXPECT_TRUE(FreePart(evaluation, 1));
  EXPECT_FALSE(FreePart(evaluation, 1)) << "it has none any more";
  EXPECT_TRUE(HasFreePart(evaluation));
  EXPECT_FALSE(RecordPart(evaluation, EvaluatedBy(3, 1, 50, 100, 20)))
      << "the part is no longer assigned to it";
  EXPECT_TRUE(AssignPart(evaluation, 0));
  EXPECT_FALSE(AssignPart(evaluation, 0)) << "the group has a part";
  EXPECT_FALSE(AssignPart(evaluation, 2)) << "no part is free";
  EXPECT_TRUE(RecordPart(evaluation, EvaluatedBy(3, 0, 50, 100, 10)));
  EXPECT_DOUBLE_EQ(ResultOf(evaluation).accuracy(), 0.5);
}

TEST(EvaluationTest, TakesAsLongAsTheSlowestGroup) {
  const auto add = [](v1::EvaluationRecord& evaluation, uint32_t group, uint64_t begin,
                      uint64_t end, float seconds) {
    v1::Evaluated evaluated = EvaluatedBy(3, group, begin, end, 0);
    evaluated.set_seconds(seconds);
    ASSERT_TRUE(RecordPart(evaluation, evaluated));
  };
  v1::EvaluationRecord evaluation = CutTestSplit(3, 30, 90, {0, 1, 2});
  add(evaluation, 0, 0, 30, 1);
  add(evaluation, 1, 30, 60, 1.5);
  EXPECT_EQ(ResultOf(evaluation).seconds(), 1.5);
  // Group 0 evaluates the part of a group that was lost after its own.
  EXPECT_TRUE(FreePart(evaluation, 2));
  EXPECT_TRUE(AssignPart(evaluation, 0));
  add(evaluation, 0, 60, 90, 2);
  EXPECT_EQ(ResultOf(evaluation).seconds(), 3);
  for (const float invalid :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    v1::EvaluationRecord refused = CutTestSplit(3, 30, 10, {0});
    add(refused, 0, 0, 10, invalid);
    EXPECT_EQ(ResultOf(refused).seconds(), 0) << invalid;
  }
}

}  // namespace
}  // namespace cadre
