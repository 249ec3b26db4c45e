// Tests that one bad worker does not end a run.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"
#include "tests/model/testing.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);

// What the host of the bad worker has under the path of the run's data.
enum class BadData {
  kMissing,
  // A named pipe without a writer, at which a reader would wait forever.
  kPipe,
};

class FailuresTest : public ::testing::TestWithParam<BadData> {};

// Two groups read data under a relative path. A worker in another folder, which has no usable data,
// and a spare join in the middle of the run; then a worker is killed. The coordinator tries the bad
// worker first, since it is older.
TEST_P(FailuresTest, SpareReplacesBadWorker) {
  Cluster cluster({.lease = absl::Seconds(3)});
  const std::filesystem::path before = std::filesystem::current_path();
  const std::filesystem::path bad = std::filesystem::path(cluster.folder()) / "bad-host";
  std::filesystem::create_directory(bad);
  std::filesystem::current_path(cluster.folder());
  std::ofstream("images") << IdxBytes({256, 8, 8}, std::string(256 * 64, '\7'));
  std::ofstream("labels") << IdxBytes({256}, std::string(256, '\1'));
  v1::RunSpec spec =
      SmallSpec({.aggregators = 1, .every_steps = 8, .steps = 100'000, .min_ranks = 2});
  spec.mutable_cluster()->set_keep_plan(true);
  v1::IdxFiles& data = *spec.mutable_data()->mutable_idx();
  data.set_train_images("images");
  data.set_train_labels("labels");
  data.set_test_images("images");
  data.set_test_labels("labels");
  const auto run = cluster.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto training = [&](const v1::StatusReply& status) {
    return status.workers_size() >= 4 && FindRun(status, *run)->version() >= 3;
  };
  ASSERT_TRUE(cluster.Await(training, kLimit, "the run trains").ok());
  if (GetParam() == BadData::kPipe) {
    ASSERT_EQ(mkfifo((bad / "images").c_str(), 0600), 0);
  }
  std::filesystem::current_path(bad);
  for (const int workers : {5, 6}) {
    ASSERT_TRUE(cluster.StartWorker(workers == 5 ? "bad" : "spare").ok());
    const auto joined = [&](const v1::StatusReply& seen) { return seen.workers_size() == workers; };
    ASSERT_TRUE(cluster.Await(joined, kLimit, "a worker joins").ok());
    std::filesystem::current_path(cluster.folder());
  }
  std::filesystem::current_path(before);
  cluster.Kill("worker-0");
  const auto replaced = [&](const v1::StatusReply& status) {
    for (const v1::MemberStatus& worker : status.workers()) {
      if (worker.name() == "spare" && worker.place().run() == *run) return true;
    }
    return false;
  };
  const auto status = cluster.Await(replaced, kLimit, "the spare has a rank");
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(FindRun(*status, *run)->state(), v1::RUN_STATE_RUNNING);
  for (const v1::MemberStatus& worker : status->workers()) {
    if (worker.name() != "bad") continue;
    EXPECT_EQ(worker.standing().cause(), v1::FAILURE_CAUSE_DATA);
    EXPECT_THAT(worker.standing().reason(), HasSubstr("images"));
  }
  const uint32_t version = FindRun(*status, *run)->version();
  const auto goes_on = [&](const v1::StatusReply& seen) {
    return FindRun(seen, *run)->version() >= version + 3;
  };
  EXPECT_TRUE(cluster.Await(goes_on, kLimit, "the run goes on").ok());
}

INSTANTIATE_TEST_SUITE_P(BadHosts, FailuresTest,
                         ::testing::Values(BadData::kMissing, BadData::kPipe), [](const auto& bad) {
                           return bad.param == BadData::kMissing ? "MissingData" : "Pipe";
                         });

}  // namespace
}  // namespace cadre::testing
