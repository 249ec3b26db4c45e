#include "member/default_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "coordinator/service/member_identity.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

TEST(DefaultWorkerNameTest, NamesCertificateHostAndSuffix) {
  EXPECT_EQ(DefaultWorkerName("", "Host-1", "7002"), "host-1-7002");
  EXPECT_EQ(DefaultWorkerName("team", "Host-1", "7002"), "team-host-1-7002");
}

TEST(DefaultWorkerNameTest, TheHostIsShortenedFirst) {
  EXPECT_EQ(DefaultWorkerName("team", std::string(200, 'h'), "7002"),
            absl::StrCat("team-", std::string(kMaxName - 10, 'h'), "-7002"));
  const std::string certificate(56, 'c');
  EXPECT_EQ(DefaultWorkerName(certificate, "host", "7002"), certificate + "-h-7002");
  EXPECT_EQ(DefaultWorkerName(certificate + "c", "host", "7002"), certificate + "c-7002");
  EXPECT_EQ(DefaultWorkerName(certificate + "cc", "host", "7002"), certificate + "cc-7002");
  EXPECT_EQ(DefaultWorkerName(certificate + "ccc", "host", "7002"), certificate + "ccc");
}

TEST(DefaultWorkerNameTest, OtherCharactersOfTheHostAreReplaced) {
  EXPECT_EQ(DefaultWorkerName("", "Pod (1)/\xc3\xa4_x", "7002"), "pod--1----_x-7002");
}

TEST(DefaultWorkerNameTest, CoordinatorAcceptsEveryName) {
  for (size_t size = 1; size <= kMaxName; ++size) {
    const Identity certificate{.role = Role::kWorker, .name = std::string(size, 'c')};
    v1::Hello hello;
    hello.set_role(v1::ROLE_WORKER);
    hello.set_name(DefaultWorkerName(certificate.name, "node-17.example.org", "4194304"));
    EXPECT_EQ(IdentityError(certificate, hello), "") << size;
    EXPECT_THAT(CheckName("name", hello.name()), IsOk()) << size;
  }
}

}  // namespace
}  // namespace cadre
