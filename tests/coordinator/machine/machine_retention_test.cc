// Which runs that have ended stay, in the coordinator's state machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class RetentionTest : public ::testing::Test {
 protected:
  // The model has 1,000 parameters: a run that has ended takes 12,000 bytes, for the newest
  // version, the one before, and version 0, which is kept for a rollback.
  void Start(const RetentionPolicy& policy, bool worker = true) {
    cluster_.emplace([&](Machine::Options& options) {
      options.retention = policy;
      options.parameter_count = [](const v1::RunSpec&) { return 1000; };
    });
    cluster_->AddAggregator("agg-0");
    if (worker) cluster_->AddWorker("w0");
  }
  std::string TrainRun() {
    const std::string run = cluster_->Submit(MakeSpec(1, 1, 5, 10));
    EXPECT_TRUE(cluster_->RunUntilEnded(run));
    cluster_->Run(absl::Seconds(1));
    return run;
  }
  std::string FailRun() {
    cluster_->behaviour.open_error = "checkpoint.from: no such folder";
    const std::string run = cluster_->Submit(MakeSpec(1, 1, 5, 10));
    EXPECT_TRUE(cluster_->RunUntilEnded(run));
    cluster_->behaviour.open_error.clear();
    return run;
  }
  bool Exists(const std::string& run) { return !cluster_->machine().Revisions(run).empty(); }
  uint64_t RevisionOf(const std::string& run) { return cluster_->machine().Revisions(run).at(run); }
  bool Stores(const std::string& run) { return cluster_->aggregators()[0].shards.contains(run); }
  bool HasEvent(v1::EventKind kind, const std::string& run, const std::string& text) {
    const v1::EventsReply events = cluster_->Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == kind && event.run() == run &&
          event.text().find(text) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  std::optional<FakeCluster> cluster_;
};

TEST_F(RetentionTest, ModelSurvivesFailedSubmissions) {
  Start({.keep_without_version = 16});
  const std::string model = TrainRun();
  std::string failed;
  for (int i = 0; i < 100; ++i) failed = FailRun();
  cluster_->Run(absl::Hours(2));
  EXPECT_EQ(cluster_->RunStatus(model).state(), v1::RUN_STATE_DONE);
  EXPECT_TRUE(Stores(model));
  EXPECT_EQ(cluster_->Status().runs_size(), 17);
  EXPECT_TRUE(Exists(failed));
  EXPECT_FALSE(Exists("run-2-test"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_DELETED, "run-2-test", "only the newest 16"));
  for (const auto& [key, value] : cluster_->store()) {
    EXPECT_TRUE(key == DeletedKey("run-2-test") || key.find("run-2-test") == std::string::npos)
        << key;
  }
}

// The store is older than the whole training of the run, whose model the aggregator has.
TEST_F(RetentionTest, RunWhoseResultIsLostCountsAsOneWithVersions) {
  Start({.keep_without_version = 0}, /*worker=*/false);
  const std::string run = cluster_->Submit(MakeSpec(1, 1, 5, 10));
  const auto copy = cluster_->store();
  cluster_->AddWorker("w0");
  ASSERT_TRUE(cluster_->RunUntilEnded(run));
  cluster_->Run(absl::Seconds(1));
  cluster_->RollBackStore(copy);
  cluster_->Run(absl::Hours(2));
  EXPECT_EQ(cluster_->RunStatus(run).state(), v1::RUN_STATE_STOPPED);
  EXPECT_TRUE(Stores(run));
}

TEST_F(RetentionTest, TimeIsAnnounced) {
  Start({.keep_for = absl::Hours(10)});
  const std::string run = TrainRun();
  cluster_->Run(absl::Hours(8));
  EXPECT_THAT(cluster_->RunStatus(run).warnings(), IsEmpty());
  EXPECT_EQ(cluster_->RunStatus(run).removal_ms(), 0);
  const uint64_t revision = RevisionOf(run);
  cluster_->Run(absl::Hours(1));
  EXPECT_NE(RevisionOf(run), revision) << "those who watch the run are told";
  EXPECT_THAT(cluster_->RunStatus(run).warnings(),
              ElementsAre(HasSubstr("will be deleted, with its model, at 1970-01-12 23:")));
  EXPECT_NE(cluster_->RunStatus(run).removal_ms(), 0);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_WARNING, run, "will be deleted"));
  cluster_->RestartCoordinator();
  EXPECT_EQ(cluster_->Counter("deletions_announced"), 1u);
  EXPECT_TRUE(Stores(run));
  cluster_->Run(absl::Hours(1));
  EXPECT_FALSE(Exists(run) || Stores(run));
  EXPECT_EQ(cluster_->Counter("runs_deleted"), 1u);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_DELETED, run, "--keep-runs-for"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_DELETED, run, "the run was deleted: "));
  EXPECT_THAT(TrainRun(), StartsWith("run-2")) << "numbers are not reused";
}

TEST_F(RetentionTest, BudgetIsStatedAndAnnounced) {
  Start({.keep_bytes = 30'000, .notice = absl::Hours(1)});
  const std::string first = TrainRun();
  const std::string second = TrainRun();
  EXPECT_EQ(cluster_->RunStatus(first).stored_bytes(), 12'000u);
  const v1::Retention& stated = cluster_->Status().coordinator().retention();
  EXPECT_EQ(stated.keep_bytes(), 30'000u);
  EXPECT_EQ(stated.stored_bytes(), 24'000u);
  EXPECT_EQ(stated.runs(), 2u);
  EXPECT_THAT(cluster_->RunStatus(first).warnings(), IsEmpty());
  const std::string third = TrainRun();
  EXPECT_THAT(cluster_->RunStatus(first).warnings(),
              ElementsAre(HasSubstr("may take 30000 bytes (--keep-runs-bytes), and take 36000")));
  EXPECT_THAT(cluster_->RunStatus(second).warnings(), IsEmpty());
  cluster_->Run(absl::Minutes(59));
  EXPECT_TRUE(Stores(first));
  cluster_->Run(absl::Minutes(2));
  EXPECT_FALSE(Exists(first) || Stores(first));
  EXPECT_TRUE(Stores(second) && Stores(third));
}

TEST_F(RetentionTest, AnnouncementIsWithdrawn) {
  Start({.keep_bytes = 20'000});
  const std::string first = TrainRun();
  const std::string record = cluster_->store().at(RunKey(first));
  const std::string second = TrainRun();
  ASSERT_NE(cluster_->RunStatus(first).removal_ms(), 0);
  const uint64_t revision = RevisionOf(first);
  cluster_->DeleteRun(second);
  cluster_->Run(absl::Hours(2));
  EXPECT_NE(RevisionOf(first), revision);
  EXPECT_TRUE(Stores(first));
  EXPECT_EQ(cluster_->RunStatus(first).removal_ms(), 0);
  EXPECT_EQ(cluster_->store().at(RunKey(first)), record) << "nothing remains of the announcement";
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_WARNING, first, "is kept after all"));
}

}  // namespace
}  // namespace cadre::testing
