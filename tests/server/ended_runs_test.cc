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
  void RestartKeeping(size_t runs) { StartOn(folder_.path(), runs); }
};

TEST_F(EndedRunsTest, OldestAreRemovedWhenARunEnds) {
  RestartKeeping(2);
  run_.run = "active";
  Open();
  EndRun("c");
  EndRun("a");
  SetAge("c", 20);
  SetAge("a", 10);
  // A repeated order does not make the run a newer one.
  ASSERT_TRUE(host_->CloseRun("c").ok());
  EndRun("b", 1);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "a", "active", "b"));
  ASSERT_EQ(host_->States().size(), 3u);
  // The removed run can be opened anew.
  run_.run = "c";
  EXPECT_EQ(Open().version(), 0u);
  EXPECT_EQ(Open().error(), "");
}

TEST_F(EndedRunsTest, OldestAreRemovedAtTheStart) {
  EndRun("a");
  EndRun("b");
  EndRun("c");
  run_.run = "d";
  Open();
  run_.lineage = "lineage-b";
  Open();
  const std::string archived = ".old-d-lineage-a";
  SetAge("a", 40);
  SetAge("b", 30);
  SetAge(archived, 20);
  SetAge("c", 10);
  SetAge("d", 50);
  RestartKeeping(3);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", archived, "b", "c", "d"));
  RestartKeeping(1);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "c", "d"));
  RestartKeeping(0);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "d"));
  EXPECT_EQ(host_->States().size(), 1u) << "the run that has not ended";
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
