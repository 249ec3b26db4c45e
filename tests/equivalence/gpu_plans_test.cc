// Training under plans on the first GPU of this host has the results of one worker on the host.
//
// GpuPlans: ranks are threads that exchange data by copies on the GPU. The cases show that the
// kernels, the libraries and the order of streams are right under every plan, without the time
// slices that processes on one GPU take in turns. card_plans_test.cc does the same on an emulated
// device.
// NcclPlans: ranks are processes that exchange data over NCCL. One case for each kind of network
// and one with placed layers show that NCCL accepts the calls of plans and has the same results.
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "device/cuda/cuda_machine.h"
#include "device/gpu_environment.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dense_math.h"
#include "tests/comm/transport/nccl/rank_processes.h"
#include "tests/equivalence/card_group.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/small_models.h"

DEFINE_string(zoo, "model/zoo", "folder of the zoo's run files");

namespace cadre {
namespace {

absl::StatusOr<CardRank> MakeGpuRank() {
  CardRank rank;
  CADRE_ASSIGN_OR_RETURN(rank.device,
                         CudaDevice::Make(RealCudaApi(), {.memory_limit = int64_t{2} << 30,
                                                          .synchronous = SynchronousGpu()}));
  CADRE_ASSIGN_OR_RETURN(auto math, MakeLibraryMath(*rank.device, {}));
  rank.kernels = MakeCudaBackend(*rank.device, std::move(math));
  return rank;
}

std::unique_ptr<Backend> OneThreadCpu() { return MakeCpuBackend(1); }

std::string TextOf(const ComparisonResult& result) {
  return absl::StrCat(result.failures, " of ", result.plans,
                      " plans: ", absl::StrJoin(result.messages, "\n"));
}

// The argument of a rank's process, such as "lenet 2 0 split model/zoo".
std::string TaskOf(const PlanCase& c) {
  return absl::StrCat(c.model, " ", c.ranks, " ", c.plans, " ", c.placed ? "placed" : "split", " ",
                      FLAGS_zoo);
}

// --- a rank's process ----------------------------------------------------------------------------

class GpuBackEnd final : public RankBackEnd {
 public:
  static absl::StatusOr<std::unique_ptr<RankBackEnd>> Make() {
    auto made = std::make_unique<GpuBackEnd>();
    CADRE_ASSIGN_OR_RETURN(made->rank_, MakeGpuRank());
    CADRE_ASSIGN_OR_RETURN(made->nccl_, LoadNccl({}));
    return made;
  }

  Backend& kernels() override { return *rank_.kernels; }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) override {
    return MakeNcclTransport(nccl_, *rank_.device, *rank_.kernels, control, {});
  }

 private:
  CardRank rank_;
  NcclApi nccl_;
};

absl::Status RunRank(const RankTask& task) {
  const std::vector<std::string> words = absl::StrSplit(task.task, ' ');
  CHECK_EQ(words.size(), 5U) << task.task;
  PlanCase c{.model = words[0].c_str(), .placed = words[3] == "placed"};
  CHECK(absl::SimpleAtoi(words[1], &c.ranks) && absl::SimpleAtoi(words[2], &c.plans)) << task.task;
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, SmallModel(words[4], c.model));
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> control, ConnectRankProcess(task.rank));
  const auto back_end = [](int /*rank*/) {
    auto made = GpuBackEnd::Make();
    CHECK(made.ok()) << made.status();
    return *std::move(made);
  };
  Comparison comparison(spec, OneThreadCpu,
                        [&](const v1::RunSpec& of, const v1::Plan& plan, const Training& training) {
                          v1::RunSpec on_devices = of;
                          on_devices.mutable_cluster()->set_device(v1::Cluster::CUDA);
                          return TrainAsRank(on_devices, plan, training, *control, back_end);
                        });
  CADRE_ASSIGN_OR_RETURN(const ComparisonResult result, comparison.Run(PlansOf(c, comparison)));
  return result.failures == 0 ? absl::OkStatus() : absl::InternalError(TextOf(result));
}

int RankMain(const RankTask& task) {
  const absl::Status status = RunRank(task);
  if (!status.ok()) LOG(ERROR) << "rank " << task.rank << ": " << status;
  return status.ok() ? 0 : 1;
}

// --- the tests -----------------------------------------------------------------------------------

class GpuPlans : public testing::TestWithParam<PlanCase> {};

TEST_P(GpuPlans, EqualOneRankOnTheHost) {
  if (const auto gpu = DescribeCuda(RealCudaApi()); !gpu.ok()) {
    GTEST_SKIP() << "needs a GPU: " << gpu.status().message();
  }
  const absl::StatusOr<v1::RunSpec> spec = SmallModel(FLAGS_zoo, GetParam().model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  CardGroup group(RealCudaApi(), MakeGpuRank);
  Comparison comparison(*spec, OneThreadCpu, group.trainer());
  const auto result = comparison.Run(PlansOf(GetParam(), comparison));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->plans, 0);
  EXPECT_EQ(result->failures, 0) << TextOf(*result);
}

const auto kName = [](const auto& info) { return CaseName(info.param); };

INSTANTIATE_TEST_SUITE_P(Zoo, GpuPlans, testing::ValuesIn(AllPlanCases()), kName);

class NcclPlans : public testing::TestWithParam<PlanCase> {};

TEST_P(NcclPlans, EqualOneRankOnTheHost) {
  const absl::Status supported = CheckRankSupport();
  if (!supported.ok()) GTEST_SKIP() << supported.message();
  for (const int ended : RunRankProcesses(TaskOf(GetParam()), GetParam().ranks)) {
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, NcclPlans,
                         testing::Values(PlanCase{"lenet", 2, 2}, PlanCase{"gpt", 2, 2},
                                         PlanCase{"resnet18", 2, 2}, PlanCase{"lenet", 2, 2, true}),
                         kName);

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  testing::InitGoogleTest(&argc, argv);
  if (const auto task = cadre::ParseRankArguments(argc, argv)) return cadre::RankMain(*task);
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  return RUN_ALL_TESTS();
}
