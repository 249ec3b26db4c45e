// Tests `cadre trace` with a fake coordinator; tests/cluster tests the traces of real ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

void Add(v1::RankTrace& rank, const std::string& category, int64_t begin_us, int64_t duration_us,
         uint32_t track = 0) {
  v1::TraceEvent& event = *rank.add_events();
  event.set_name("conv \"1\"");
  event.set_category(category);
  event.set_track(track);
  event.set_begin_us(begin_us);
  event.set_duration_us(duration_us);
}

// A fake coordinator that returns `answer` or `status` and stores the request.
class FakeStatus final : public v1::Status::Service {
 public:
  grpc::Status Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                     v1::TraceReply* reply) override {
    received = *request;
    while (never && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    *reply = answer;
    return ToGrpc(status);
  }

  v1::TraceRequest received;
  v1::TraceReply answer;
  absl::Status status;
  bool never = false;
};

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({.listen = "127.0.0.1:0"}, {&coordinator_});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    for (const uint32_t rank : {0u, 1u}) {
      v1::RankTrace& traced = *coordinator_.answer.add_ranks();
      traced.set_rank(rank);
      traced.set_worker(absl::StrCat("worker-", rank));
      Add(traced, "step", 1'700'000'000'000'000, 1500);
      Add(traced, "compute", 1'700'000'000'000'000, 1500);
    }
  }
  void TearDown() override {
    if (daemon_ != nullptr) daemon_->Drain(absl::Seconds(2));
  }

  Result Run(const std::string& flags = "") {
    return Call(absl::StrCat("trace run-7 --group 2 --steps 5 --insecure --coordinator ",
                             daemon_->address(), " --timeout ", timeout_, " -O ", output_, " ",
                             flags));
  }
  // The times of the only rank of the answer.
  Json TimesOf(const v1::RankTrace& rank) {
    coordinator_.answer.clear_ranks();
    *coordinator_.answer.add_ranks() = rank;
    const Result result = Run("-o json");
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    return Json::parse(result.out).at("ranks").at(0);
  }
  FakeStatus coordinator_;
  std::unique_ptr<Daemon> daemon_;
  std::string timeout_ = "30s";
  const TemporaryFolder folder_;
  std::string output_ = folder_ / "step.json";
};

TEST_F(TraceTest, ReplacesFileAndPrintsTimes) {
  std::ofstream(output_) << "old";
  const Result result = Run();
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(coordinator_.received.run(), "run-7");
  EXPECT_EQ(coordinator_.received.group(), 2u);
  EXPECT_EQ(coordinator_.received.steps(), 5u);
  EXPECT_THAT(result.out, AllOf(HasSubstr("RANK"), HasSubstr("worker-1"), HasSubstr("1.50 ms")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("step.json"), HasSubstr("perfetto")));
  EXPECT_TRUE(Json::parse(ReadFile(output_).value()).contains("traceEvents"));
  EXPECT_EQ(folder_.Entries(), 1);
}

TEST_F(TraceTest, JsonSummary) {
  const Result result = Run("-o json --quiet");
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const Json summary = Json::parse(result.out);
  EXPECT_EQ(summary["run"], "run-7");
  EXPECT_EQ(summary["group"], 2);
  EXPECT_EQ(summary["file"], output_);
  ASSERT_THAT(summary["ranks"], SizeIs(2));
  EXPECT_DOUBLE_EQ(summary["ranks"][1]["step_seconds"].get<double>(), 0.0015);
  EXPECT_EQ(result.err, "");
}

// Two steps of 1000 us and 2000 us.
v1::RankTrace TwoSteps() {
  v1::RankTrace rank;
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
  return rank;
}

TEST_F(TraceTest, SumsPerStep) {
  const Json rank = TimesOf(TwoSteps());
  EXPECT_EQ(rank["rank"], 0);
  EXPECT_EQ(rank["worker"], "alpha");
  EXPECT_EQ(rank["host"], "host-1");
  EXPECT_EQ(rank["steps"], 2);
  EXPECT_EQ(rank["events"], 10);
  EXPECT_EQ(rank["dropped"], 0);
  const std::map<std::string, double> times = {
      {"step_seconds", 1500e-6},      {"compute_seconds", 700e-6},      {"move_seconds", 50e-6},
      {"collective_seconds", 600e-6}, {"exposed_wait_seconds", 450e-6}, {"exposed_share", 0.3}};
  for (const auto& [key, value] : times) EXPECT_NEAR(rank[key].get<double>(), value, 1e-12) << key;
  EXPECT_THAT(Run().out, AllOf(HasSubstr("EXPOSED WAIT"), HasSubstr("alpha"), HasSubstr("1.50 ms"),
                               HasSubstr("0.45 ms"), HasSubstr("30.0 %")));
}

TEST_F(TraceTest, OverlapCountsOnceAndOnlyTheMainThreadWaits) {
  v1::RankTrace rank;
  Add(rank, "step", 0, 1000);
  // The intervals are out of order: one lies inside another, two overlap, two touch, one is empty.
  Add(rank, "collective", 500, 100, 1);
  Add(rank, "collective", 100, 100, 0);
  Add(rank, "collective", 150, 100, 1);
  Add(rank, "collective", 160, 10, 1);
  Add(rank, "collective", 250, 50, 1);
  Add(rank, "collective", 900, 0, 1);
  Add(rank, "wait", 0, 500, 1);
  const Json times = TimesOf(rank);
  EXPECT_NEAR(times["collective_seconds"].get<double>(), 300e-6, 1e-12);
  EXPECT_EQ(times["exposed_wait_seconds"], 0);
}

TEST_F(TraceTest, NoShareWithoutAStep) {
  v1::RankTrace rank;
  Add(rank, "wait", 0, 500);
  Add(rank, "compute", 500, -7);
  const Json times = TimesOf(rank);
  EXPECT_EQ(times["steps"], 0);
  EXPECT_EQ(times["exposed_share"], 0);
  EXPECT_EQ(times["compute_seconds"], 0) << "a clock that was set back";
  coordinator_.answer.clear_ranks();
  EXPECT_EQ(Json::parse(Run("-o json").out).at("ranks"), Json::array());
}

TEST_F(TraceTest, FileHasAProcessPerRank) {
  coordinator_.answer.clear_ranks();
  v1::RankTrace& first = *coordinator_.answer.add_ranks() = TwoSteps();
  first.mutable_events(7)->set_bytes(4096);
  first.mutable_events(7)->set_step(9);
  v1::RankTrace& other = *coordinator_.answer.add_ranks();
  other.set_rank(1);
  other.set_worker("beta");
  Add(other, "compute", 5, 6);
  output_ = "-";
  const Json document = Json::parse(Run().out);
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
  EXPECT_THAT(processes, ElementsAre("group 2 rank 0 (alpha on host-1)", "group 2 rank 1 (beta)"));
  EXPECT_EQ(complete, 11u);
}

TEST_F(TraceTest, TraceOnStdout) {
  output_ = "-";
  const Result result = Run();
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_TRUE(Json::parse(result.out).contains("traceEvents"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("worker-1"), Not(HasSubstr("wrote"))));
  EXPECT_EQ(folder_.Entries(), 0);
  const Result quiet = Run("--quiet");
  EXPECT_TRUE(Json::parse(quiet.out).contains("traceEvents"));
  EXPECT_EQ(quiet.err, "");
}

TEST_F(TraceTest, ErrorsWriteNoFile) {
  const struct {
    absl::Status status;
    int code;
  } cases[] = {
      {absl::NotFoundError("there is no run run-7"), kExitNotFound},
      {absl::FailedPreconditionError("run run-7 has ended"), kExitFailure},
      {absl::AbortedError("group 2 ended while it was traced"), kExitFailure},
      {absl::ResourceExhaustedError("another trace is under way"), kExitFailure},
      {absl::UnavailableError("the coordinator is stopping"), kExitUnavailable},
  };
  std::ofstream(output_) << "old";
  for (const auto& [status, code] : cases) {
    coordinator_.status = status;
    const Result result = Run();
    EXPECT_EQ(result.exit_code, code) << status;
    EXPECT_EQ(result.err, absl::StrCat("cadre: ", status.message(), "\n"));
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(ReadFile(output_).value(), "old");
    EXPECT_EQ(folder_.Entries(), 1);
  }
}

TEST_F(TraceTest, RespectsTheTimeout) {
  coordinator_.never = true;
  timeout_ = "300ms";
  const Result result = Run();
  EXPECT_EQ(result.exit_code, kExitUnavailable);
  EXPECT_THAT(result.err, MatchesRegex("cadre: [^\n]+\n"));
}

TEST_F(TraceTest, ChecksTheFileFirst) {
  for (const std::string& path :
       {folder_ / "no-such-folder/step.json", folder_.path(), std::string("/dev/null")}) {
    output_ = path;
    const Result result = Run();
    EXPECT_EQ(result.exit_code, kExitFailure) << path;
    EXPECT_THAT(result.err, HasSubstr(path));
    EXPECT_EQ(coordinator_.received.run(), "") << path;
  }
}

TEST_F(TraceTest, WarnsOfDroppedIntervals) {
  coordinator_.answer.mutable_ranks(0)->set_dropped(40);
  coordinator_.answer.mutable_ranks(1)->set_dropped(2);
  EXPECT_THAT(Run().err, HasSubstr("42 intervals did not fit"));
}

}  // namespace
}  // namespace cadre
