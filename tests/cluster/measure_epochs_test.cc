// Tests `cadre measure-epochs` with real processes: the table, entries that already exist, and a
// target that is not reached.
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lab/time_to_accuracy.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MeasureEpochsTest : public ::testing::Test {
 protected:
  MeasureEpochsTest() {
    std::ofstream(folder_ / "run.textproto") << SpecText(SmallSpec({.epochs = 6}));
  }

  // Runs the command; returns the lines of stdout and stderr.
  std::string Measure(std::vector<std::string> flags, int exit_code = 0) {
    std::vector<std::string> arguments = {"measure-epochs", folder_ / "run.textproto", "-O",
                                          TablePath()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunCadre(arguments, exit_code);
  }

  std::string TablePath() const { return folder_ / "epochs.textproto"; }
  v1::EpochsTable Table() const {
    const auto table = ReadEpochsTable(TablePath());
    EXPECT_TRUE(table.ok()) << table.status();
    return table.value_or(v1::EpochsTable());
  }

  const TemporaryFolder folder_;
};

TEST_F(MeasureEpochsTest, MeasuresEachWorkerCountOnce) {
  const std::string first = Measure({"--target", "0.8", "--workers", "2,1"});
  EXPECT_THAT(first, HasSubstr("2 workers: 64 samples per step in 2 micro-batches"));
  const v1::EpochsTable table = Table();
  EXPECT_EQ(table.target_accuracy(), 0.8F);
  EXPECT_EQ(table.batch_per_worker(), 32u);
  ASSERT_EQ(table.entry_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table.entry(i).workers(), i + 1u);
    EXPECT_TRUE(table.entry(i).reached());
    EXPECT_GT(table.entry(i).epochs(), 0);
    EXPECT_LE(table.entry(i).epochs(), 6);
  }

  // If more numbers of workers are measured, existing entries remain unchanged.
  const std::string more = Measure({"--target", "0.8", "--workers", "1,2,4", "-o", "json"});
  EXPECT_THAT(more, HasSubstr("2 workers: already in "));
  EXPECT_THAT(more, Not(HasSubstr("2 workers: 64 samples")));
  EXPECT_THAT(more, HasSubstr("\"target_accuracy\": 0.8"));
  const v1::EpochsTable longer = Table();
  ASSERT_EQ(longer.entry_size(), 3);
  EXPECT_EQ(longer.entry(1).SerializeAsString(), table.entry(1).SerializeAsString());
  EXPECT_EQ(longer.entry(2).workers(), 4u);

  // Measurements with other settings are refused.
  const std::string before = *ReadFile(TablePath());
  EXPECT_THAT(Measure({"--target", "0.8", "--workers", "8", "--rate", "sqrt"}, 1),
              HasSubstr("holds a table of another recipe: --rate"));
  EXPECT_THAT(Measure({"--target", "0.8", "--workers", "8", "--max-epochs", "7"}, 1),
              HasSubstr("another recipe"));
  EXPECT_EQ(*ReadFile(TablePath()), before);
}

TEST_F(MeasureEpochsTest, UnreachableTargetIsReported) {
  const std::string lines = Measure({"--target", "1", "--workers", "1", "--max-epochs", "2"});
  EXPECT_THAT(lines, HasSubstr("not reached in 2 epochs"));
  const v1::EpochsTable table = Table();
  ASSERT_EQ(table.entry_size(), 1);
  EXPECT_FALSE(table.entry(0).reached());
  EXPECT_NEAR(table.entry(0).epochs(), 2, 1e-6);
}

}  // namespace
}  // namespace cadre::testing
