// Tests that the driver detects broken targets and stores the failing input, and that mutations are
// a function of the seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "base/file.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz/mutator.h"

namespace cadre::fuzz {
namespace {

using ::testing::StartsWith;

class DriverTest : public ::testing::Test {
 protected:
  DriverTest() { std::filesystem::create_directory(folder_ / "corpus"); }

  int Run(const std::string& arguments) {
    const std::string command =
        std::string(CADRE_FUZZ_PROGRAM) + " fragile --crashes=" + folder_.path() + " " + arguments;
    const int state = std::system(command.c_str());
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }
  int Fuzz(const std::string& arguments) {
    return Run("--corpus=" + folder_ / "corpus" + " " + arguments);
  }
  std::string Crash() { return ReadFile(folder_ / "crash-fragile").value_or("none"); }

  const TemporaryFolder folder_;
};

TEST_F(DriverTest, PassesIfNothingIsBroken) {
  folder_.Write("corpus/a", "fine");
  EXPECT_EQ(Fuzz("--iterations=2000 --seconds=30"), 0);
  EXPECT_EQ(Crash(), "none");
}

TEST_F(DriverTest, KeepsInputThatAbortsExitsOrHangs) {
  folder_.Write("corpus/a", "fine");
  for (const char* input : {"abort here", "exit", "hang"}) {
    folder_.Write("corpus/b", input);
    EXPECT_EQ(Fuzz("--input_seconds=0.3"), 1);
    EXPECT_EQ(Crash(), input);
  }
}

TEST_F(DriverTest, FindsByMutationAndReplays) {
  folder_.Write("corpus/a", "sound");
  EXPECT_EQ(Fuzz("--iterations=100000 --seconds=60"), 1);
  EXPECT_THAT(Crash(), StartsWith("soun"));
  EXPECT_NE(Crash(), "sound");
  EXPECT_EQ(Run(folder_ / "crash-fragile"), 1);
  EXPECT_EQ(Run(folder_ / "corpus/a"), 0);
}

TEST_F(DriverTest, RejectsEmptyCorpus) {
  EXPECT_EQ(Fuzz(""), 2);
  EXPECT_EQ(Run("--corpus=" + folder_ / "missing"), 2);
}

TEST(MutatorTest, EqualSeedsEqualInputs) {
  const std::vector<std::string> corpus = {"one 12345", std::string(300, 'x'), ""};
  Mutator a(corpus, 7, 1000);
  Mutator b(corpus, 7, 1000);
  Mutator other(corpus, 8, 1000);
  int differ = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string input = a.Next();
    ASSERT_EQ(input, b.Next());
    ASSERT_LE(input.size(), 1000U);
    differ += input != other.Next();
  }
  EXPECT_GT(differ, 1000);
}

TEST(MutatorTest, InputsVaryInLength) {
  Mutator mutator({"0000017 a header and a body"}, 1, 1000);
  std::set<std::string> inputs;
  std::set<size_t> sizes;
  for (int i = 0; i < 2000; ++i) {
    const std::string& input = mutator.Next();
    inputs.insert(input);
    sizes.insert(input.size());
  }
  EXPECT_GT(inputs.size(), 1200U);
  EXPECT_GT(sizes.size(), 10U);
}

TEST(MutatorTest, EmptyCorpusIsEmptyInput) {
  Mutator mutator({}, 1, 10);
  bool any = false;
  for (int i = 0; i < 100; ++i) any |= !mutator.Next().empty();
  EXPECT_TRUE(any);
}

}  // namespace
}  // namespace cadre::fuzz
