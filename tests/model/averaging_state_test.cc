#include "model/averaging_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> NamesOf(const char* averaging) {
  return ShardStateNames(Parse<v1::Averaging>(averaging));
}

// Checkpoints contain these names, so they must not change.
TEST(AveragingState, NamesAndOrderOfTheShardsStates) {
  EXPECT_THAT(NamesOf("every_steps: 4 up { codec: CODEC_INT8 }"), IsEmpty());
  EXPECT_THAT(NamesOf("outer { nesterov {} }"), ElementsAre("nesterov_momentum"));
  EXPECT_THAT(NamesOf("outer { slowmo {} } down { codec: CODEC_INT8 }"),
              ElementsAre("slowmo_momentum", "version_residual"));
  EXPECT_THAT(NamesOf("outer { nesterov { every_rounds: 3 } } down { codec: CODEC_TOPK }"),
              ElementsAre("nesterov_momentum", "", "version_residual"));
  EXPECT_STREQ(kContributionResidual, "contribution_residual");
}

}  // namespace
}  // namespace cadre
