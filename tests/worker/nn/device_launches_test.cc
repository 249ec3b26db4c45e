// The number of launches and copies of each operation of a network on an emulated CUDA device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/worker/nn/one_rank.h"
#include "worker/nn/network.h"

namespace cadre {
namespace {

using ::testing::IsSupersetOf;
using testing::OneRank;
using ::testing::Pair;

struct Work {
  int64_t launches = 0;
  int64_t copies = 0;
  friend bool operator==(const Work&, const Work&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Work& work) {
    return out << work.launches << " launches and " << work.copies << " copies";
  }
};

// The work of each operation, by "forward NAME", "backward NAME" or "sum NAME" of its layer.
using WorkByOp = std::map<std::string, Work>;

class WorkObserver final : public TapeObserver {
 public:
  WorkObserver(const EmulatedCuda& machine, const Graph& graph)
      : machine_(machine), graph_(graph) {}

  void Played(const Tape& /*tape*/, const TapeOp& op, absl::Time /*begin*/,
              double /*seconds*/) override {
    const Work now = Total();
    Work& work = work_[absl::StrCat(Name(op.kind), " ", graph_.layers()[op.layer].name)];
    work.launches += now.launches - before_.launches;
    work.copies += now.copies - before_.copies;
    before_ = now;
  }

  const WorkByOp& work() const { return work_; }

 private:
  Work Total() const { return {machine_.calls("launch"), machine_.calls("copy_async")}; }
  static const char* Name(TapeOpKind kind) {
    switch (kind) {
      case TapeOpKind::kForward:
        return "forward";
      case TapeOpKind::kBackward:
        return "backward";
      case TapeOpKind::kAdd:
        return "sum";
      default:
        return "other";
    }
  }

  const EmulatedCuda& machine_;
  const Graph& graph_;
  Work before_ = Total();
  WorkByOp work_;
};

WorkByOp WorkOf(const char* model, Fusion fusion) {
  const EmulatedRank emulated = MakeEmulatedRank(
      {.mode = EmulatedCuda::Mode::kInline, .precision = Precision::kBf16, .memory = 64 << 20});
  OneRank rank(model, *emulated.kernels);
  rank.network().set_fusion(fusion);
  // The first pass also copies what the host prepares.
  rank.Loss();
  WorkObserver observer(*emulated.machine, rank.graph());
  rank.network().set_observer(&observer);
  rank.Loss();
  return observer.work();
}

// Sums over the rows take two launches, because the blocks of a grid have no common barrier.
TEST(DeviceLaunchesTest, BatchNorm) {
  EXPECT_THAT(WorkOf(R"(
    input { channels: 3 height: 8 width: 6 }
    layer { name: "conv" convolution { out_channels: 8 kernel: 3 } }
    layer { name: "norm" batch_norm {} }
    layer { name: "relu" relu {} }
    layer { name: "mean" global_average_pool {} }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} }
  )",
                     Fusion::kHost),
              IsSupersetOf({Pair("forward norm", Work{.launches = 4}),
                            Pair("backward norm", Work{.launches = 3})}));
}

// Backward reads the outputs of both branches, so that the sum cannot overwrite one of them.
constexpr char kBlock[] = R"(
  input { channels: 3 height: 8 width: 6 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "norm1" batch_norm {} }
  layer { name: "relu1" relu {} }
  layer { name: "conv2" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "norm2" batch_norm {} }
  layer { name: "relu2" relu {} }
  layer { name: "add" input: "relu1" input: "relu2" add {} }
  layer { name: "relu3" relu {} }
  layer { name: "mean" global_average_pool {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

TEST(DeviceLaunchesTest, ResidualBlock) {
  EXPECT_THAT(WorkOf(kBlock, Fusion::kOff),
              IsSupersetOf({Pair("forward add", Work{.launches = 1}),
                            Pair("backward norm1", Work{.launches = 3}),
                            Pair("backward norm2", Work{.launches = 3})}));
}

}  // namespace
}  // namespace cadre
