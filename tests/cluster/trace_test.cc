// Tests `cadre trace` with real ranks.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kLong = absl::Seconds(120);
constexpr uint32_t kSteps = 4;

class TraceTest : public ::testing::Test {
 protected:
  // Starts a run that takes longer than the test. Its weights are split over two ranks.
  void Start(uint32_t groups) {
    const SmallRun small = {.groups = groups,
                            .aggregators = 1,
                            .every_steps = groups > 1 ? 4U : 0U,
                            .steps = 1'000'000,
                            .hidden = 256};
    ASSERT_EQ(cluster_.StartAll(groups > 1 ? 1 : 0, static_cast<int>(2 * groups)),
              absl::OkStatus());
    v1::RunSpec spec = SmallSpec(small);
    // A change of the plan would re-form the group and abort its trace.
    spec.mutable_cluster()->set_keep_plan(true);
    const auto run = cluster_.client().Submit(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    AwaitTraining(groups);
  }
  void AwaitTraining(uint32_t groups) {
    const auto trains = cluster_.Await(
        [&](const v1::StatusReply& status) {
          for (uint32_t group = 0; group < groups; ++group) {
            const v1::GroupStatus* found = FindGroup(status, run_, group);
            if (found == nullptr || found->step() == 0) return false;
          }
          return true;
        },
        kLong, "every group trains");
    ASSERT_TRUE(trains.ok()) << trains.status();
  }
  std::string Trace(std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "trace", run_, "--coordinator", cluster_.coordinator(), "--steps", absl::StrCat(kSteps)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCadre(arguments);
  }

  Cluster cluster_;
  std::string run_;
};

TEST_F(TraceTest, EveryRankIsTraced) {
  ASSERT_NO_FATAL_FAILURE(Start(1));
  const std::string path = cluster_.folder() + "/step.json";
  Trace({"-O", path});
  const auto text = ReadFile(path);
  ASSERT_TRUE(text.ok()) << text.status();
  const Json document = Json::parse(*text);
  // By rank: steps, number of intervals of each kind, bytes, and begin of the last interval.
  std::map<int, std::set<int64_t>> steps;
  std::map<int, std::map<std::string, int>> kinds;
  std::map<int, int64_t> bytes;
  std::map<int, int64_t> newest;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int rank = event.at("pid");
    const std::string kind = event.at("cat");
    ++kinds[rank][kind];
    if (kind == "step") steps[rank].insert(event["args"]["step"].get<int64_t>());
    if (event["args"].contains("bytes")) bytes[rank] += event["args"]["bytes"].get<int64_t>();
    EXPECT_GE(event.at("dur").get<int64_t>(), 0);
    EXPECT_GE(event.at("ts").get<int64_t>(), newest[rank]) << "sorted by begin";
    newest[rank] = event.at("ts").get<int64_t>();
  }
  ASSERT_EQ(kinds.size(), 2u);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(steps[rank].size(), kSteps) << rank;
    EXPECT_EQ(kinds[rank]["step"], static_cast<int>(kSteps)) << rank;
    EXPECT_GE(kinds[rank]["compute"], static_cast<int>(kSteps)) << rank;
    EXPECT_GE(kinds[rank]["collective"], static_cast<int>(kSteps)) << rank;
    EXPECT_GT(bytes[rank], 0) << rank;
  }
}

TEST_F(TraceTest, SummaryMatchesSteps) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  const Json summary = Json::parse(
      Trace({"--group", "1", "-o", "json", "--quiet", "-O", cluster_.folder() + "/step.json"}));
  EXPECT_EQ(summary.at("group"), 1);
  ASSERT_EQ(summary.at("ranks").size(), 2u);
  for (const Json& rank : summary["ranks"]) {
    EXPECT_EQ(rank.at("steps"), kSteps);
    const double step = rank.at("step_seconds");
    EXPECT_GT(step, 0);
    EXPECT_GT(rank.at("compute_seconds").get<double>(), 0);
    // One thread computes, so the sum is at most the step time.
    EXPECT_LE(rank["compute_seconds"].get<double>(), 1.01 * step);
    EXPECT_GT(rank.at("collective_seconds").get<double>(), 0);
    EXPECT_GE(rank.at("exposed_share").get<double>(), 0);
    EXPECT_LE(rank["exposed_share"].get<double>(), 1.01);
    EXPECT_EQ(rank.at("dropped"), 0);
  }
}

}  // namespace
}  // namespace cadre::testing
