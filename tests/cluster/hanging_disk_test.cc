// Tests, with real processes, that an order that hangs on one aggregator is named, and stops only
// its own run; or not even that, if its shards have copies.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);
// An order that hangs is named within this time.
constexpr absl::Duration kNamed = absl::Seconds(30);
// A SIGTERM ends an aggregator within 45 s, less than the time of the supervisors (deploy/).
constexpr absl::Duration kStopped = absl::Seconds(55);
// Several times the steps at which the disk hangs, since the run waits then.
constexpr uint32_t kStepsWithCopies = 160;
constexpr absl::Duration kTrained = absl::Seconds(180);

class HangingDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the library of the sanitizer must be the first one";
#endif
    ASSERT_TRUE(cluster_.StartCoordinator().ok());
    ASSERT_TRUE(cluster_.StartAggregator("aggregator-0").ok());
    ASSERT_TRUE(
        cluster_
            .StartAggregator("aggregator-1", {absl::StrCat("LD_PRELOAD=", CADRE_HANGING_RENAME),
                                              absl::StrCat("CADRE_HANGING_RENAMES=", control_)})
            .ok());
    for (const char* const worker : {"worker-0", "worker-1"}) {
      ASSERT_TRUE(cluster_.StartWorker(worker).ok());
    }
    Await("both aggregators have joined",
          [](const v1::StatusReply& status) { return status.aggregators_size() == 2; });
  }

  void Await(const std::string& what, const Cluster::Predicate& predicate,
             absl::Duration limit = kLimit) {
    const auto status = cluster_.Await(predicate, limit, what);
    ASSERT_TRUE(status.ok()) << status.status();
  }
  void AwaitVersion(const std::string& run, uint32_t version) {
    Await(absl::StrCat("version ", version, " of ", run), [&](const v1::StatusReply& status) {
      return FindRun(status, run)->version() >= version;
    });
  }
  uint32_t VersionOf(const std::string& run) {
    const auto status = cluster_.client().Status();
    return status.ok() ? FindRun(*status, run)->version() : 0;
  }
  // A run of one worker that does not end during the test.
  std::string Submit() {
    v1::RunSpec spec = SmallSpec(
        {.groups = 1, .ranks = 1, .aggregators = 2, .every_steps = 8, .steps = 10'000'000});
    spec.mutable_cluster()->set_keep_plan(true);
    const auto run = cluster_.client().Submit(spec);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or("");
  }
  std::string Health(int exit_code) {
    return RunCadre({"health", absl::StrCat("--coordinator=", cluster_.coordinator())}, exit_code);
  }

  Cluster cluster_{{.lease = absl::Seconds(3)}};
  const std::string control_ = cluster_.folder() + "/hang";
};

TEST_F(HangingDiskTest, RunWhoseVersionHangsIsNamedAndOthersGoOn) {
  const std::string hung = Submit();
  const std::string other = Submit();
  for (const std::string& run : {hung, other}) ASSERT_NO_FATAL_FAILURE(AwaitVersion(run, 2));
  EXPECT_THAT(Health(0), HasSubstr("healthy"));

  std::ofstream(control_) << "/" << hung << "/version-";
  const auto named = [&](const v1::StatusReply& status) {
    return FindRun(status, hung)->reason().find("aggregator aggregator-1") != std::string::npos;
  };
  ASSERT_NO_FATAL_FAILURE(Await("the run names the aggregator", named, kNamed));
  EXPECT_THAT(Health(1), AllOf(HasSubstr("aggregator-1"), HasSubstr("apply")));
  EXPECT_THAT(RunCadre({"events", absl::StrCat("--coordinator=", cluster_.coordinator())}),
              HasSubstr("aggregator aggregator-1 has taken 5s to apply the round"));
  const uint32_t stopped = VersionOf(hung);

  // The other run goes on, also with a new generation, whose key the aggregator must learn.
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(other, VersionOf(other) + 10));
  const auto status = cluster_.client().Status();
  ASSERT_TRUE(status.ok()) << status.status();
  cluster_.Kill(FindGroup(*status, other, 0)->members(0).name());
  ASSERT_TRUE(cluster_.StartWorker("worker-2").ok());
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(other, VersionOf(other) + 10));
  // So does a run that begins now.
  ASSERT_TRUE(cluster_.StartWorker("worker-3").ok());
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(Submit(), 2));
  EXPECT_EQ(VersionOf(hung), stopped);

  std::filesystem::remove(control_);
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(hung, stopped + 3));
  Await("the reason ends",
        [&](const v1::StatusReply& seen) { return FindRun(seen, hung)->reason().empty(); });
}

TEST_F(HangingDiskTest, SigtermEndsAnAggregatorWhoseOrderHangs) {
  const std::string run = Submit();
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(run, 2));
  std::ofstream(control_) << "/" << run << "/version-";
  ASSERT_NO_FATAL_FAILURE(Await(
      "the round closes",
      [&](const v1::StatusReply& status) {
        return FindRun(status, run)->reason().find("aggregator aggregator-1") != std::string::npos;
      },
      kNamed));
  Process& aggregator = cluster_.process("aggregator-1");
  aggregator.Signal(SIGTERM);
  const auto ended = aggregator.WaitUntil(absl::Now() + kStopped);
  ASSERT_TRUE(ended.has_value()) << "it waits for the order";
  EXPECT_EQ(*ended, (Ending{.code = 1})) << ended->ToString();
  EXPECT_THAT(LastLines(cluster_.LogOf("aggregator-1"), 5),
              Contains(HasSubstr(absl::StrCat("ends before this has: apply of ", run, " for "))));
}

// With its states: the run has momentum and coded versions.
TEST_F(HangingDiskTest, ShardWithACopyContinuesOnAnotherAggregator) {
  v1::RunSpec spec = SmallSpec(
      {.groups = 2, .ranks = 1, .aggregators = 2, .every_steps = 4, .steps = kStepsWithCopies});
  spec.mutable_averaging()->mutable_outer()->mutable_nesterov();
  spec.mutable_averaging()->mutable_down()->set_codec(v1::CODEC_E3M0);
  spec.mutable_averaging()->set_copies(2);
  spec.mutable_cluster()->set_keep_plan(true);
  const auto submitted = cluster_.client().Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const std::string run = *submitted;
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(run, 4));
  ASSERT_TRUE(cluster_.StartAggregator("aggregator-2").ok());

  std::ofstream(control_) << "/" << run << "/version-";
  const auto stores = [&](const v1::StatusReply& status, const std::string& name) {
    return std::ranges::any_of(status.aggregators(), [&](const v1::AggregatorStatus& one) {
      return one.member().name() == name && !one.shards().empty();
    });
  };
  ASSERT_NO_FATAL_FAILURE(Await(
      "the shard continues on aggregator-2",
      [&](const v1::StatusReply& status) { return stores(status, "aggregator-2"); },
      kNamed + kLimit));
  EXPECT_THAT(RunCadre({"events", absl::StrCat("--coordinator=", cluster_.coordinator())}),
              HasSubstr("shard 1 moves from aggregator aggregator-1, which does not carry out its "
                        "orders, to aggregator-2, from the copy on aggregator-0"));
  EXPECT_LT(VersionOf(run), kStepsWithCopies / 4) << "the run is too short";
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(run, VersionOf(run) + 4));
  EXPECT_THAT(Health(1), HasSubstr("aggregator-1")) << "its disk still hangs";

  const auto done = cluster_.AwaitDone(run, kTrained);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(FindRun(*done, run)->warnings_size(), 0);
  EXPECT_TRUE(std::filesystem::exists(cluster_.folder() + "/aggregator-1/" + run));
  std::filesystem::remove(control_);
  const absl::Time limit = absl::Now() + kLimit;
  while (std::filesystem::exists(cluster_.folder() + "/aggregator-1/" + run)) {
    ASSERT_LT(absl::Now(), limit) << "it removes the files of the run when its disk answers";
    absl::SleepFor(absl::Milliseconds(100));
  }

  const auto undisturbed = cluster_.client().Submit(spec);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  const auto again = cluster_.AwaitDone(*undisturbed, kTrained);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FindRun(*again, *undisturbed)->digest(), FindRun(*done, run)->digest());
}

}  // namespace
}  // namespace cadre::testing
