#include "member/kept_change.h"

#include <gtest/gtest.h>

#include "model/coding.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

v1::Averaging Averaging(const char* text) { return Parse<v1::Averaging>(text); }

TEST(KeptChange, ValuesWithoutCodes) {
  EXPECT_FALSE(KeepsChanges(Averaging("")));
  EXPECT_FALSE(KeepsChanges(Averaging("down { codec: CODEC_INT8 }")));
  const v1::Averaging late = Averaging("staleness { max_rounds: 2 }");
  ASSERT_TRUE(KeepsChanges(late));
  EXPECT_EQ(KeptShareOf(late, 5, 5, /*included=*/true).factor, 0);
  EXPECT_EQ(KeptShareOf(late, 5, 4, /*included=*/false).factor, 1) << "the round is open";
  EXPECT_EQ(KeptShareOf(late, 5, 5, /*included=*/false).factor, 0.5F);
  EXPECT_EQ(KeptShareOf(late, 5, 6, /*included=*/false).factor, 0.25F);
  EXPECT_EQ(KeptShareOf(late, 5, 6, /*included=*/false).dropped, 0U);
  EXPECT_EQ(KeptShareOf(late, 5, 7, /*included=*/false).factor, 0);
  EXPECT_EQ(KeptShareOf(late, 5, 7, /*included=*/false).dropped, 3U);
}

TEST(KeptChange, Codes) {
  const v1::Averaging coded = Averaging("up { codec: CODEC_TOPK error_feedback: 0.9 }");
  ASSERT_TRUE(KeepsChanges(coded));
  EXPECT_EQ(KeptShareOf(coded, 5, 5, /*included=*/true).factor, 0.9F);
  EXPECT_EQ(KeptShareOf(coded, 5, 9, /*included=*/true).factor, 0.9F) << "of a later version";
  EXPECT_NEAR(KeptShareOf(coded, 5, 9, /*included=*/false).factor, 0.59049F, 1e-6);
  const v1::Averaging both =
      Averaging("up { codec: CODEC_INT8 } staleness { max_rounds: 1 weight: 0.25 }");
  EXPECT_EQ(KeptShareOf(both, 5, 5, /*included=*/true).factor, 1);
  EXPECT_EQ(KeptShareOf(both, 5, 5, /*included=*/false).factor, 0.25F);
  EXPECT_EQ(KeptShareOf(both, 5, 6, /*included=*/false).dropped, 2U);
}

TEST(KeptShareTest, NothingIsKeptOfAScreenedContribution) {
  v1::Averaging both;
  both.mutable_up()->set_codec(v1::CODEC_INT8);
  both.mutable_staleness()->set_max_rounds(3);
  const KeptShare share = KeptShareOf(both, 5, 5, /*included=*/false, /*screened=*/true);
  EXPECT_EQ(share.factor, 0);
  EXPECT_EQ(share.dropped, 0U) << "it is not late";
}

}  // namespace
}  // namespace cadre
