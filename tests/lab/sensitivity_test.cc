#include "lab/sensitivity.h"

#include <gtest/gtest.h>

#include "tests/lab/questions.h"

namespace cadre {
namespace {

using testing::QuestionOf;

TEST(SensitivityTest, VariesBandwidthBatchAndMemory) {
  const auto question = QuestionOf(testing::SmallRequest(4));
  const auto answer = Search(question->problem);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const std::vector<Variation> variations = VaryInputs(*question, *answer);
  ASSERT_EQ(variations.size(), 7u);
  double slower = 0;
  for (const Variation& variation : variations) {
    if (variation.what != "bandwidth") continue;
    EXPECT_DOUBLE_EQ(variation.value, 1.25e9 * variation.factor);
    ASSERT_TRUE(variation.candidate.has_value()) << variation.note;
    const double step = variation.candidate->prediction.times.step();
    // A faster link never makes the best plan slower.
    if (slower > 0) {
      EXPECT_LE(step, slower * (1 + 1e-9));
    }
    slower = step;
  }
  EXPECT_EQ(variations[4].what, "batch");
  EXPECT_EQ(variations[4].value, 16);
  EXPECT_EQ(variations[5].value, 64);
  const Variation& memory = variations[6];
  EXPECT_EQ(memory.what, "memory");
  EXPECT_EQ(memory.value, answer->best.prediction.memory_bytes - 1);
  EXPECT_TRUE(memory.changes()) << "the answer itself does not fit";
  EXPECT_GT(memory.other_layers, 0);
}

TEST(SensitivityTest, NotesImpossibleVariations) {
  const auto question = QuestionOf(testing::SmallRequest(1));
  const auto answer = Search(question->problem);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const Variation memory = VaryInputs(*question, *answer).back();
  EXPECT_FALSE(memory.candidate.has_value());
  EXPECT_TRUE(memory.changes());
  EXPECT_NE(memory.note, "");
}

TEST(SensitivityTest, OnlySmallSearchesAreCheap) {
  const auto small = QuestionOf(testing::SmallRequest(4));
  EXPECT_TRUE(VaryingIsCheap(*small, {.meshes = 6}));
  EXPECT_FALSE(VaryingIsCheap(*small, {.meshes = 1'001}));
}

}  // namespace
}  // namespace cadre
