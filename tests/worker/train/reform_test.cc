// Groups that are re-formed: optimizer states move with them. The coordinator is a fake, the
// aggregator is real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/backend.h"
#include "plan/exchange_memory.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/member/fake_run.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::Pair;

v1::RunSpec Spec(const std::string& optimizer) {
  auto spec = Parse<v1::RunSpec>(R"(
        name: "reform"
        model {
          input { channels: 1 height: 4 width: 4 }
          layer { name: "fc1" fully_connected { out_features: 6 } }
          layer { name: "relu" relu {} }
          layer { name: "fc2" fully_connected { out_features: 4 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
        batch_per_group: 8
        schedule { base_rate: 0.01 }
        averaging { every_steps: 4 }
        seed: 5
        cluster { groups: 1 ranks_per_group: 2 }
      )");
  *spec.mutable_optimizer() = Parse<v1::Optimizer>(optimizer);
  return spec;
}

// A run whose workers keep what outlives a generation.
class TrainedRun {
 public:
  explicit TrainedRun(const v1::RunSpec& spec) : run_(spec) {}

  // Worker workers[i] trains as rank i (FakeRun::Train).
  void Train(const std::vector<int>& workers, uint32_t versions, uint32_t group = 0) {
    run_.Train(std::ssize(workers), versions, TrainerOf(workers), group);
  }
  // The group contributes to a round, which closes without it (FakeRun::TrainWithoutCommit).
  void TrainWithoutCommit(const std::vector<int>& workers) {
    run_.TrainWithoutCommit(std::ssize(workers), TrainerOf(workers));
  }
  // The group makes these versions and adopts them. It trains its next steps, but the aggregator
  // refuses its contribution.
  void FailRound(const std::vector<int>& workers, uint32_t versions = 0) {
    const uint32_t last = run_.version() + versions;
    run_.OnAdopted([&](const v1::Adopted& adopted) {
      if (adopted.version() == last) run_.Fence();
    });
    run_.Train(std::ssize(workers), versions + 1,
               [&](const v1::Assignment& assignment, RecordingControl& control,
                   std::unique_ptr<Transport> link) {
                 const absl::Status status = TrainAs(workers[assignment.place().rank()], assignment,
                                                     control, std::move(link))
                                                 .status;
                 // After the first rank has left, the others cannot reach it.
                 EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
                 return TrainerOutcome{.status = absl::CancelledError("expected")};
               });
    run_.OnAdopted(nullptr);
  }
  // As Train. Returns the bytes of the vaults of worker 0 whenever it has adopted a version.
  std::vector<std::pair<int64_t, int64_t>> BytesOfVaults(const std::vector<int>& workers,
                                                         uint32_t versions) {
    std::vector<std::pair<int64_t, int64_t>> bytes;
    run_.OnAdopted([&](const v1::Adopted&) {
      bytes.emplace_back(vaults[0].AllocatedBytes(), residuals[0].AllocatedBytes());
    });
    Train(workers, versions);
    run_.OnAdopted(nullptr);
    return bytes;
  }
  // The worker is assigned to another group, whose peers it cannot reach.
  void FailToConnect(int worker) {
    const auto fail = [&](const v1::Assignment& assignment, RecordingControl& control,
                          std::unique_ptr<Transport>) {
      return TrainAs(worker, assignment, control, nullptr);
    };
    run_.Train(1, 1, fail, /*group=*/1);
  }
  uint64_t digest() const { return run_.digest(); }
  std::vector<float> Values() const { return run_.Values(); }

  std::string Warnings() const {
    std::vector<std::string> texts;
    for (const v1::RunWarning& warning : progress_.warnings()) texts.push_back(warning.text());
    return absl::StrJoin(texts, "\n");
  }

  std::vector<StateVault> vaults{4};
  std::vector<StateVault> residuals{4};
  // Those of all workers.
  Counters counters;

 private:
  FakeRun::TrainRank TrainerOf(const std::vector<int>& workers) {
    return [this, workers](const v1::Assignment& assignment, RecordingControl& control,
                           std::unique_ptr<Transport> link) {
      return TrainAs(workers[assignment.place().rank()], assignment, control, std::move(link));
    };
  }
  TrainerOutcome TrainAs(int worker, const v1::Assignment& assignment, RecordingControl& control,
                         std::unique_ptr<Transport> link) {
    const auto kernels = MakeCpuBackend(1);
    Cancellation cancellation;
    LinkCache links;
    TrainerOptions options;
    options.links = &links;
    options.states = &vaults[worker];
    options.progress = &progress_;
    options.residuals = &residuals[worker];
    options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
      if (link == nullptr) return absl::UnavailableError("the peers cannot be reached");
      return std::move(link);
    };
    TrainerOutcome outcome =
        TrainAsMember(assignment, *kernels, control, cancellation, counters, options);
    EXPECT_EQ(control.prepared.memory().exchange(), control.prepared.planned_memory().exchange());
    return outcome;
  }

  // Shared by all ranks.
  TrainerProgress progress_;
  FakeRun run_;
};

TEST(Reform, OptimizerStatesSurvive) {
  for (const std::string optimizer : {"sgd { momentum: 0.5 }", "adamw {}"}) {
    const v1::RunSpec spec = Spec(optimizer);
    for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
      TrainedRun whole(spec);
      whole.Train(workers, 5);
      TrainedRun reformed(spec);
      reformed.Train(workers, 2);
      // Each worker has the other's rank.
      reformed.Train({workers.rbegin(), workers.rend()}, 3);
      EXPECT_EQ(reformed.digest(), whole.digest()) << optimizer;

      TrainedRun forgotten(spec);
      forgotten.Train(workers, 2);
      forgotten.vaults = std::vector<StateVault>(4);
      forgotten.Train(workers, 3);
      EXPECT_NE(forgotten.digest(), whole.digest()) << optimizer;
    }
  }
}

// No rank of the new generation has any of them.
TEST(Reform, LossOfAllStatesIsAWarning) {
  TrainedRun run(Spec("sgd { momentum: 0.5 }"));
  run.Train({0, 1}, 2);
  EXPECT_EQ(run.Warnings(), "");
  run.Train({2, 3}, 1);
  EXPECT_EQ(run.Warnings(),
            "group 0: the optimizer states of 130 of 130 elements were lost with its ranks and "
            "begin with zero");
}

TEST(Reform, GenerationThatCannotPrepareCostsNoStates) {
  v1::RunSpec spec = Spec("sgd { momentum: 0.5 }");
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
  TrainedRun whole(spec);
  whole.Train({0}, 5);
  TrainedRun reformed(spec);
  reformed.Train({0}, 2);
  reformed.FailToConnect(0);
  reformed.Train({0}, 3);
  EXPECT_EQ(reformed.digest(), whole.digest());
}

// A group that has contributed nothing has no states that could be lost.
TEST(Reform, NewGroupHasLostNoStates) {
  TrainedRun run(Spec("sgd { momentum: 0.5 }"));
  run.Train({0, 1}, 2);
  run.Train({2, 3}, 1, /*group=*/1);
  EXPECT_EQ(run.Warnings(), "");
}

// Worker 2, which knows nothing, takes the place of one that is lost.
TEST(Reform, TheLossOfARankLosesNoStates) {
  for (const std::string optimizer : {"sgd { momentum: 0.5 }", "adamw {}"}) {
    v1::RunSpec spec = Spec(optimizer);
    spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
    TrainedRun whole(spec);
    whole.Train({0, 1}, 5);
    TrainedRun reformed(spec);
    reformed.Train({0, 1}, 2);
    reformed.Train({2, 1}, 1);
    reformed.Train({2, 3}, 2);
    EXPECT_EQ(reformed.digest(), whole.digest()) << optimizer;
  }
}

// Its states are in the vault once, and what its codes leave out is in the exchange alone. The last
// contribution of a generation may be included or not, so both vaults then have what follows.
TEST(Reform, RankThatIsAloneKeepsLittle) {
  v1::RunSpec spec = Spec("sgd { momentum: 0.5 }");
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
  TrainedRun run(spec);
  constexpr int64_t kTensor = 130 * sizeof(float);
  EXPECT_THAT(run.BytesOfVaults({0}, 3),
              ElementsAre(Pair(0, 0), Pair(kTensor, 0), Pair(kTensor, 0)));
  EXPECT_EQ(run.vaults[0].AllocatedBytes(), 2 * kTensor);
  EXPECT_EQ(run.residuals[0].AllocatedBytes(), 3 * kTensor);
  EXPECT_THAT(run.BytesOfVaults({0}, 2), ElementsAre(_, Pair(kTensor, 0)));
}

TEST(Reform, VaultsHoldWhatThePlanCounts) {
  v1::RunSpec spec = Spec("adamw {}");
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
  for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
    const int ranks = static_cast<int>(workers.size());
    const int64_t values = 130 / ranks;
    TrainedRun run(spec);
    const auto bytes = run.BytesOfVaults(workers, 4);
    EXPECT_EQ(bytes.back().first, StateCopyBytes(spec.averaging(), 2 * values, ranks));
    const ExchangedValues of_part{.elements = values};
    EXPECT_EQ(bytes.back().second > 0, CarriedBytes(spec.averaging(), of_part, ranks) > 0);
  }
}

// The contribution before the group is re-formed is included, but the group has not adopted its
// version: what its code has left out is that of this contribution.
TEST(Reform, WhatCodesLeaveOutSurvives) {
  v1::RunSpec spec = Spec("sgd { momentum: 0.5 }");
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
  for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
    TrainedRun whole(spec);
    whole.Train(workers, 5);
    TrainedRun reformed(spec);
    reformed.Train(workers, 2);
    reformed.Train({workers.rbegin(), workers.rend()}, 3);
    EXPECT_EQ(reformed.digest(), whole.digest());

    TrainedRun forgotten(spec);
    forgotten.Train(workers, 2);
    forgotten.residuals = std::vector<StateVault>(4);
    forgotten.Train(workers, 3);
    EXPECT_NE(forgotten.digest(), whole.digest());
  }
}

// What the codes have left out before the checkpoint is contributed once, whichever generation does
// it. Without learning, the versions follow from it alone.
TEST(Reform, WhatTheCheckpointHasSurvives) {
  const TemporaryFolder folder;
  v1::RunSpec spec = Spec("sgd {}");
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_STAT2);
  v1::RunSpec saving = spec;
  saving.mutable_checkpoint()->set_directory(folder.path());
  saving.mutable_checkpoint()->set_every_steps(4);
  TrainedRun(saving).Train({0, 1}, 3);
  spec = ResumingFrom(spec, folder / "step-8", 8);
  spec.mutable_schedule()->set_base_rate(0);
  for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
    const std::vector<int> reversed(workers.rbegin(), workers.rend());
    TrainedRun whole(spec);
    const uint64_t initial = whole.digest();
    whole.Train(workers, 3);
    EXPECT_NE(whole.digest(), initial);

    // Version 1 is made by another group.
    TrainedRun late(spec);
    late.FailRound(workers);
    late.Train({3}, 1, /*group=*/1);
    EXPECT_EQ(late.digest(), initial);
    late.Train(reversed, 1);
    late.Train(workers, 2);
    EXPECT_EQ(late.digest(), whole.digest());

    // The group has contributed to round 1, which closes without it.
    TrainedRun left_out(spec);
    left_out.TrainWithoutCommit(workers);
    left_out.Train({3}, 1, /*group=*/1);
    EXPECT_EQ(left_out.digest(), initial);
    left_out.Train(reversed, 1);
    left_out.Train(workers, 2);
    EXPECT_EQ(left_out.digest(), whole.digest());

    // The ranks return after others have contributed for their group: the model has all of it.
    TrainedRun returned(spec);
    returned.Train(workers, 1);
    returned.Train({3}, 1);
    const uint64_t before = returned.digest();
    returned.Train(workers, 1);
    EXPECT_EQ(returned.digest(), before);

    TrainedRun repeated(spec);
    repeated.FailRound(workers);
    repeated.Train(reversed, 3);
    EXPECT_EQ(repeated.digest(), whole.digest());
  }
}

// The change of values in fp32 is kept for the next contribution, with a weight for every round
// that it is late, like that of a group that goes on; also if the generations that follow
// contribute nothing.
TEST(Reform, LateChangesSurvive) {
  v1::RunSpec spec = Spec("sgd {}");
  spec.mutable_averaging()->mutable_staleness()->set_max_rounds(2);
  for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
    const std::vector<int> reversed(workers.rbegin(), workers.rend());
    TrainedRun in_time(spec);
    std::vector<float> change = in_time.Values();
    in_time.Train(workers, 1);
    const std::vector<float> trained = in_time.Values();
    for (size_t i = 0; i < change.size(); ++i) change[i] = trained[i] - change[i];

    for (const auto& [rounds_late, weight] : {std::pair(1, 0.5F), {2, 0.25F}, {3, 0.0F}}) {
      SCOPED_TRACE(absl::StrCat(workers.size(), " ranks, ", rounds_late, " rounds late"));
      std::vector<float> contributed[2];
      for (const bool forgotten : {false, true}) {
        TrainedRun run(spec);
        run.TrainWithoutCommit(workers);
        for (int late = 1; late <= rounds_late; ++late) {
          if (late > 1) run.FailRound(late % 2 == 0 ? workers : reversed);
          run.Train({3}, 1, /*group=*/1);
        }
        if (forgotten) run.residuals = std::vector<StateVault>(4);
        run.Train(reversed, 1);
        contributed[forgotten ? 1 : 0] = run.Values();
      }
      for (size_t i = 0; i < change.size(); ++i) contributed[1][i] += weight * change[i];
      EXPECT_EQ(contributed[0], contributed[1]);
    }
  }
}

// With fragments, a group contributes a late change in a later round. If it is re-formed meanwhile,
// the change may have become too late, which is reported.
TEST(Reform, LateChangeOfAFragmentIsDroppedWithAReport) {
  v1::RunSpec spec = Spec("sgd {}");
  spec.mutable_averaging()->mutable_staleness()->set_max_rounds(1);
  spec.mutable_averaging()->mutable_fragments()->set_count(2);
  for (const std::vector<int>& workers : {std::vector<int>{0}, {0, 1}}) {
    SCOPED_TRACE(workers.size());
    TrainedRun run(spec);
    run.TrainWithoutCommit(workers);
    run.Train({3}, 1, /*group=*/1);
    run.FailRound(workers, /*versions=*/1);
    EXPECT_EQ(run.counters.Get("changes_dropped"), 0U);
    run.Train(workers, 1);
    EXPECT_GT(run.counters.Get("changes_dropped"), 0U);
  }
}

}  // namespace
}  // namespace cadre
