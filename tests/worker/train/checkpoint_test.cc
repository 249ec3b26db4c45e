#include "worker/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/temporary_folder.h"
#include "tests/worker/train/checkpoint_testing.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::CheckpointManifest Facts(const v1::RunSpec& spec, uint64_t step) {
  v1::CheckpointManifest facts;
  *facts.mutable_spec() = spec;
  facts.set_step(step);
  facts.set_version(3);
  facts.set_seed(spec.seed());
  facts.mutable_cursor()->set_position(640);
  facts.mutable_optimizer()->set_updates(step);
  return facts;
}

// Saves values of `seed` and returns the status, which is equal on all ranks.
absl::Status Save(const v1::RunSpec& spec, const Partition& partition, const std::string& directory,
                  uint64_t step, int seed, int keep = 2, int64_t chunk = 50) {
  const ParameterIndex index = IndexOf(spec);
  std::vector<absl::Status> statuses(partition.ranks);
  OnOwners(partition, index, spec.optimizer(), [&](Communicator& group, OwnedValues& owned) {
    owned.Fill(seed);
    statuses[group.index()] =
        SaveCheckpoint({directory, keep, chunk}, index, Facts(spec, step), owned.values(), group);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

using Check = std::function<void(const LoadedCheckpoint&, OwnedValues&)>;

absl::Status Load(
    const v1::RunSpec& spec, const Partition& partition, const std::string& from,
    const Check& check = [](const LoadedCheckpoint&, OwnedValues&) {}) {
  const ParameterIndex index = IndexOf(spec);
  std::vector<absl::Status> statuses(partition.ranks);
  OnOwners(partition, index, spec.optimizer(), [&](Communicator& group, OwnedValues& owned) {
    const auto loaded = LoadCheckpoint(from, index, spec.optimizer(), owned.values(), group);
    statuses[group.index()] = loaded.status();
    if (loaded.ok()) check(*loaded, owned);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

const std::vector<Partition> kPartitions = {{1, 0}, {1, 7}, {2, 0}, {2, 5},
                                            {3, 0}, {3, 1}, {4, 0}, {4, 64}};

// A checkpoint can be loaded with another partition than the one it was saved with.
class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, BetweenPartitions) {
  const v1::RunSpec spec = SmallSpec(GetParam());
  for (const Partition& from : kPartitions) {
    const TemporaryFolder folder;
    ASSERT_TRUE(Save(spec, from, folder.path(), 7, 2).ok());
    for (const Partition& to : kPartitions) {
      const absl::Status status =
          Load(spec, to, folder.path(), [&](const LoadedCheckpoint& loaded, OwnedValues& owned) {
            EXPECT_EQ(loaded.path, folder / "step-7");
            ASSERT_TRUE(loaded.manifest.has_value());
            EXPECT_EQ(loaded.manifest->step(), 7U);
            EXPECT_EQ(loaded.manifest->optimizer().updates(), 7U);
            EXPECT_EQ(loaded.manifest->cursor().position(), 640U);
            EXPECT_EQ(loaded.manifest->spec().name(), "small");
            owned.ExpectFilled(2);
          });
      ASSERT_TRUE(status.ok()) << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, RoundTrip,
                         ::testing::Values("sgd { momentum: 0.9 }", "adamw {}", "lars {}"));

TEST(Checkpoint, FilesDoNotDependOnPartitionAndChunk) {
  const v1::RunSpec spec = SmallSpec();
  const TemporaryFolder one, other;
  ASSERT_TRUE(Save(spec, {1, 0}, one.path(), 7, 2, 2, 1 << 20).ok());
  for (const int64_t chunk : {1, 33}) {
    ASSERT_TRUE(Save(spec, {3, 2}, other.path(), 7, 2, 2, chunk).ok());
    for (const char* name : {kModelFile, kOptimizerFile, kManifestFile}) {
      EXPECT_EQ(*ReadFile(one / absl::StrCat("step-7/", name)),
                *ReadFile(other / absl::StrCat("step-7/", name)))
          << name;
    }
  }
}

TEST(Checkpoint, TensorsHaveNamesAndShapes) {
  const v1::RunSpec spec = SmallSpec();
  const TemporaryFolder folder;
  ASSERT_TRUE(Save(spec, {2, 3}, folder.path(), 7, 0).ok());
  auto model = SafetensorsFile::Open(folder / "step-7/model.safetensors");
  auto optimizer = SafetensorsFile::Open(folder / "step-7/optimizer.safetensors");
  ASSERT_TRUE(model.ok() && optimizer.ok());
  const ParameterIndex index = IndexOf(spec);
  EXPECT_EQ(model->tensors().size(), index.parameters().size());
  EXPECT_EQ(optimizer->tensors().size(), 2 * (index.parameters().size() - 2));
  const Parameter& weight = index[*index.Find("fc/weight")];
  const StoredTensor* v = optimizer->Find("fc/weight@v");
  ASSERT_NE(v, nullptr);
  EXPECT_EQ(v->shape, weight.shape);
  std::vector<float> values(weight.shape.elements());
  ASSERT_TRUE(optimizer->Read(*v, 0, values).ok());
  EXPECT_EQ(values[3], OwnedValues::ValueAt(weight.offset + 3, 2, 0));
}

TEST(Checkpoint, LoadsWeightsFromOneFile) {
  const v1::RunSpec spec = SmallSpec();
  const TemporaryFolder folder;
  ASSERT_TRUE(Save(spec, {2, 0}, folder.path(), 7, 1).ok());
  // The optimizer does not matter.
  for (const v1::RunSpec& other : {spec, SmallSpec("sgd {}")}) {
    const absl::Status status = Load(other, {3, 0}, folder / "step-7/model.safetensors",
                                     [](const LoadedCheckpoint& loaded, OwnedValues& owned) {
                                       EXPECT_FALSE(loaded.manifest.has_value());
                                       owned.ExpectFilled(1, false);
                                     });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Checkpoint, LoadsNewestAndRemovesOldCheckpoints) {
  const v1::RunSpec spec = SmallSpec();
  const TemporaryFolder folder;
  for (const int step : {1, 2, 3, 10}) {
    ASSERT_TRUE(Save(spec, {2, 0}, folder.path(), step, step).ok());
  }
  EXPECT_EQ(folder.Entries(), 2);
  const absl::Status status =
      Load(spec, {2, 0}, folder.path(), [](const LoadedCheckpoint& loaded, OwnedValues& owned) {
        EXPECT_EQ(loaded.manifest->step(), 10U);
        owned.ExpectFilled(10);
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Load(spec, {2, 0}, folder / "step-3").ok());
}

TEST(Checkpoint, FullDiskIsAnErrorOnAllRanksAndKeepsOldCheckpoints) {
  const v1::RunSpec spec = SmallSpec("adamw {}", 2000);  // about 1 MB of weights
  const TemporaryFolder folder;
  ASSERT_TRUE(Save(spec, {2, 0}, folder.path(), 1, 1, 1, 10'000).ok());
  absl::Status status;
  {
    const FileSizeLimit limit(300'000);
    status = Save(spec, {2, 0}, folder.path(), 2, 2, 1, 10'000);
  }
  EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, folder.path()));
  EXPECT_EQ(folder.Entries(), 1);
  EXPECT_TRUE(Load(spec, {3, 0}, folder.path(), [](const LoadedCheckpoint&, OwnedValues& owned) {
                owned.ExpectFilled(1);
              }).ok());
}

TEST(Checkpoint, InvalidDirectoryIsAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "file", "x").ok());
  const absl::Status status = Save(SmallSpec(), {3, 0}, folder / "file/d", 1, 1);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder / "file"));
}

TEST(Checkpoint, RejectsAnotherModelAndListsDifferences) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Save(SmallSpec(), {2, 0}, folder.path(), 1, 1).ok());
  for (const std::string& from : {folder.path(), folder / "step-1/model.safetensors"}) {
    const absl::Status status = Load(SmallSpec("adamw {}", 6), {2, 0}, from);
    EXPECT_THAT(status,
                AllOf(IsError(kInvalidArgument, "model.safetensors"),
                      IsError(kInvalidArgument,
                              "'hidden/weight' is [5, 108] in the file, [6, 108] in the model"),
                      IsError(kInvalidArgument, "'hidden/bias'"),
                      IsError(kInvalidArgument, "'fc/weight'")));
  }
}

TEST(Checkpoint, RejectsAnotherOptimizer) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Save(SmallSpec("lars {}"), {2, 0}, folder.path(), 1, 1).ok());
  for (const char* other : {"adamw {}", "sgd { momentum: 0.9 }"}) {
    const absl::Status status = Load(SmallSpec(other), {2, 0}, folder.path());
    EXPECT_THAT(status,
                AllOf(IsError(kInvalidArgument, "lars"), IsError(kInvalidArgument, "momentum")));
  }
  // Other settings of the same kind of optimizer are accepted.
  EXPECT_TRUE(Load(SmallSpec("lars { momentum: 0.5 }"), {2, 0}, folder.path()).ok());
}

TEST(Checkpoint, RejectsTruncatedFilesByName) {
  const TemporaryFolder folder;
  for (const char* name : {kModelFile, kOptimizerFile}) {
    ASSERT_TRUE(Save(SmallSpec(), {2, 0}, folder.path(), 1, 1).ok());
    const std::string path = folder / absl::StrCat("step-1/", name);
    const uintmax_t size = std::filesystem::file_size(path);
    for (const uintmax_t left : {size - 1, size / 2, uintmax_t{100}, uintmax_t{0}}) {
      std::filesystem::resize_file(path, left);
      const absl::Status status = Load(SmallSpec(), {3, 0}, folder.path());
      EXPECT_THAT(status, IsError(kInvalidArgument, path));
    }
  }
}

TEST(Checkpoint, ChangedValuesAreDataLoss) {
  for (const char* name : {kModelFile, kOptimizerFile}) {
    const TemporaryFolder folder;
    ASSERT_TRUE(Save(SmallSpec(), {2, 0}, folder.path(), 1, 1).ok());
    const std::string path = folder / absl::StrCat("step-1/", name);
    std::string bytes = *ReadFile(path);
    bytes[bytes.size() - 3] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
    const absl::Status status = Load(SmallSpec(), {3, 1}, folder.path());
    EXPECT_THAT(status, IsError(kDataLoss, path));
  }
}

TEST(Checkpoint, MissingCheckpointIsNotFound) {
  const TemporaryFolder folder;
  for (const std::string& from : {folder.path(), folder / "step-1", folder / "model.safetensors"}) {
    const absl::Status status = Load(SmallSpec(), {2, 0}, from);
    EXPECT_THAT(status, IsError(kNotFound, from));
  }
  EXPECT_FALSE(Load(SmallSpec(), {2, 0}, std::string(5000, 'x') + ".safetensors").ok());
}

TEST(Checkpoint, RejectsPositionsWithoutOwner) {
  const v1::RunSpec spec = SmallSpec();
  const ParameterIndex index = IndexOf(spec);
  const TemporaryFolder folder;
  OnOwners({2, 0}, index, spec.optimizer(), [&](Communicator& group, OwnedValues& owned) {
    CheckpointValues values = owned.values();
    if (group.index() == 1) {
      values.weights.clear();
      for (auto& state : values.states) state.clear();
    }
    EXPECT_EQ(SaveCheckpoint({folder.path()}, index, Facts(spec, 1), values, group).code(),
              absl::StatusCode::kInternal);
  });
  EXPECT_EQ(folder.Entries(), 0);
}

// What one rank has of states of the averaging, which are divided in another way than the weights.
class AveragingValues {
 public:
  AveragingValues(const ParameterIndex& index, const std::vector<std::string>& names,
                  std::vector<Interval> ranges)
      : index_(index), names_(names), ranges_(std::move(ranges)) {
    int64_t count = 0;
    for (const Interval& range : ranges_) count += range.size();
    memory_.assign(names.size(), std::vector<float>(count, kUnchanged));
  }

  std::vector<AveragingState> states() {
    std::vector<AveragingState> states;
    for (size_t i = 0; i < names_.size(); ++i) {
      states.push_back({names_[i], {}});
      std::span<float> rest = memory_[i];
      for (const Interval& range : ranges_) {
        states[i].values.push_back({range, rest.first(range.size())});
        rest = rest.subspan(range.size());
      }
    }
    return states;
  }
  static float ValueAt(int64_t position, const std::string& name) {
    return -position - 0.25F * name.size();
  }
  void Fill() {
    ForEach([](float& value, int64_t position, const std::string& name, bool) {
      value = ValueAt(position, name);
    });
  }
  // The states with other names must be unchanged.
  void ExpectFilled(const std::vector<std::string>& names) {
    ForEach([&](float& value, int64_t position, const std::string& name, bool statistic) {
      const bool stored = std::find(names.begin(), names.end(), name) != names.end();
      const float read = statistic ? 0 : ValueAt(position, name);
      ASSERT_EQ(value, stored ? read : kUnchanged) << position << " of " << name;
    });
  }

 private:
  static constexpr float kUnchanged = 0.5F;
  void ForEach(const std::function<void(float&, int64_t, const std::string&, bool)>& use) {
    for (const AveragingState& state : states()) {
      for (const Owned& owned : state.values) {
        for (int64_t i = 0; i < owned.positions.size(); ++i) {
          const int64_t position = owned.positions.begin + i;
          const Parameter& parameter =
              *std::find_if(index_.parameters().begin(), index_.parameters().end(),
                            [&](const Parameter& each) { return position < each.end(); });
          use(owned.values[i], position, state.name, IsStatistic(parameter.role));
        }
      }
    }
  }

  const ParameterIndex& index_;
  const std::vector<std::string> names_;
  const std::vector<Interval> ranges_;
  std::vector<std::vector<float>> memory_;
};

const std::vector<std::string> kAveraging = {"contribution_residual", "nesterov_momentum"};

// Saves step 7 with these states, which have `partition`; the weights have stripes.
absl::Status SaveAveraging(const std::string& directory, const Partition& partition,
                           const std::vector<std::string>& names) {
  const v1::RunSpec spec = SmallSpec();
  const ParameterIndex index = IndexOf(spec);
  std::vector<absl::Status> statuses(partition.ranks);
  OnOwners({partition.ranks, 11}, index, spec.optimizer(),
           [&](Communicator& group, OwnedValues& owned) {
             AveragingValues averaging(index, names,
                                       IntervalsOf(partition, index.size(), group.index()));
             owned.Fill(2);
             averaging.Fill();
             CheckpointValues values = owned.values();
             values.averaging = averaging.states();
             statuses[group.index()] =
                 SaveCheckpoint({directory, 2, 50}, index, Facts(spec, 7), values, group);
           });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

// Loads states `names`, and expects the values of those that are `stored`.
absl::Status LoadAveraging(const std::string& from, const Partition& partition,
                           const std::vector<std::string>& names,
                           const std::vector<std::string>& stored) {
  const v1::RunSpec spec = SmallSpec();
  const ParameterIndex index = IndexOf(spec);
  std::vector<absl::Status> statuses(partition.ranks);
  OnOwners({partition.ranks, 5}, index, spec.optimizer(),
           [&](Communicator& group, OwnedValues& owned) {
             AveragingValues averaging(index, names,
                                       IntervalsOf(partition, index.size(), group.index()));
             CheckpointValues values = owned.values();
             values.averaging = averaging.states();
             const auto loaded = LoadCheckpoint(from, index, spec.optimizer(), values, group);
             statuses[group.index()] = loaded.status();
             if (!loaded.ok()) return;
             averaging.ExpectFilled(stored);
             owned.ExpectFilled(2, loaded->manifest.has_value());
           });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

TEST(Checkpoint, AveragingStatesMoveBetweenPartitions) {
  const TemporaryFolder first;
  ASSERT_EQ(SaveAveraging(first.path(), {1, 0}, kAveraging), absl::OkStatus());
  for (const Partition& from : kPartitions) {
    const TemporaryFolder folder;
    ASSERT_EQ(SaveAveraging(folder.path(), from, kAveraging), absl::OkStatus());
    for (const char* name : {kModelFile, kOptimizerFile, kAveragingFile, kManifestFile}) {
      EXPECT_EQ(*ReadFile(folder / absl::StrCat("step-7/", name)),
                *ReadFile(first / absl::StrCat("step-7/", name)))
          << name;
    }
    for (const Partition& to : kPartitions) {
      EXPECT_EQ(LoadAveraging(folder.path(), to, kAveraging, kAveraging), absl::OkStatus());
    }
  }
}

TEST(Checkpoint, MissingAveragingStatesAreUnchanged) {
  const TemporaryFolder none, some;
  ASSERT_EQ(SaveAveraging(none.path(), {2, 0}, {}), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(none / "step-7/averaging.safetensors"));
  EXPECT_EQ(LoadAveraging(none.path(), {3, 0}, kAveraging, {}), absl::OkStatus());
  ASSERT_EQ(SaveAveraging(some.path(), {2, 0}, kAveraging), absl::OkStatus());
  EXPECT_EQ(LoadAveraging(some.path(), {2, 7}, {"slowmo_momentum", "nesterov_momentum"},
                          {"nesterov_momentum"}),
            absl::OkStatus());
  EXPECT_EQ(LoadAveraging(some.path(), {2, 0}, {}, {}), absl::OkStatus());
  EXPECT_EQ(LoadAveraging(some / "step-7/model.safetensors", {2, 0}, kAveraging, {}),
            absl::OkStatus());
}

TEST(Checkpoint, UnusableAveragingStatesAreRefused) {
  const TemporaryFolder folder;
  ASSERT_EQ(SaveAveraging(folder.path(), {2, 0}, kAveraging), absl::OkStatus());
  const std::string path = folder / "step-7/averaging.safetensors";
  const std::string bytes = *ReadFile(path);
  const auto load = [&] { return LoadAveraging(folder.path(), {3, 0}, kAveraging, kAveraging); };
  for (const size_t left : {bytes.size() - 1, bytes.size() / 2, size_t{0}}) {
    ASSERT_TRUE(WriteFileAtomically(path, bytes.substr(0, left)).ok());
    EXPECT_THAT(load(), IsError(kInvalidArgument, path));
  }
  std::string changed = bytes;
  changed[changed.size() - 3] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(path, changed).ok());
  EXPECT_THAT(load(), AllOf(IsError(kDataLoss, path), IsError(kDataLoss, "nesterov_momentum")));
  std::filesystem::remove(path);
  EXPECT_THAT(load(), IsError(kNotFound, path));

  // The file has fewer states than the manifest names.
  const TemporaryFolder other;
  ASSERT_EQ(SaveAveraging(other.path(), {2, 0}, {"contribution_residual"}), absl::OkStatus());
  std::filesystem::copy_file(other / "step-7/averaging.safetensors", path);
  EXPECT_THAT(load(), AllOf(IsError(kInvalidArgument, path),
                            IsError(kInvalidArgument, "conv/weight@nesterov_momentum")));
}

TEST(Checkpoint, AveragingStatesWithoutOwnerAreRefused) {
  const v1::RunSpec spec = SmallSpec();
  const ParameterIndex index = IndexOf(spec);
  const TemporaryFolder folder;
  OnOwners({2, 0}, index, spec.optimizer(), [&](Communicator& group, OwnedValues& owned) {
    CheckpointValues values = owned.values();
    values.averaging.push_back({"nesterov_momentum", {}});
    EXPECT_EQ(SaveCheckpoint({folder.path()}, index, Facts(spec, 1), values, group).code(),
              absl::StatusCode::kInternal);
  });
  EXPECT_EQ(folder.Entries(), 0);
}

TEST(Owned, SplitsSlicesAndRanges) {
  BucketOwnership bucket;
  bucket.size = 20;
  bucket.borders = {0, 8, 14, 20};
  bucket.own_slice = 1;
  bucket.owned = {{0, {100, 102}, 8}, {2, {50, 54}, 10}};
  std::vector<float> slice(6);
  std::vector<Owned> owned;
  AppendOwned(bucket, slice, &owned);
  ASSERT_EQ(owned.size(), 2U);
  EXPECT_EQ(owned[0].positions, (Interval{100, 102}));
  EXPECT_EQ(owned[0].values.data(), slice.data());
  EXPECT_EQ(owned[1].positions, (Interval{50, 54}));
  EXPECT_EQ(owned[1].values.data(), slice.data() + 2);
  EXPECT_EQ(owned[1].values.size(), 4U);

  const std::vector<Owned> parts = PartsIn({51, 101}, owned);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].positions, (Interval{100, 101}));
  EXPECT_EQ(parts[1].positions, (Interval{51, 54}));
  EXPECT_EQ(parts[1].values.data(), slice.data() + 3);
  EXPECT_TRUE(PartsIn({102, 200}, owned).empty());
}

}  // namespace
}  // namespace cadre
