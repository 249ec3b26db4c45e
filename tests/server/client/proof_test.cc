#include "server/client/proof.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

SecretKey Filled(uint8_t byte) {
  SecretKey key;
  key.fill(byte);
  return key;
}

v1::ContributionHeader Signed() {
  v1::ContributionHeader header;
  header.set_run("run-1");
  header.set_generation(7);
  header.add_ranges()->set_end(4);
  Sign(Filled(1), "nonce", header);
  return header;
}

TEST(ProofTest, IsValidForItsKeyOnly) {
  EXPECT_TRUE(IsSigned(Filled(1), Signed()));
  EXPECT_FALSE(IsSigned(Filled(2), Signed()));
}

TEST(ProofTest, CoversEveryField) {
  v1::ContributionHeader header = Signed();
  header.set_generation(8);
  EXPECT_FALSE(IsSigned(Filled(1), header));
  header = Signed();
  header.mutable_ranges(0)->set_end(5);
  EXPECT_FALSE(IsSigned(Filled(1), header));
  header = Signed();
  header.mutable_proof()->set_nonce("other");
  EXPECT_FALSE(IsSigned(Filled(1), header));
}

// The fields of the two messages have other meanings.
TEST(ProofTest, IsNotValidForAnotherMessage) {
  v1::ContributionHeader header;
  header.set_protocol(1);
  Sign(Filled(1), "nonce", header);
  v1::PullRequest request;
  request.set_protocol(1);
  *request.mutable_proof() = header.proof();
  EXPECT_FALSE(IsSigned(Filled(1), request));
  Sign(Filled(1), "nonce", request);
  EXPECT_TRUE(IsSigned(Filled(1), request));
}

TEST(ProofTest, TagsOfOtherSizesAreNotValid) {
  v1::ContributionHeader header = Signed();
  for (const std::string& tag :
       {std::string(), header.proof().tag().substr(0, 31), header.proof().tag() + "x"}) {
    header.mutable_proof()->set_tag(tag);
    EXPECT_FALSE(IsSigned(Filled(1), header));
  }
  header.clear_proof();
  EXPECT_FALSE(IsSigned(Filled(1), header));
}

}  // namespace
}  // namespace cadre
