// Tests with real processes what a coordinator keeps, and which runs it serves: a model outlives
// failed submissions, a run that cannot be served stops no other, and a small disk takes no shards.
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc/grpc_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(60);

class PolicyTest : public ::testing::Test {
 protected:
  std::string Submit(const v1::RunSpec& spec) {
    const auto run = cluster_.client().Submit(spec);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or("");
  }
  v1::RunStatus AwaitState(const std::string& run, v1::RunState state, absl::Duration limit) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* const found = FindRun(seen, run);
          return found != nullptr && found->state() == state;
        },
        limit, absl::StrCat(run, " is ", v1::RunState_Name(state)));
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? *FindRun(*status, run) : v1::RunStatus();
  }
  std::string Call(std::vector<std::string> arguments, int exit_code = 0) {
    arguments.insert(arguments.end(), {"--coordinator", cluster_.coordinator()});
    return RunCadre(arguments, exit_code);
  }

  Cluster cluster_;
};

TEST_F(PolicyTest, ModelOutlivesFailedSubmissions) {
  const v1::RunSpec good = SmallSpec({.groups = 1, .ranks = 1, .aggregators = 1, .steps = 8});
  const auto model = cluster_.StartRun(good);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(cluster_.AwaitDone(*model, kLong).ok());
  v1::RunSpec mistyped = good;
  mistyped.set_name("mistyped");
  mistyped.mutable_checkpoint()->set_from("/no/such/checkpoint");
  for (int i = 0; i < 100; ++i) {
    const std::string failed = Submit(mistyped);
    ASSERT_EQ(AwaitState(failed, v1::RUN_STATE_FAILED, kLong).version(), 0u);
  }
  const std::string file = cluster_.folder() + "/model.safetensors";
  EXPECT_THAT(Call({"export", *model, "-O", file}), HasSubstr("version"));
  EXPECT_TRUE(std::filesystem::exists(file));
  const auto status = cluster_.client().Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->coordinator().retention().runs(), 1u);
  EXPECT_GT(status->coordinator().retention().stored_bytes(), 0u);
  EXPECT_EQ(status->runs_size(),
            1 + static_cast<int>(status->coordinator().retention().keep_without_version()));
}

TEST_F(PolicyTest, RunThatCannotBeServedStopsNoOther) {
  ASSERT_TRUE(cluster_.StartAll(/*aggregators=*/1, /*workers=*/2).ok());
  const std::string large =
      Submit(SmallSpec({.groups = 1, .ranks = 8, .aggregators = 1, .steps = 8}));
  const absl::Time begin = absl::Now();
  const std::string small =
      Submit(SmallSpec({.groups = 1, .ranks = 1, .aggregators = 1, .steps = 1'000'000}));
  AwaitState(small, v1::RUN_STATE_RUNNING, kLong);
  // At most 5 s on an idle host.
  RecordProperty("seconds", absl::StrCat(absl::ToDoubleSeconds(absl::Now() - begin)));
  EXPECT_EQ(AwaitState(large, v1::RUN_STATE_QUEUED, kLong).reason(),
            "waiting for workers: a group needs 8, and only 2 can be used; other runs are served "
            "meanwhile");
}

TEST_F(PolicyTest, SmallDiskTakesNoShards) {
  const std::string folder = cluster_.folder() + "/aggregator-0";
  std::filesystem::create_directory(folder);
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=80k") != 0) {
    GTEST_SKIP() << "no disk can be mounted: " << strerror(errno);
  }
  const absl::Cleanup unmount = [&folder] {
    EXPECT_EQ(umount2(folder.c_str(), MNT_DETACH), 0) << strerror(errno);
  };
  ASSERT_TRUE(cluster_.StartAll(/*aggregators=*/2, /*workers=*/1).ok());
  std::vector<std::string> runs;
  for (const uint32_t aggregators : {0, 1}) {
    const SmallRun small{
        .groups = 1, .ranks = 1, .aggregators = aggregators, .steps = 8, .hidden = 512};
    runs.push_back(Submit(SmallSpec(small)));
    const auto done = cluster_.AwaitDone(runs.back(), kLong);
    ASSERT_TRUE(done.ok()) << done.status();
    const v1::RunStatus& run = *FindRun(*done, runs.back());
    if (aggregators == 0) {
      EXPECT_THAT(run.warnings(), ElementsAre(HasSubstr("aggregator aggregator-0 ")));
    }
    EXPECT_TRUE(std::filesystem::exists(cluster_.folder() + "/aggregator-1/" + runs.back()));
    EXPECT_FALSE(std::filesystem::exists(folder + "/" + runs.back() + "/version-1"));
  }
}

// The largest memory that the process has had, in MiB.
int64_t PeakMemoryMib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (absl::StartsWith(line, "VmHWM:")) return std::stoll(line.substr(6)) >> 10;
  }
  ADD_FAILURE() << "no VmHWM of process " << pid;
  return 0;
}

// Millions of unknown fields, which would take 50 times as much as parsed messages.
TEST_F(PolicyTest, LargeRequestsOfAViewerTakeLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  constexpr int kCalls = 16;
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(cluster_.Issue("viewer", Role::kViewer, absl::Now() + absl::Hours(1)).ok());
  const auto credentials = Credentials::FromFolder(cluster_.TlsOf("viewer"));
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const auto stub = v1::Status::NewStub(MakeChannel(cluster_.coordinator(), Plane::kControl,
                                                    *credentials, {.role = Role::kCoordinator}));
  v1::StatusRequest request;
  auto& unknown = *request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i < 2'970'000; ++i) unknown.AddVarint(999, 1);
  ASSERT_GT(request.ByteSizeLong(), 8'900'000U);
  const int64_t before = PeakMemoryMib(cluster_.process("coordinator").pid());
  std::vector<std::thread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      v1::StatusReply reply;
      const grpc::Status status = stub->Get(&context, request, &reply);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
          << status.error_message();
    });
  }
  for (std::thread& caller : callers) caller.join();
  const int64_t peak = PeakMemoryMib(cluster_.process("coordinator").pid());
  EXPECT_LE(peak, before + 64);
  EXPECT_LT(peak, 128);
  RecordProperty("peak_mib", absl::StrCat(peak));
  EXPECT_TRUE(cluster_.client().Status().ok());
}

TEST_F(PolicyTest, CordonedAggregatorGetsNoNewRuns) {
  ASSERT_TRUE(cluster_.StartAll(/*aggregators=*/2, /*workers=*/1).ok());
  Call({"cordon", "aggregator-0"});
  EXPECT_THAT(Call({"members"}), HasSubstr("cordoned"));
  const std::string run =
      Submit(SmallSpec({.groups = 1, .ranks = 1, .aggregators = 0, .steps = 8}));
  const auto done = cluster_.AwaitDone(run, kLong);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(FindRun(*done, run)->warnings(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(cluster_.folder() + "/aggregator-0/" + run));
  EXPECT_TRUE(std::filesystem::exists(cluster_.folder() + "/aggregator-1/" + run));
}

}  // namespace
}  // namespace cadre::testing
