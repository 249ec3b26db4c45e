// Tests, with real processes, that the shard of an aggregator that is drained moves to another one
// while the groups train: no generation ends, and no bit of the model changes, although momentum
// and residual are on aggregators only.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(300);
// Several times the steps at which the last shard has moved.
constexpr uint32_t kSteps = 600;
// A round of this run takes much less than a second; the machine may be busy.
constexpr int64_t kMaxGapMs = 5000;

class MovingShardsTest : public ::testing::Test {
 protected:
  // Three groups of one worker and two shards, with momentum and with codes in both directions.
  static v1::RunSpec Spec() {
    v1::RunSpec spec = SmallSpec({.groups = 3, .ranks = 1, .every_steps = 4, .steps = kSteps});
    v1::Averaging& averaging = *spec.mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_outer()->mutable_nesterov();
    spec.mutable_cluster()->set_keep_plan(true);
    return spec;
  }
  v1::StatusReply Await(const std::string& what, const Cluster::Predicate& predicate) {
    const auto status = cluster_.Await(predicate, kLimit, what);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(v1::StatusReply());
  }
  void AwaitVersion(uint32_t version) {
    Await(absl::StrCat("version ", version), [&](const v1::StatusReply& seen) {
      const v1::RunStatus* const run = FindRun(seen, run_);
      return run != nullptr && run->version() >= version;
    });
  }
  v1::RunStatus AwaitDone(const std::string& run) {
    const auto status = cluster_.AwaitDone(run, kLimit);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? *FindRun(*status, run) : v1::RunStatus();
  }
  // Drains the aggregator, and ends its process when it stores no shard any more.
  void MoveFrom(const std::string& name) {
    const auto drained = cluster_.client().Cordon(name, CoordinatorClient::CordonMode::kDrain);
    ASSERT_TRUE(drained.ok()) << drained.status();
    const v1::StatusReply status =
        Await(absl::StrCat("the drain of ", name), [&](const v1::StatusReply& seen) {
          return std::ranges::any_of(seen.aggregators(), [&](const v1::AggregatorStatus& one) {
            return one.member().name() == name && one.draining() && one.moves().empty() &&
                   one.shards().empty();
          });
        });
    ASSERT_NE(FindRun(status, run_), nullptr);
    ASSERT_EQ(FindRun(status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
    cluster_.Kill(name);
  }
  // The longest time from one version of the run to the next.
  int64_t LongestGapMs() {
    v1::HistoryRequest request;
    request.set_run(run_);
    const auto history = cluster_.client().Call(&v1::Status::Stub::History, request);
    EXPECT_TRUE(history.ok()) << history.status();
    int64_t gap = 0;
    int64_t last = 0;
    if (!history.ok()) return gap;
    for (const v1::HistoryEntry& entry : history->entries()) {
      if (!entry.has_commit()) continue;
      if (last > 0) gap = std::max(gap, entry.time_ms() - last);
      last = entry.time_ms();
    }
    return gap;
  }
  void ExpectNoGroupEnded() {
    const auto events = cluster_.client().Call(&v1::Status::Stub::Events, v1::EventsRequest());
    ASSERT_TRUE(events.ok()) << events.status();
    for (const v1::ClusterEvent& event : events->events()) {
      const bool ended = event.run() == run_ && event.kind() == v1::EVENT_KIND_GROUP_ENDED &&
                         !absl::StrContains(event.text(), "the run has ended");
      EXPECT_FALSE(ended) << event.text();
    }
  }

  Cluster cluster_{{.lease = absl::Seconds(3)}};
  std::string run_;
};

TEST_F(MovingShardsTest, DrainsChangeNoBit) {
  const auto run = cluster_.StartRun(Spec());
  ASSERT_TRUE(run.ok()) << run.status();
  run_ = *run;
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(8));
  ASSERT_EQ(cluster_.StartAggregator("aggregator-2"), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(MoveFrom("aggregator-0"));
  EXPECT_THAT(RunCadre({"events", absl::StrCat("--coordinator=", cluster_.coordinator())}),
              AllOf(HasSubstr("shard 0 moves from aggregator aggregator-0 to aggregator-2"),
                    HasSubstr("shard 0 has moved from aggregator aggregator-0 to aggregator-2")));
  // The new aggregator is drained in turn, with what it has made since.
  ASSERT_EQ(cluster_.StartAggregator("aggregator-3"), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(MoveFrom("aggregator-2"));
  const v1::RunStatus moved = AwaitDone(run_);
  EXPECT_EQ(moved.warnings_size(), 0);
  ExpectNoGroupEnded();
  EXPECT_LE(LongestGapMs(), kMaxGapMs);

  const auto undisturbed = cluster_.client().Submit(Spec());
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  EXPECT_EQ(AwaitDone(*undisturbed).digest(), moved.digest());
}

}  // namespace
}  // namespace cadre::testing
