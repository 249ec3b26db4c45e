#include "coordinator/service/member_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

std::string Error(Role role, const std::string& certified, v1::Role stated,
                  const std::string& name) {
  v1::Hello hello;
  hello.set_role(stated);
  hello.set_name(name);
  return IdentityError({role, certified, "d"}, hello);
}

TEST(MemberIdentityTest, NameIsThatOfTheCertificate) {
  EXPECT_EQ(Error(Role::kAggregator, "a-0", v1::ROLE_AGGREGATOR, "a-0"), "");
  EXPECT_EQ(Error(Role::kAggregator, "a-0", v1::ROLE_AGGREGATOR, "a-1"),
            "the certificate is that of aggregator a-0, not of aggregator a-1");
  EXPECT_EQ(Error(Role::kWorker, "w", v1::ROLE_WORKER, "w"), "");
  EXPECT_NE(Error(Role::kWorker, "w", v1::ROLE_WORKER, "v"), "");
}

TEST(MemberIdentityTest, RoleIsThatOfTheCertificate) {
  for (const Role role : {Role::kOperator, Role::kViewer, Role::kWorker, Role::kCoordinator}) {
    EXPECT_NE(Error(role, "a-0", v1::ROLE_AGGREGATOR, "a-0"), "") << RoleName(role);
  }
  for (const Role role : {Role::kOperator, Role::kViewer, Role::kAggregator, Role::kCoordinator}) {
    EXPECT_NE(Error(role, "w", v1::ROLE_WORKER, "w"), "") << RoleName(role);
  }
  EXPECT_NE(Error(Role::kWorker, "w", v1::ROLE_UNSPECIFIED, "w"), "");
}

TEST(MemberIdentityTest, OnlyWorkersShareACertificate) {
  for (const char* name : {"w-0", "w.host", "w-0.host"}) {
    EXPECT_EQ(Error(Role::kWorker, "w", v1::ROLE_WORKER, name), "") << name;
  }
  for (const char* name : {"", "w-", "w.", "w0", "ww", "v-w", "W-0"}) {
    EXPECT_NE(Error(Role::kWorker, "w", v1::ROLE_WORKER, name), "") << name;
  }
  EXPECT_NE(Error(Role::kAggregator, "a", v1::ROLE_AGGREGATOR, "a-0"), "");
}

TEST(MemberIdentityTest, NameIsQuotedEscapedAndShort) {
  const std::string error =
      Error(Role::kWorker, "w", v1::ROLE_WORKER, "\x1b[31m" + std::string(1 << 20, 'x'));
  EXPECT_THAT(error, ::testing::HasSubstr("\\x1b[31m"));
  EXPECT_LT(error.size(), 200u);
}

}  // namespace
}  // namespace cadre
