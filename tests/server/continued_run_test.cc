// Runs with outer states that begin from checkpoints, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/digest.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "tests/base/expect.h"
#include "tests/server/coded_rounds_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs with Nesterov's momentum, one of which begins from a checkpoint of the other.
class ContinuedRunTest : public CodedRoundsTest {
 protected:
  // Another run. `from`: empty, or its checkpoint. `every_rounds`: of Nesterov's momentum.
  v1::RunOpened Begin(const std::string& run, uint32_t fragments, const std::string& from = "",
                      uint32_t every_rounds = 1) {
    run_.run = run;
    // Several stretches.
    run_.in = 400;
    run_.out = 400;
    open_ = run_.Open();
    v1::Averaging& averaging = *open_.mutable_spec()->mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_outer()->mutable_nesterov()->set_every_rounds(every_rounds);
    averaging.mutable_fragments()->set_count(fragments);
    open_.mutable_spec()->mutable_checkpoint()->set_from(from);
    units_ = std::make_unique<ExchangeUnits>(Index());
    return Open();
  }
  v1::RunOpened Open() {
    const auto opened = host_->OpenRun(open_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.value_or(v1::RunOpened());
  }
  ParameterIndex Index() const { return *ParameterIndex::FromModel(open_.spec().model()); }

  // Makes the version of a round from changes that depend on `salt`, and returns its digest.
  uint64_t Round(uint32_t round, uint32_t salt) {
    const uint32_t fragments = FragmentsOf(averaging());
    const std::vector<Interval> positions = ExchangedIn(round, fragments);
    int64_t elements = 0;
    for (const Interval& interval : positions) elements += interval.size();
    for (uint32_t group = 0; group < 2; ++group) {
      const std::string frame = FrameOf(Values(10 * salt + group, elements), positions);
      v1::ContributionHeader header =
          FrameHeader({.round = round, .group = group}, frame, positions);
      header.set_fragment(FragmentIn(round, fragments));
      EXPECT_EQ(StageAs(header, frame), absl::OkStatus());
    }
    v1::Apply order = Order(round, {{.group = 0}, {.group = 1}});
    order.set_fragment(FragmentIn(round, fragments));
    const auto applied = host_->Apply(order);
    EXPECT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(applied->error(), "");
    return applied->digest();
  }

  absl::StatusOr<std::vector<float>> PullState(uint32_t version, uint32_t state,
                                               Interval positions) {
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    request.set_state(state);
    auto pull = host_->Pull(request);
    if (!pull.ok()) return pull.status();
    std::vector<float> values((*pull)->left());
    const auto read =
        (*pull)->Next({reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)});
    if (!read.ok()) return read.status();
    EXPECT_EQ(*read, std::ssize(values));
    return values;
  }

  // Writes what a worker would save of the version, and the momentum and the residual.
  void WriteCheckpoint(const std::string& folder, uint32_t version) {
    std::filesystem::create_directory(folder);
    const ParameterIndex index = Index();
    const std::vector<std::string> names = {"nesterov_momentum", "version_residual"};
    std::vector<float> states;
    for (uint32_t i = 0; i < 2; ++i) {
      const auto state = PullState(version, i, {0, size()});
      ASSERT_TRUE(state.ok()) << state.status();
      states.insert(states.end(), state->begin(), state->end());
    }
    const auto write = [&](const char* name, const std::vector<NamedShape>& tensors,
                           std::span<const float> values) {
      ASSERT_EQ(WriteSafetensors(absl::StrCat(folder, "/", name), tensors, values),
                absl::OkStatus());
    };
    write(kModelFile, WeightTensors(index), *Pull(version, {0, size()}));
    write(kOptimizerFile, {}, {});
    write(kAveragingFile, StateTensors(index, names), states);
    v1::CheckpointManifest manifest;
    manifest.set_format_version(kCheckpointFormat);
    for (const std::string& name : names) manifest.add_averaging_state()->set_name(name);
    ASSERT_EQ(WriteManifest(absl::StrCat(folder, "/", kManifestFile), manifest), absl::OkStatus());
  }

  TemporaryFolder checkpoints_;
};

TEST_F(ContinuedRunTest, MomentumAndResidualContinue) {
  for (const uint32_t fragments : {1, 2}) {
    Begin(absl::StrCat("whole-", fragments), fragments);
    Round(1, 1);
    Round(2, 2);
    const std::string from = checkpoints_ / absl::StrCat(fragments);
    WriteCheckpoint(from, 2);
    std::vector<std::vector<float>> states;
    for (const uint32_t state : {0, 1}) {
      states.push_back(*PullState(2, state, {0, size()}));
      EXPECT_NE(Digest(states.back(), 0), Digest(std::vector<float>(size()), 0));
      // Any positions.
      EXPECT_TRUE(SameBits(*PullState(2, state, {65000, 140000}),
                           std::span(states.back()).subspan(65000, 75000)));
    }
    const uint64_t third = Round(3, 3);
    const uint64_t fourth = Round(4, 4);

    Begin(absl::StrCat("continued-", fragments), fragments, from);
    Restart();
    for (const uint32_t state : {0, 1}) {
      EXPECT_TRUE(SameBits(*PullState(0, state, {0, size()}), states[state]));
    }
    EXPECT_EQ(Round(1, 3), third);
    Restart();
    EXPECT_EQ(Round(2, 4), fourth);
    const absl::StatusOr<ReplayedShard> replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->version, 2U);
    EXPECT_EQ(replayed->digest, fourth);

    // A checkpoint without states, as older builds have written it.
    v1::CheckpointManifest manifest = *ReadManifest(from + "/manifest.textproto");
    manifest.clear_averaging_state();
    ASSERT_EQ(WriteManifest(from + "/manifest.textproto", manifest), absl::OkStatus());
    Begin(absl::StrCat("bare-", fragments), fragments, from);
    EXPECT_TRUE(SameBits(*PullState(0, 0, {0, size()}), std::vector<float>(size())));
    EXPECT_NE(Round(1, 3), third);
  }
}

TEST_F(ContinuedRunTest, LostStatesAreReadAgain) {
  Begin("whole", 1);
  Round(1, 1);
  WriteCheckpoint(checkpoints_ / "from", 1);
  const uint64_t second = Round(2, 2);
  Begin("continued", 1, checkpoints_ / "from");
  const std::string path = RunFolder() + "/outer-0";
  std::string bytes = ReadAll(path);
  bytes.back() ^= 1;
  WriteAll(path, bytes);
  Restart();
  EXPECT_EQ(Open().error(), "");
  EXPECT_EQ(Round(1, 2), second);
}

TEST_F(ContinuedRunTest, UnusableStatesAreRefused) {
  Begin("whole", 1);
  Round(1, 1);
  const std::string from = checkpoints_ / "from";
  WriteCheckpoint(from, 1);
  EXPECT_THAT(PullState(1, 2, {0, size()}),
              IsError(absl::StatusCode::kInvalidArgument, "state 2 is requested; the run has 2"));
  v1::PullRequest request = PullOf(run_, 1, 0, size());
  request.set_state(0);
  request.set_frame_from(0);
  EXPECT_THAT(host_->Pull(request).status(),
              IsError(absl::StatusCode::kInvalidArgument, "a state and a frame"));
  const std::string path = from + "/averaging.safetensors";
  const std::string bytes = ReadAll(path);
  WriteAll(path, absl::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_THAT(Begin("truncated", 1, from).error(),
              AllOf(HasSubstr("checkpoint.from"), HasSubstr(path)));
  ASSERT_EQ(WriteSafetensors(path, StateTensors(Index(), {"nesterov_momentum"}),
                             std::vector<float>(size())),
            absl::OkStatus());
  EXPECT_THAT(Begin("mismatching", 1, from).error(),
              AllOf(HasSubstr(path), HasSubstr("fc/weight@version_residual")));
  std::filesystem::remove(path);
  EXPECT_THAT(Begin("missing", 1, from).error(), HasSubstr(path));
  // The sum of delayed Nesterov, which checkpoints do not contain, has no name.
  v1::CheckpointManifest manifest = *ReadManifest(from + "/manifest.textproto");
  manifest.clear_averaging_state();
  manifest.add_averaging_state();
  ASSERT_EQ(WriteManifest(from + "/manifest.textproto", manifest), absl::OkStatus());
  ASSERT_EQ(WriteSafetensors(path, StateTensors(Index(), {""}), std::vector<float>(size())),
            absl::OkStatus());
  EXPECT_THAT(Begin("unnamed", 1, from, /*every_rounds=*/2).error(),
              HasSubstr("a state without a name"));
}

}  // namespace
}  // namespace cadre::testing
