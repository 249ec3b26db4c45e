// Trains groups whose ranks are threads of this process on one CUDA device, by device copies
// (tests/comm/transport/nccl/device_copy_nccl.h) in place of NCCL. The device may be emulated.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "device/cuda/cuda_device.h"
#include "glog/logging.h"
#include "tests/comm/transport/nccl/device_copy_nccl.h"
#include "tests/equivalence/comparison.h"

namespace cadre {

// The streams, memory and kernels of one rank on the device. Members are destroyed in reverse
// order.
struct CardRank {
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Backend> kernels;
};

// Not thread-safe. The device must outlive the object.
class CardGroup {
 public:
  using RankFactory = std::function<absl::StatusOr<CardRank>()>;

  // `limit`: maximum time for which a rank waits for the others in a call.
  CardGroup(const CudaApi& cuda, RankFactory make_rank, absl::Duration limit = absl::Minutes(2))
      : make_rank_(std::move(make_rank)), nccl_(cuda, /*ordinal=*/0, limit) {}

  // Borrows the object.
  GroupTrainer trainer() {
    return [this](const v1::RunSpec& spec, const v1::Plan& plan, const Training& training) {
      v1::RunSpec on_device = spec;
      on_device.mutable_cluster()->set_device(v1::Cluster::CUDA);
      return ranks_.Train(on_device, plan, training);
    };
  }
  DeviceCopyNccl& nccl() { return nccl_; }

 private:
  class BackEnd final : public RankBackEnd {
   public:
    BackEnd(CardRank& rank, const NcclApi& nccl) : rank_(rank), nccl_(nccl) {}
    Backend& kernels() override { return *rank_.kernels; }
    absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) override {
      return MakeNcclTransport(nccl_, *rank_.device, *rank_.kernels, control, {});
    }

   private:
    CardRank& rank_;
    const NcclApi& nccl_;
  };

  // Called on the thread of the rank.
  std::unique_ptr<RankBackEnd> MakeBackEnd(int number) {
    CardRank& rank = At(number);
    // A device that has failed is not used again.
    if (rank.device != nullptr && !rank.device->status().ok()) {
      rank.kernels = nullptr;
      rank.device = nullptr;
    }
    if (rank.device == nullptr) {
      absl::StatusOr<CardRank> made = make_rank_();
      CHECK(made.ok()) << made.status();
      rank = *std::move(made);
    }
    rank.device->Use(Stream::kCompute);
    return std::make_unique<BackEnd>(rank, nccl_.api());
  }
  CardRank& At(int number) {
    absl::MutexLock lock(&mutex_);
    return cards_[number];
  }

  const RankFactory make_rank_;
  DeviceCopyNccl nccl_;
  absl::Mutex mutex_;
  // By rank; kept from group to group, because handles and plans of libraries take longer to make
  // than to use.
  std::map<int, CardRank> cards_ ABSL_GUARDED_BY(mutex_);
  Ranks ranks_{BackEndFactory([this](int rank) { return MakeBackEnd(rank); })};
};

// Plans that gpu_plans_test.cc runs on a GPU.
struct PlanCase {
  const char* model;
  int ranks;
  // Number of random plans; 0: plans that cover every pair of splits of every two neighbors.
  int plans;
  // Random plans that place layers.
  bool placed = false;
};

inline std::string CaseName(const PlanCase& c) {
  return absl::StrCat(c.model, c.placed ? "Placed" : "", "On", c.ranks);
}
inline void PrintTo(const PlanCase& c, std::ostream* out) { *out << CaseName(c); }

// Cheapest first, as measured on the emulated device.
inline const std::vector<PlanCase>& AllPlanCases() {
  static const auto* const cases = new std::vector<PlanCase>{{"lenet", 1, 0},
                                                             {"resnet18", 1, 1},
                                                             {"lenet", 2, 4, true},
                                                             {"gpt", 1, 0},
                                                             {"resnet18", 2, 2, true},
                                                             {"alexnet", 2, 4},
                                                             {"vgg16", 2, 2},
                                                             {"resnet18", 2, 4},
                                                             {"gpt", 4, 2, true},
                                                             {"lenet", 2, 0},
                                                             {"alexnet", 4, 4},
                                                             {"resnet18", 4, 4},
                                                             {"resnet50", 4, 2},
                                                             {"gpt", 2, 0},
                                                             {"lenet", 4, 0},
                                                             {"mlp", 4, 0},
                                                             {"gpt", 4, 0}};
  return *cases;
}

inline std::vector<Plan> PlansOf(const PlanCase& c, const Comparison& comparison) {
  std::mt19937_64 random(7);
  return c.placed ? comparison.PlacedPlans(c.ranks, c.plans, random)
                  : comparison.Plans(c.ranks, c.plans, random);
}

}  // namespace cadre
