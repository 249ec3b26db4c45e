// Runs that continue from a checkpoint with what the averaging between groups has left: the
// momentum of the outer optimizer, and what codes have left out of contributions and versions. The
// coordinator is a fake, the aggregator is real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "kernels/backend.h"
#include "model/formats/checkpoint_manifest.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/member/fake_run.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Steps of a round of FakeRun.
constexpr uint32_t kSteps = 4;

v1::RunSpec SpecWith(const std::string& averaging) {
  auto spec = Parse<v1::RunSpec>(R"(
        name: "continued"
        model {
          input { channels: 1 height: 4 width: 4 }
          layer { name: "fc1" fully_connected { out_features: 300 } }
          layer { name: "relu" relu {} }
          layer { name: "fc2" fully_connected { out_features: 4 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
        batch_per_group: 8
        optimizer { sgd { momentum: 0.5 } }
        schedule { base_rate: 0.01 }
        seed: 5
        cluster { groups: 1 ranks_per_group: 4 }
      )");
  *spec.mutable_averaging() = Parse<v1::Averaging>(averaging);
  spec.mutable_averaging()->set_every_steps(kSteps);
  return spec;
}

TrainerOutcome TrainUntilCancelled(const v1::Assignment& assignment, RecordingControl& control,
                                   std::unique_ptr<Transport> link, Cancellation& cancellation,
                                   TrainerProgress* progress = nullptr) {
  const auto kernels = MakeCpuBackend(1);
  Counters counters;
  LinkCache links;
  TrainerOptions options;
  options.links = &links;
  options.progress = progress;
  options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return std::move(link);
  };
  return TrainAsMember(assignment, *kernels, control, cancellation, counters, options);
}

TrainerOutcome TrainOneRank(const v1::Assignment& assignment, RecordingControl& control,
                            std::unique_ptr<Transport> link) {
  Cancellation cancellation;
  return TrainUntilCancelled(assignment, control, std::move(link), cancellation);
}

class ContinuedTraining : public ::testing::Test {
 protected:
  // A group of `ranks` trains until `versions` are made; it adopts, and saves, all but the last.
  static uint64_t DigestAfter(const v1::RunSpec& spec, int ranks, uint32_t versions) {
    FakeRun run(spec);
    run.Train(ranks, versions, TrainOneRank);
    return run.digest();
  }
  v1::RunSpec Saving(const std::string& name, v1::RunSpec spec) const {
    spec.mutable_checkpoint()->set_directory(folder_ / name);
    spec.mutable_checkpoint()->set_every_steps(kSteps);
    spec.mutable_checkpoint()->set_keep(10);
    return spec;
  }
  // The checkpoint of a version.
  std::string PathOf(const std::string& name, uint32_t version) const {
    return folder_ / absl::StrCat(name, "/step-", kSteps * version);
  }
  v1::RunSpec From(const std::string& name, uint32_t version, const v1::RunSpec& spec) const {
    return ResumingFrom(spec, PathOf(name, version), kSteps * version);
  }
  std::vector<std::string> StatesIn(const std::string& name, uint32_t version) const {
    const auto manifest = ReadManifest(PathOf(name, version) + "/manifest.textproto");
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? AveragingStateNames(*manifest) : std::vector<std::string>();
  }
  // Removes what the manifest has of the states.
  void Forget(const std::string& name, uint32_t version) const {
    const std::string path = PathOf(name, version) + "/manifest.textproto";
    v1::CheckpointManifest manifest = *ReadManifest(path);
    manifest.clear_averaging_state();
    ASSERT_EQ(WriteManifest(path, manifest), absl::OkStatus());
  }

  const TemporaryFolder folder_;
};

class EveryAveraging : public ContinuedTraining,
                       public ::testing::WithParamInterface<const char*> {};

TEST_P(EveryAveraging, EndsWithTheSameBits) {
  const v1::RunSpec spec = SpecWith(GetParam());
  for (const int ranks : {1, 2}) {
    const std::string name = absl::StrCat(ranks);
    const uint64_t whole = DigestAfter(Saving(name, spec), ranks, 6);
    // The run may be continued repeatedly.
    const v1::RunSpec second = Saving(name + "-second", From(name, 2, spec));
    EXPECT_EQ(DigestAfter(second, ranks, 4), whole);
    EXPECT_EQ(DigestAfter(From(name + "-second", 4, spec), ranks, 2), whole);
    EXPECT_EQ(*ReadFile(PathOf(name + "-second", 4) + "/averaging.safetensors"),
              *ReadFile(PathOf(name, 4) + "/averaging.safetensors"));
    Forget(name, 2);
    EXPECT_NE(DigestAfter(From(name, 2, spec), ranks, 4), whole);
  }
}

// Without learning, the versions follow from the states alone.
TEST_P(EveryAveraging, OtherNumbersOfRanksHaveTheSameBits) {
  DigestAfter(Saving("saved", SpecWith(GetParam())), 2, 4);
  v1::RunSpec spec = From("saved", 3, SpecWith(GetParam()));
  spec.mutable_schedule()->set_base_rate(0);
  FakeRun unchanged(spec);
  const uint64_t initial = unchanged.digest();
  const uint64_t expected = DigestAfter(Saving("ranks-2", spec), 2, 3);
  EXPECT_NE(expected, initial);
  for (const int ranks : {1, 3, 4}) {
    const std::string name = absl::StrCat("ranks-", ranks);
    EXPECT_EQ(DigestAfter(Saving(name, spec), ranks, 3), expected) << name;
    EXPECT_EQ(*ReadFile(PathOf(name, 5) + "/averaging.safetensors"),
              *ReadFile(PathOf("ranks-2", 5) + "/averaging.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    ContinuedTraining, EveryAveraging,
    ::testing::Values("up { codec: CODEC_STAT2 }",
                      "up { codec: CODEC_BF16 } down { codec: CODEC_E3M0 }",
                      "outer { nesterov {} }",
                      "up { codec: CODEC_TOPK } down { codec: CODEC_STAT2 } outer { nesterov {} }",
                      "outer { nesterov { every_rounds: 2 } } down { codec: CODEC_INT8 }"));

// Otherwise the changes of several groups would contain what one has left out.
TEST_F(ContinuedTraining, OnlyGroupZeroContinuesWithWhatWasLeftOut) {
  DigestAfter(Saving("saved", SpecWith("up { codec: CODEC_STAT2 }")), 2, 4);
  v1::RunSpec spec = From("saved", 3, SpecWith("up { codec: CODEC_STAT2 }"));
  spec.mutable_schedule()->set_base_rate(0);
  for (const uint32_t group : {0, 1}) {
    FakeRun run(spec);
    const uint64_t initial = run.digest();
    run.Train(2, 2, TrainOneRank, group);
    EXPECT_EQ(run.digest() != initial, group == 0);
  }
}

// Two rounds without the group follow its adoption, so the aggregator no longer has the version.
// The checkpoint has what the ranks hold themselves.
TEST_F(ContinuedTraining, CheckpointLacksStatesOfReplacedVersion) {
  for (const int ranks : {1, 2}) {
    const std::string name = absl::StrCat(ranks);
    FakeRun run(Saving(name, SpecWith("up { codec: CODEC_STAT2 } outer { nesterov {} }")));
    run.OnAdopted([&](const v1::Adopted& adopted) {
      if (adopted.place().group() != 0 || adopted.version() != 1) return;
      run.Train(1, 2, TrainOneRank, /*group=*/1);
    });
    run.Train(ranks, 2, TrainOneRank);
    EXPECT_THAT(StatesIn(name, 1), ElementsAre("contribution_residual"));
  }
}

// A checkpoint that lacks states would replace the one before, and would not be completed by the
// next generation.
TEST_F(ContinuedTraining, EndedGroupSavesNoCheckpoint) {
  for (const int ranks : {1, 2}) {
    for (const bool fenced : {false, true}) {
      const std::string name = absl::StrCat(ranks, fenced ? "-fenced" : "-cancelled");
      v1::RunSpec spec = Saving(name, SpecWith("up { codec: CODEC_STAT2 } outer { nesterov {} }"));
      spec.mutable_checkpoint()->set_keep(1);
      FakeRun run(spec);
      std::vector<Cancellation> cancellations(ranks);
      run.OnAdopted([&](const v1::Adopted& adopted) {
        if (adopted.version() != 2) return;
        if (fenced) return run.Fence();
        cancellations[0].Cancel(absl::CancelledError("released"));
      });
      run.Train(ranks, 3,
                [&](const v1::Assignment& assignment, RecordingControl& control,
                    std::unique_ptr<Transport> link) {
                  const TrainerOutcome outcome =
                      TrainUntilCancelled(assignment, control, std::move(link),
                                          cancellations[assignment.place().rank()]);
                  // The others may find that it has left.
                  if (assignment.place().rank() == 0) {
                    EXPECT_EQ(outcome.status.code(),
                              fenced ? absl::StatusCode::kAborted : absl::StatusCode::kCancelled);
                  }
                  return TrainerOutcome{.status = absl::CancelledError("expected")};
                });
      EXPECT_FALSE(std::filesystem::exists(PathOf(name, 2))) << name;
      EXPECT_THAT(StatesIn(name, 1), ElementsAre("contribution_residual", "nesterov_momentum"));
    }
  }
}

// What has no effect on a run, or begins with zeros, is in the warnings of its first rank.
TEST_F(ContinuedTraining, DifferentStatesAreReported) {
  DigestAfter(Saving("saved", SpecWith("up { codec: CODEC_STAT2 } outer { nesterov {} }")), 1, 2);
  const v1::RunSpec spec =
      From("saved", 1, SpecWith("down { codec: CODEC_STAT2 } outer { slowmo {} }"));
  std::vector<TrainerProgress> progress(2);
  FakeRun run(spec);
  run.Train(2, 1,
            [&](const v1::Assignment& assignment, RecordingControl& control,
                std::unique_ptr<Transport> link) {
              Cancellation cancellation;
              return TrainUntilCancelled(assignment, control, std::move(link), cancellation,
                                         &progress[assignment.place().rank()]);
            });
  EXPECT_THAT(progress[1].warnings(), ElementsAre());
  std::string log;
  for (const v1::RunWarning& warning : progress[0].warnings()) log += warning.text() + "\n";
  for (const char* name : {"contribution_residual", "nesterov_momentum"}) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat("the run does not use its ", name)));
  }
  for (const char* name : {"version_residual", "slowmo_momentum"}) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat("has no ", name)));
  }
}

// Positions whose state had been lost keep their own number of updates.
TEST_F(ContinuedTraining, UpdatesAreCountedByPosition) {
  v1::RunSpec spec = SpecWith("");
  spec.mutable_optimizer()->mutable_adamw();
  DigestAfter(Saving("saved", spec), 1, 3);
  const std::string path = PathOf("saved", 2) + "/manifest.textproto";
  const auto edit = [&](uint64_t begin, uint64_t end) {
    v1::CheckpointManifest manifest = *ReadManifest(path);
    v1::FewerUpdates& fewer = *manifest.mutable_optimizer()->add_fewer();
    fewer.set_begin(begin);
    fewer.set_end(end);
    fewer.set_updates(1);
    ASSERT_EQ(WriteManifest(path, manifest), absl::OkStatus());
  };
  edit(3, 60);
  for (const int ranks : {1, 2}) {
    const std::string name = absl::StrCat("second-", ranks);
    DigestAfter(Saving(name, From("saved", 2, spec)), ranks, 2);
    const auto manifest = ReadManifest(PathOf(name, 3) + "/manifest.textproto");
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->optimizer().updates(), 3 * kSteps);
    uint64_t elements = 0;
    for (const v1::FewerUpdates& each : manifest->optimizer().fewer()) {
      EXPECT_TRUE(each.begin() >= 3 && each.end() <= 60) << each.DebugString();
      EXPECT_EQ(each.updates(), 1 + kSteps);
      elements += each.end() - each.begin();
    }
    EXPECT_EQ(elements, 57U);
  }
  edit(59, 70);
  FakeRun run(From("saved", 2, spec));
  run.Train(1, 1,
            [&](const v1::Assignment& assignment, RecordingControl& control,
                std::unique_ptr<Transport> link) {
              const TrainerOutcome outcome = TrainOneRank(assignment, control, std::move(link));
              EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
              EXPECT_THAT(outcome.status, IsError(absl::StatusCode::kInvalidArgument,
                                                  "optimizer.fewer: positions 59 to 70"));
              return TrainerOutcome{.status = absl::CancelledError("expected")};
            });
}

// A checkpoint of a state that is damaged is not used, although only the shards use the state.
TEST_F(ContinuedTraining, DamagedMomentumIsRefused) {
  DigestAfter(Saving("saved", SpecWith("outer { nesterov {} }")), 1, 3);
  const std::string path = PathOf("saved", 2) + "/averaging.safetensors";
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() - 3] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  FakeRun run(From("saved", 2, SpecWith("outer { nesterov {} }")));
  run.Train(1, 1,
            [&](const v1::Assignment& assignment, RecordingControl& control,
                std::unique_ptr<Transport> link) {
              const TrainerOutcome outcome = TrainOneRank(assignment, control, std::move(link));
              EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
              EXPECT_THAT(outcome.status, IsError(absl::StatusCode::kDataLoss, path));
              EXPECT_THAT(outcome.status,
                          IsError(absl::StatusCode::kDataLoss, "nesterov_momentum"));
              return TrainerOutcome{.status = absl::CancelledError("expected")};
            });
}

}  // namespace
}  // namespace cadre
