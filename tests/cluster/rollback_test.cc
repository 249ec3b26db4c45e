// Tests the way back of a run with real processes: an older version is exported, the run continues
// from it although an aggregator and the coordinator are killed meanwhile, and is replayed.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

class RollbackTest : public ::testing::Test {
 protected:
  RollbackTest() : cluster_({.archive = true}) {}

  // Two shards with momentum, and so many groups of one worker. Awaits the version.
  void Begin(uint32_t groups, uint32_t version) {
    v1::RunSpec spec =
        SmallSpec({.groups = groups, .ranks = 1, .every_steps = 4, .steps = 1'000'000});
    spec.mutable_averaging()->mutable_outer()->mutable_nesterov();
    v1::KeepVersions& keep = *spec.mutable_averaging()->mutable_keep_versions();
    keep.set_every(5);
    keep.set_count(64);
    const auto run = cluster_.StartRun(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    Await([&](const v1::RunStatus& status) { return status.version() >= version; });
  }
  void Await(const std::function<bool(const v1::RunStatus&)>& holds) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* const run = FindRun(seen, run_);
          return run != nullptr && holds(*run);
        },
        kLong, "the run is as expected");
    ASSERT_TRUE(status.ok()) << status.status();
    status_ = *FindRun(*status, run_);
  }
  std::string Call(std::vector<std::string> arguments, int exit_code = 0) {
    arguments.insert(arguments.end(), {"--coordinator", cluster_.coordinator()});
    return RunCadre(arguments, exit_code);
  }
  // The text of an event about a rollback that contains `text`; empty if there is none.
  std::string EventOf(const std::string& text) {
    const auto events = cluster_.client().Call(&v1::Status::Stub::Events, v1::EventsRequest());
    if (!events.ok()) return "";
    for (const v1::ClusterEvent& event : events->events()) {
      const bool found = event.text().find(text) != std::string::npos;
      if (event.kind() == v1::EVENT_KIND_ROLLBACK && found) return event.text();
    }
    return "";
  }
  // The digest of the commit with this number.
  std::string DigestOf(uint32_t version) {
    v1::HistoryRequest request;
    request.set_run(run_);
    const auto history = cluster_.client().Call(&v1::Status::Stub::History, request);
    EXPECT_TRUE(history.ok()) << history.status();
    if (!history.ok()) return "";
    for (const v1::HistoryEntry& entry : history->entries()) {
      if (entry.has_commit() && entry.commit().version() == version) return entry.commit().digest();
    }
    return "";
  }

  Cluster cluster_;
  std::string run_;
  v1::RunStatus status_;
};

TEST_F(RollbackTest, RunContinuesFromAnOlderVersion) {
  Begin(/*groups=*/2, /*version=*/12);
  constexpr uint32_t kVersion = 10;
  const std::string digest = DigestOf(kVersion);
  const std::string file = cluster_.folder() + "/version.safetensors";
  EXPECT_THAT(Call({"export", run_, "--version", "10", "-O", file}),
              HasSubstr("of version 10, step 40"));
  EXPECT_THAT(
      Call({"export", run_, "--version", "9", "-O", file}, 1),
      AllOf(HasSubstr("version 9 of run"), HasSubstr("is not kept"), HasSubstr(" 10, 5, 0")));
  EXPECT_THAT(Call({"rollback", run_, "--to", "9"}, 1), HasSubstr("is not kept"));
  EXPECT_THAT(Call({"status", run_}), HasSubstr(digest));

  // The order is durable before anything is ordered to the shards.
  cluster_.Kill("aggregator-1");
  Call({"rollback", run_, "--to", "10"});
  cluster_.Kill("coordinator");
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  ASSERT_EQ(cluster_.StartAggregator("aggregator-1"), absl::OkStatus());
  std::string text;
  const auto copied =
      cluster_.Await([&](const auto&) { return !(text = EventOf("copy of version 10")).empty(); },
                     kLong, "version 10 is copied");
  ASSERT_TRUE(copied.ok()) << copied.status() << "\n" << Call({"events", run_});
  EXPECT_THAT(text, HasSubstr("of step 40"));
  uint32_t copy = 0;
  ASSERT_EQ(sscanf(text.c_str(), "version %u is", &copy), 1);
  EXPECT_EQ(DigestOf(copy), digest);
  // It trains on, and its versions follow from its contributions and the copy.
  Await([&](const v1::RunStatus& run) { return run.version() >= copy + 5; });
  EXPECT_GE(status_.step(), 60U);
  EXPECT_LT(status_.step(), 4 * status_.version()) << "the steps after the copy count again";
  Call({"stop", run_});
  Await([](const v1::RunStatus& run) { return run.state() == v1::RUN_STATE_STOPPED; });
  // The shards may have applied one more round, which was closing.
  EXPECT_THAT(RunCadre({"replay", absl::StrCat(cluster_.folder(), "/aggregator-0/", run_),
                        absl::StrCat(cluster_.folder(), "/aggregator-1/", run_)}),
              HasSubstr("All versions of"));
}

TEST_F(RollbackTest, DivergedRunIsParkedAndContinues) {
  v1::RunSpec spec = SmallSpec({.groups = 1, .ranks = 1, .every_steps = 1, .steps = 1000});
  spec.mutable_schedule()->set_base_rate(1e20F);
  const auto run = cluster_.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  run_ = *run;
  EXPECT_THAT(Call({"wait", run_}, 1),
              AllOf(HasSubstr("parked"), HasSubstr("group 0"), HasSubstr("layer 'fc")));
  Await([](const v1::RunStatus& run) { return run.diverged(); });
  EXPECT_EQ(status_.version(), 1U);
  Call({"rollback", run_, "--to", "0"});
  EXPECT_THAT(Call({"wait", run_}, 1), HasSubstr("parked")) << "the learning rate is the same";
  Await([](const v1::RunStatus& run) { return run.diverged(); });
  EXPECT_EQ(status_.version(), 3U) << "version 2 is a copy of version 0";
}

}  // namespace
}  // namespace cadre::testing
