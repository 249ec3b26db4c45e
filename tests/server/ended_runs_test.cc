// Runs that have ended or were deleted, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "tests/base/expect.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class EndedRunsTest : public ShardHostTest {
 protected:
  // A run whose newest version is `version`, 0 or 1.
  void EndRun(const std::string& run, uint32_t version = 0) {
    run_.run = run;
    Open();
    if (version == 1) {
      ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
      EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
    }
    ASSERT_TRUE(host_->CloseRun(run).ok());
  }
  // Makes the run the one that ended `seconds` ago.
  void SetAge(const std::string& folder, int seconds) {
    fs::last_write_time(folder_.path() + "/" + folder + "/run",
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
};

// Only the coordinator decides which runs are removed.
TEST_F(EndedRunsTest, AllAreKept) {
  EndRun("precious", 1);
  for (int run = 0; run < 40; ++run) EndRun("failed-" + std::to_string(run));
  Restart();
  EXPECT_EQ(host_->States().size(), 41u);
  run_.run = "precious";
  EXPECT_EQ(Pull(1, 0, 15).value_or(std::vector<float>()).size(), 15u);
}

// What the ids of runs stored before they were given to runs of another coordinator.
TEST_F(EndedRunsTest, OldestArchivesAreRemovedAtTheStart) {
  run_.run = "a";
  for (int lineage = 0; lineage <= 17; ++lineage) {
    run_.lineage = "lineage-" + std::to_string(lineage);
    Open();
    if (lineage > 0) SetAge(".old-a-lineage-" + std::to_string(lineage - 1), 100 - lineage);
  }
  EXPECT_TRUE(fs::exists(folder_.path() + "/.old-a-lineage-0"));
  Restart();
  EXPECT_FALSE(fs::exists(folder_.path() + "/.old-a-lineage-0"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/.old-a-lineage-1"));
  EXPECT_EQ(host_->States().size(), 1u);
}

TEST_F(EndedRunsTest, DeletedRunIsRemoved) {
  EndRun("a", 1);
  EndRun("b");
  run_.run = "live";
  Open();
  v1::DeleteRun order;
  order.set_lineage(run_.lineage);
  for (const char* run : {"a", "live", "a", "unknown"}) {
    order.set_run(run);
    EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus()) << run;
  }
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "b"));
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].run(), "b");
  EXPECT_TRUE(host_->States()[0].closed());
  EXPECT_EQ(host_->CheckFiles(), absl::OkStatus());
  // The process that begins next agrees.
  Restart();
  EXPECT_EQ(host_->States().size(), 1u);
}

TEST_F(EndedRunsTest, DeletionKeepsOtherLineages) {
  run_.run = "a";
  Open();
  run_.lineage = "lineage-b";
  Open();
  v1::DeleteRun order;
  order.set_run("a");
  order.set_lineage("lineage-c");
  EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus());
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", ".old-a-lineage-a", "a"));
  // It was set aside when the id was reused.
  order.set_lineage("lineage-a");
  EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus());
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "a"));
}

TEST_F(EndedRunsTest, DeletionTakesNamesOnly) {
  EndRun("a");
  v1::DeleteRun order;
  order.set_run("../a");
  order.set_lineage(run_.lineage);
  EXPECT_THAT(host_->DeleteRun(order), IsError(absl::StatusCode::kInvalidArgument, "run id"));
}

TEST_F(EndedRunsTest, DamageIsFoundByThePull) {
  EndRun("run-1", 1);
  std::string bytes = ReadAll(RunPath("version-1"));
  bytes[bytes.size() - 3] ^= 1;
  WriteAll(RunPath("version-1"), bytes);
  Restart();
  EXPECT_EQ(host_->States()[0].version(), 1u) << "not checked at the start";
  EXPECT_THAT(Pull(1, 0, 15), IsError(absl::StatusCode::kDataLoss, "version-1"));
}

}  // namespace
}  // namespace cadre::testing
