// Training under plans on a GPU with NCCL has the results of one worker on the host. Ranks are
// processes that share the first GPU of this host. emulated_plans_test.cc does the same without a
// GPU.
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
#include "device/gpu_environment.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dense_math.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/small_models.h"
#include "tests/worker/transport/nccl/rank_processes.h"
#include "worker/transport/nccl/nccl_transport.h"

DEFINE_string(zoo, "model/zoo", "folder of the zoo's run files");

namespace cadre {
namespace {

struct Case {
  const char* model;
  int ranks;
  // Number of random plans; 0: plans that cover every pair of splits of every two neighbors.
  int plans;
  // Random plans that place layers.
  bool placed = false;
};

// The argument of a rank, such as "lenet 0 split model/zoo".
std::string TaskOf(const Case& c) {
  return absl::StrCat(c.model, " ", c.plans, " ", c.placed ? "placed" : "split", " ", FLAGS_zoo);
}

// --- a rank --------------------------------------------------------------------------------------

class GpuBackEnd final : public RankBackEnd {
 public:
  static absl::StatusOr<std::unique_ptr<RankBackEnd>> Make() {
    auto made = std::make_unique<GpuBackEnd>();
    CADRE_ASSIGN_OR_RETURN(
        made->device_,
        CudaDevice::Make(RealCudaApi(), {.memory_limit = int64_t{2} << 30,
                                         .synchronous = SynchronousGpu()}));
    CADRE_ASSIGN_OR_RETURN(auto math, MakeLibraryMath(*made->device_, {}));
    CADRE_ASSIGN_OR_RETURN(made->nccl_, LoadNccl({}));
    made->kernels_ = MakeCudaBackend(*made->device_, std::move(math));
    return made;
  }

  Backend& kernels() override { return *kernels_; }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) override {
    return MakeNcclTransport(nccl_, *device_, *kernels_, control, {});
  }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Backend> kernels_;
  NcclApi nccl_;
};

absl::Status RunRank(const RankTask& task) {
  const std::vector<std::string> words = absl::StrSplit(task.task, ' ');
  int plans = 0;
  CHECK(words.size() == 4 && absl::SimpleAtoi(words[1], &plans)) << task.task;
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, SmallModel(words[3], words[0]));
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> control, ConnectRankProcess(task.rank));
  const auto back_end = [](int /*rank*/) {
    auto made = GpuBackEnd::Make();
    CHECK(made.ok()) << made.status();
    return *std::move(made);
  };
  Comparison comparison(
      spec, [] { return MakeCpuBackend(1); },
      [&](const v1::RunSpec& of, const v1::Plan& plan, const Training& training) {
        v1::RunSpec on_devices = of;
        on_devices.mutable_cluster()->set_device(v1::Cluster::CUDA);
        return TrainAsRank(on_devices, plan, training, *control, back_end);
      });
  std::mt19937_64 random(7);
  CADRE_ASSIGN_OR_RETURN(
      const ComparisonResult result,
      comparison.Run(words[2] == "placed" ? comparison.PlacedPlans(control->size(), plans, random)
                                          : comparison.Plans(control->size(), plans, random)));
  if (result.failures == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(result.failures, " of ", result.plans,
                                          " plans: ", absl::StrJoin(result.messages, "\n")));
}

int RankMain(const RankTask& task) {
  const absl::Status status = RunRank(task);
  if (!status.ok()) LOG(ERROR) << "rank " << task.rank << ": " << status;
  return status.ok() ? 0 : 1;
}

// --- the test ------------------------------------------------------------------------------------

class GpuPlans : public testing::TestWithParam<Case> {};

TEST_P(GpuPlans, EqualOneRankOnTheHost) {
  const absl::Status supported = CheckRankSupport();
  if (!supported.ok()) GTEST_SKIP() << supported.message();
  for (const int ended : RunRankProcesses(TaskOf(GetParam()), GetParam().ranks)) {
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, GpuPlans,
                         testing::Values(Case{"lenet", 1, 0}, Case{"lenet", 2, 0},
                                         Case{"lenet", 4, 0}, Case{"mlp", 4, 0}, Case{"gpt", 1, 0},
                                         Case{"gpt", 2, 0}, Case{"gpt", 4, 0},
                                         Case{"resnet18", 1, 1}, Case{"resnet18", 2, 4},
                                         Case{"resnet18", 4, 4}, Case{"alexnet", 2, 4},
                                         Case{"alexnet", 4, 4}, Case{"vgg16", 2, 2},
                                         Case{"resnet50", 4, 2}, Case{"lenet", 2, 4, true},
                                         Case{"gpt", 4, 2, true}, Case{"resnet18", 2, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.model, info.param.placed ? "Placed" : "",
                                               "On", info.param.ranks);
                         });

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  testing::InitGoogleTest(&argc, argv);
  if (const auto task = cadre::ParseRankArguments(argc, argv)) return cadre::RankMain(*task);
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  return RUN_ALL_TESTS();
}
