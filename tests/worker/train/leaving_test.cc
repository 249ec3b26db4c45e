// Groups of which a rank leaves before the boundary. The coordinator is a fake, the aggregator is
// real.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/backend.h"
#include "tests/base/expect.h"
#include "tests/member/fake_run.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

constexpr uint32_t kPeriod = 50;

v1::RunSpec LeavingSpec() {
  return Parse<v1::RunSpec>(R"(
    name: "leaving"
    model {
      input { channels: 1 height: 4 width: 4 }
      layer { name: "fc1" fully_connected { out_features: 30 } }
      layer { name: "relu" relu {} }
      layer { name: "fc2" fully_connected { out_features: 4 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
    batch_per_group: 8
    optimizer { sgd { momentum: 0.5 } }
    schedule { base_rate: 0.01 }
    seed: 5
    averaging { every_steps: 50 }
    cluster { groups: 1 ranks_per_group: 2 }
  )");
}

// Trains until one version is made, with what `leaves` returns for each rank. Returns the
// contribution.
template <typename Leaves>
v1::Contributed ContributionOf(int ranks, uint32_t agree_steps, const Leaves& leaves) {
  FakeRun run(LeavingSpec());
  v1::Contributed contribution;
  run.Train(
      ranks, 1,
      [&](const v1::Assignment& assignment, RecordingControl& control,
          std::unique_ptr<Transport> link) {
        const uint32_t rank = assignment.place().rank();
        control.steps_before_nudge = 1000;
        control.start.set_next_step(kPeriod);
        control.start.set_agree_steps(agree_steps);
        control.leaving = leaves(rank);
        const auto kernels = MakeCpuBackend(1);
        Cancellation cancellation;
        Counters counters;
        LinkCache links;
        TrainerOptions options;
        options.links = &links;
        options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
          return std::move(link);
        };
        TrainerOutcome outcome =
            TrainAsMember(assignment, *kernels, control, cancellation, counters, options);
        if (rank == 0 && !control.contributed.empty()) {
          contribution = control.contributed.front();
        }
        return outcome;
      });
  return contribution;
}

using Left = std::optional<absl::Duration>;

TEST(LeavingTest, SingleRankContributesAfterItsStep) {
  const v1::Contributed contributed =
      ContributionOf(1, 0, [](uint32_t) { return Left(absl::ZeroDuration()); });
  EXPECT_EQ(contributed.step(), 1U);
  EXPECT_EQ(contributed.samples(), 8U);
  EXPECT_TRUE(contributed.leaves());
}

TEST(LeavingTest, SingleRankFinishesAPeriodThatFits) {
  const v1::Contributed contributed =
      ContributionOf(1, 0, [](uint32_t) { return Left(absl::Hours(1)); });
  EXPECT_EQ(contributed.step(), kPeriod);
  EXPECT_TRUE(contributed.leaves());
}

TEST(LeavingTest, RanksStopWhereTheyAgree) {
  const v1::Contributed contributed = ContributionOf(
      2, 4, [](uint32_t rank) { return rank == 1 ? Left(absl::ZeroDuration()) : std::nullopt; });
  EXPECT_EQ(contributed.step(), 4U);
  EXPECT_EQ(contributed.samples(), 32U);
  EXPECT_TRUE(contributed.leaves());
}

TEST(LeavingTest, RanksThatStayFinishTheirPeriod) {
  const v1::Contributed contributed =
      ContributionOf(2, 4, [](uint32_t) { return Left(std::nullopt); });
  EXPECT_EQ(contributed.step(), kPeriod);
  EXPECT_FALSE(contributed.leaves());
}

}  // namespace
}  // namespace cadre
