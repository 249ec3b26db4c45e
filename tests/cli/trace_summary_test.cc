#include "cli/trace_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

constexpr double kMicrosecond = 1e-6;

void Add(v1::RankTrace& rank, const std::string& category, int64_t begin_us, int64_t duration_us,
         uint32_t track = 0, const std::string& name = "x") {
  v1::TraceEvent& event = *rank.add_events();
  event.set_name(name);
  event.set_category(category);
  event.set_track(track);
  event.set_begin_us(begin_us);
  event.set_duration_us(duration_us);
}

// Two steps of 1000 us and 2000 us.
v1::TraceReply TwoSteps() {
  v1::TraceReply reply;
  v1::RankTrace& rank = *reply.add_ranks();
  rank.set_worker("alpha");
  rank.set_host("host-1");
  Add(rank, "step", 0, 1000);
  Add(rank, "step", 1000, 2000);
  Add(rank, "compute", 0, 600);
  Add(rank, "compute", 1000, 800);
  Add(rank, "move", 600, 100);
  Add(rank, "wait", 700, 300);
  Add(rank, "wait", 2000, 600);
  Add(rank, "collective", 100, 900, 1);
  Add(rank, "collective", 1100, 300, 1);
  Add(rank, "update", 500, 50, 1);
  return reply;
}

TEST(TraceSummaryTest, SumsPerStep) {
  const std::vector<RankTimes> times = TimesOf(TwoSteps());
  ASSERT_THAT(times, SizeIs(1));
  const RankTimes& rank = times[0];
  EXPECT_EQ(rank.worker, "alpha");
  EXPECT_EQ(rank.steps, 2U);
  EXPECT_EQ(rank.events, 10U);
  EXPECT_THAT(rank.step, DoubleNear(1500 * kMicrosecond, 1e-12));
  EXPECT_THAT(rank.compute, DoubleNear(700 * kMicrosecond, 1e-12));
  EXPECT_THAT(rank.moves, DoubleNear(50 * kMicrosecond, 1e-12));
  EXPECT_THAT(rank.collectives, DoubleNear(600 * kMicrosecond, 1e-12));
  EXPECT_THAT(rank.wait, DoubleNear(450 * kMicrosecond, 1e-12));
  EXPECT_THAT(rank.exposed(), DoubleNear(0.3, 1e-12));
}

TEST(TraceSummaryTest, OverlapCountsOnce) {
  v1::TraceReply reply;
  v1::RankTrace& rank = *reply.add_ranks();
  Add(rank, "step", 0, 1000);
  // The intervals are out of order: one lies inside another, two overlap, two touch, one is empty.
  Add(rank, "collective", 500, 100, 1);
  Add(rank, "collective", 100, 100, 0);
  Add(rank, "collective", 150, 100, 1);
  Add(rank, "collective", 160, 10, 1);
  Add(rank, "collective", 250, 50, 1);
  Add(rank, "collective", 900, 0, 1);
  EXPECT_THAT(TimesOf(reply)[0].collectives, DoubleNear(300 * kMicrosecond, 1e-12));
}

TEST(TraceSummaryTest, OnlyTheMainThreadWaits) {
  v1::TraceReply reply;
  v1::RankTrace& rank = *reply.add_ranks();
  Add(rank, "step", 0, 1000);
  Add(rank, "wait", 0, 500, 1);
  EXPECT_EQ(TimesOf(reply)[0].wait, 0);
}

TEST(TraceSummaryTest, NoShareWithoutAStep) {
  v1::TraceReply reply;
  v1::RankTrace& rank = *reply.add_ranks();
  Add(rank, "wait", 0, 500);
  Add(rank, "compute", 500, -7);
  const std::vector<RankTimes> times = TimesOf(reply);
  EXPECT_EQ(times[0].steps, 0U);
  EXPECT_EQ(times[0].exposed(), 0);
  EXPECT_EQ(times[0].compute, 0) << "a clock that was set back";
  EXPECT_THAT(TimesOf(v1::TraceReply()), IsEmpty());
}

TEST(TraceSummaryTest, TableAndJsonAgree) {
  const std::vector<RankTimes> times = TimesOf(TwoSteps());
  EXPECT_THAT(TimesTable(times),
              AllOf(HasSubstr("EXPOSED WAIT"), HasSubstr("alpha"), HasSubstr("1.50 ms"),
                    HasSubstr("0.45 ms"), HasSubstr("30.0 %")));
  const Json rank = ToJson(times.at(0));
  EXPECT_EQ(rank["rank"], 0);
  EXPECT_EQ(rank["host"], "host-1");
  EXPECT_EQ(rank["steps"], 2);
  EXPECT_DOUBLE_EQ(rank["step_seconds"].get<double>(), times[0].step);
  EXPECT_DOUBLE_EQ(rank["compute_seconds"].get<double>(), times[0].compute);
  EXPECT_DOUBLE_EQ(rank["move_seconds"].get<double>(), times[0].moves);
  EXPECT_DOUBLE_EQ(rank["collective_seconds"].get<double>(), times[0].collectives);
  EXPECT_DOUBLE_EQ(rank["exposed_wait_seconds"].get<double>(), times[0].wait);
  EXPECT_DOUBLE_EQ(rank["exposed_share"].get<double>(), times[0].exposed());
  EXPECT_EQ(rank["events"], 10);
  EXPECT_EQ(rank["dropped"], 0);
}

TEST(TraceSummaryTest, FileHasAProcessPerRank) {
  v1::TraceReply reply = TwoSteps();
  reply.mutable_ranks(0)->mutable_events(7)->set_bytes(4096);
  reply.mutable_ranks(0)->mutable_events(7)->set_step(9);
  v1::RankTrace& other = *reply.add_ranks();
  other.set_rank(1);
  other.set_worker("beta");
  Add(other, "compute", 5, 6, 0, "conv1 forward");
  const Json document = Json::parse(TraceFile(reply, 3));
  std::vector<std::string> processes;
  size_t complete = 0;
  for (const Json& event : document.at("traceEvents")) {
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    complete += event["ph"] == "X" ? 1 : 0;
    if (event.value("cat", "") == "collective" && event["ts"] == 100) {
      EXPECT_EQ(event["args"]["bytes"], 4096);
      EXPECT_EQ(event["args"]["step"], 9);
      EXPECT_EQ(event["tid"], 1);
    }
  }
  EXPECT_THAT(processes,
              ::testing::ElementsAre("group 3 rank 0 (alpha on host-1)", "group 3 rank 1 (beta)"));
  EXPECT_EQ(complete, 11U);
}

}  // namespace
}  // namespace cadre
