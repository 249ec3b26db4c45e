// Tests `cadre certs`; what the folders contain is tested by tests/base/rpc/credentials_test.cc.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/rpc/credentials.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/expect.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CertsTest : public FolderTest {
 protected:
  // Runs `cadre certs` on an authority in the folder.
  Result Certs(const std::string& words) {
    return Call(absl::StrCat("certs ", words, " --ca ", folder_, "/ca"));
  }
};

TEST_F(CertsTest, IssuedCredentialsLoad) {
  EXPECT_EQ(Certs("init --trust-domain example.org").exit_code, kExitOk);
  const std::string out = folder_ + "/a1";
  const Result issued = Certs(
      absl::StrCat("issue aggregator a1 --dns a1,localhost --ip 10.0.0.7 --days 30 --out ", out));
  EXPECT_EQ(issued.exit_code, kExitOk) << issued.err;
  EXPECT_THAT(issued.err, HasSubstr(absl::StrCat("wrote ", out, ", valid until 20")));
  const auto loaded = Credentials::FromFolder(out);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->identity(), (Identity{Role::kAggregator, "a1", "example.org"}));
}

TEST_F(CertsTest, ExistingFoldersNeedReplace) {
  ASSERT_EQ(Certs("init").exit_code, kExitOk);
  const Result refused = Certs("init");
  EXPECT_EQ(refused.exit_code, kExitFailure);
  EXPECT_THAT(refused.err, HasSubstr("--replace"));
  EXPECT_EQ(Certs("init --replace").exit_code, kExitOk);
}

TEST_F(CertsTest, MistakesAreNamed) {
  const auto expect = [&](const std::string& words, const std::string& reason) {
    const Result result = Certs(words);
    EXPECT_EQ(result.exit_code, kExitUsage) << words;
    EXPECT_THAT(result.err, HasSubstr(reason)) << words;
  };
  expect("make", "unknown action 'make'");
  expect("init x", "expected 'cadre certs init'");
  expect("init --dns x", "--dns is not valid with 'cadre certs init'");
  expect("issue worker", "expected 'cadre certs issue ROLE NAME'");
  expect("issue king k", "unknown role 'king'");
  ASSERT_EQ(Certs("init").exit_code, kExitOk);
  expect("issue worker A", "the name is not 1 to 63");
  expect("issue worker a --days 0", "--days");
  EXPECT_FALSE(std::filesystem::exists("A"));
}

}  // namespace
}  // namespace cadre
