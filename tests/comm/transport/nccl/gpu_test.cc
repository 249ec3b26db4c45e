// Collectives over the NCCL library, between processes that share the first GPU of this host.
#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "device/gpu_environment.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/transport/nccl/rank_processes.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

// Tasks of a rank.
constexpr char kEverything[] = "everything";
constexpr char kLoseLastRank[] = "lose-last-rank";

absl::Status OneAllReduce(Transport& data, Device& device) {
  Communicator all(data, AllRanks(data.size()));
  const DeviceArray<float> values(device, 1 << 20, "test");
  const absl::Status enqueued = all.AllReduceSum(values.span());
  const absl::Status ended = device.Synchronize();
  return enqueued.ok() ? ended : enqueued;
}

// The last rank is killed while the others wait for it.
void LoseLastRank(const DeviceRank& rank) {
  Device& device = rank.kernels.device();
  ASSERT_EQ(OneAllReduce(rank.data, device), absl::OkStatus());
  const int last = rank.data.size() - 1;
  if (rank.data.rank() == last) {
    absl::SleepFor(absl::Milliseconds(300));
    raise(SIGKILL);
  }
  const absl::Status lost = OneAllReduce(rank.data, device);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), ::testing::HasSubstr(absl::StrCat("rank ", last)));
}

absl::Status RunRank(const std::string& task, int rank) {
  auto host = ConnectRankProcess(rank);
  if (!host.ok()) return host.status();
  auto device = CudaDevice::Make(
      RealCudaApi(), {.memory_limit = int64_t{2} << 30, .synchronous = SynchronousGpu()});
  if (!device.ok()) return device.status();
  const auto nccl = LoadNccl({});
  if (!nccl.ok()) return nccl.status();
  // No check multiplies matrices.
  const std::unique_ptr<Backend> kernels = MakeCudaBackend(**device, nullptr);
  auto data = MakeNcclTransport(*nccl, **device, *kernels, **host, {});
  if (!data.ok()) return data.status();
  const DeviceRank ends = {*kernels, **data, **host};
  if (task == kEverything) CheckEverything(ends);
  if (task == kLoseLastRank) LoseLastRank(ends);
  return absl::OkStatus();
}

int RankMain(const std::string& task, int rank) {
  const absl::Status status = RunRank(task, rank);
  if (!status.ok()) ADD_FAILURE() << "rank " << rank << ": " << status;
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status supported = CheckRankSupport();
    if (!supported.ok()) GTEST_SKIP() << supported.message();
  }
};

class NcclGpuCollectivesTest : public NcclGpuTest, public ::testing::WithParamInterface<int> {};

TEST_P(NcclGpuCollectivesTest, ResultsAreExact) {
  for (const int ended : RunRankProcesses(kEverything, GetParam())) {
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  }
}

TEST_F(NcclGpuTest, SurvivorsNameLostRank) {
  std::vector<int> ended = RunRankProcesses(kLoseLastRank, 3);
  EXPECT_TRUE(WIFSIGNALED(ended.back())) << ended.back();
  ended.pop_back();
  for (const int each : ended) EXPECT_TRUE(WIFEXITED(each) && WEXITSTATUS(each) == 0) << each;
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclGpuCollectivesTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  ::testing::InitGoogleTest(&argc, argv);
  if (const auto rank = cadre::ParseRankArguments(argc, argv)) {
    return cadre::RankMain(rank->task, rank->rank);
  }
  return RUN_ALL_TESTS();
}
