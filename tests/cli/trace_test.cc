// Tests `cadre trace` with a fake coordinator; tests/cluster tests the traces of real ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
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
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

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

class TraceTest : public FolderTest {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({.listen = "127.0.0.1:0", .receive_bytes = kMaxMessageBytes},
                                {&coordinator_});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    output_ = folder_ + "/step.json";
    for (const uint32_t rank : {0u, 1u}) {
      v1::RankTrace& traced = *coordinator_.answer.add_ranks();
      traced.set_rank(rank);
      traced.set_worker(absl::StrCat("worker-", rank));
      for (const char* category : {"step", "compute"}) {
        v1::TraceEvent& event = *traced.add_events();
        event.set_name("conv \"1\"");
        event.set_category(category);
        event.set_begin_us(1'700'000'000'000'000);
        event.set_duration_us(1500);
      }
    }
  }
  void TearDown() override {
    if (daemon_ != nullptr) daemon_->Drain(absl::Seconds(2));
  }

  Result Run(const std::string& flags = "") {
    return Call(absl::StrCat("trace run-7 --group 2 --steps 5 --coordinator ", daemon_->address(),
                             " --timeout ", timeout_, " -O ", output_, " ", flags));
  }
  // Number of files in the folder, including temporary ones.
  size_t Files() const {
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
    return files;
  }

  FakeStatus coordinator_;
  std::unique_ptr<Daemon> daemon_;
  std::string timeout_ = "30s";
  std::string output_;
};

TEST_F(TraceTest, WritesFileAndTimes) {
  const Result result = Run();
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(coordinator_.received.run(), "run-7");
  EXPECT_EQ(coordinator_.received.group(), 2u);
  EXPECT_EQ(coordinator_.received.steps(), 5u);
  EXPECT_THAT(result.out, AllOf(HasSubstr("RANK"), HasSubstr("worker-1"), HasSubstr("1.50 ms")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("step.json"), HasSubstr("perfetto")));
  const Json document = Json::parse(ReadFile(output_).value());
  size_t complete = 0;
  for (const Json& event : document.at("traceEvents")) complete += event["ph"] == "X" ? 1 : 0;
  EXPECT_EQ(complete, 4u);
  EXPECT_EQ(Files(), 1u);
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

TEST_F(TraceTest, TraceOnStdout) {
  output_ = "-";
  const Result result = Run();
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_TRUE(Json::parse(result.out).contains("traceEvents"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("worker-1"), Not(HasSubstr("wrote"))));
  EXPECT_EQ(Files(), 0u);
  const Result quiet = Run("--quiet");
  EXPECT_TRUE(Json::parse(quiet.out).contains("traceEvents"));
  EXPECT_EQ(quiet.err, "");
}

TEST_F(TraceTest, ReplacesAnOlderFile) {
  std::ofstream(output_) << "old";
  const Result result = Run();
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_TRUE(Json::parse(ReadFile(output_).value()).contains("traceEvents"));
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
    EXPECT_EQ(Files(), 1u);
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
       {folder_ + "/no-such-folder/step.json", folder_, std::string("/dev/null")}) {
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
