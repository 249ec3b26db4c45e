// Texts and tags of the messages with which ranks connect.
#include "comm/transport/handshake.h"

#include <gtest/gtest.h>

#include "comm/transport/host_identity.h"

namespace cadre {
namespace {

TEST(FixedTextTest, Truncates) {
  EXPECT_TRUE(FixedText<4>().empty());
  EXPECT_EQ(FixedText<4>("abc").view(), "abc");
  EXPECT_EQ(FixedText<4>("abcdef").view(), "abcd");
}

TEST(TagTest, ProvesKeyAndChallenge) {
  const SecretKey key = {1};
  Answer answer{.host = 3};
  Sign(key, answer, Tag{5});
  const Answer received = FromBytes<Answer>(BytesOf(answer));
  EXPECT_TRUE(IsSigned(key, received, Tag{5}));
  EXPECT_FALSE(IsSigned(key, received, Tag{6}));
  EXPECT_FALSE(IsSigned({2}, received, Tag{5}));
}

TEST(ChallengeTest, NeverRepeats) { EXPECT_NE(NewChallenge(), NewChallenge()); }

TEST(HostIdentityTest, IsStable) { EXPECT_EQ(HostIdentity(), HostIdentity()); }

}  // namespace
}  // namespace cadre
