// A run with a fake coordinator and one real aggregator, for tests of the rounds of a group.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "member/member_loop.h"
#include "model/coding.h"
#include "model/outer_optimizer.h"
#include "model/parameter_index.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/transport/ranks.h"
#include "tests/member/recording_control.h"
#include "tests/server/rounds_server.h"

namespace cadre {

// A run with one shard, and what its coordinator knows.
class FakeRun {
 public:
  // Trains one rank until its group is released.
  using TrainRank =
      std::function<TrainerOutcome(const v1::Assignment& assignment, RecordingControl& control,
                                   std::unique_ptr<Transport> link)>;

  explicit FakeRun(const v1::RunSpec& spec) : spec_(spec), server_(folder_.path()) {
    v1::OpenRun open;
    open.set_run("run-1");
    open.set_lineage("run-1.a");
    open.set_shards(1);
    *open.mutable_spec() = spec;
    const auto opened = server_.host().OpenRun(open);
    EXPECT_TRUE(opened.ok()) << opened.status();
    newest_.set_step(spec.checkpoint().from_step());
    newest_.set_digest(opened->digest());
  }

  // A new generation of the group trains with `ranks` until `versions` more versions are committed.
  // It is released before it adopts the last one.
  void Train(int ranks, uint32_t versions, const TrainRank& train, uint32_t group = 0) {
    v1::Assignment assignment = AssignmentOf(spec_, ranks);
    Fence(group);
    assignment.mutable_place()->set_group(group);
    assignment.mutable_place()->set_generation(generation_);
    for (int rank = 0; rank < ranks; ++rank) assignment.add_peers(absl::StrCat("peer ", rank));
    assignment.add_shards()->set_address(server_.address());
    auto transports = MakeThreadTransports(ranks, absl::Seconds(30));
    std::vector<std::unique_ptr<Control>> controls;
    for (int rank = 0; rank < ranks; ++rank) {
      controls.push_back(std::make_unique<Control>(*this, ranks, newest_.version() + versions));
      if (group != 0) controls.back()->start.clear_included();
    }
    OnRanks(ranks, [&](int rank) {
      v1::Assignment mine = assignment;
      mine.mutable_place()->set_rank(rank);
      const TrainerOutcome outcome = train(mine, *controls[rank], std::move(transports[rank]));
      EXPECT_TRUE(absl::IsCancelled(outcome.status) || absl::IsUnavailable(outcome.status))
          << outcome.status;
    });
  }
  // The same, but round v closes without the contribution of the group, whose generation ends.
  void TrainWithoutCommit(int ranks, const TrainRank& train, uint32_t group = 0) {
    commits_ = false;
    Train(ranks, 1, train, group);
    commits_ = true;
  }
  // The aggregator refuses the group's generations up to now.
  void Fence(uint32_t group = 0) {
    server_.host().Fence(testing::FenceOf("run-1", group, ++generation_));
  }
  // `adopted` is called on the thread of rank 0 when a group has adopted a version, before it saves
  // a checkpoint. Another group may train in the call.
  void OnAdopted(std::function<void(const v1::Adopted&)> adopted) { adopted_ = std::move(adopted); }
  uint32_t version() const { return newest_.version(); }
  // The values of the newest version.
  std::vector<float> Values() const {
    const ParameterIndex index = *ParameterIndex::FromModel(spec_.model());
    std::vector<float> values(index.size());
    v1::PullRequest request;
    request.set_run("run-1");
    request.set_lineage("run-1.a");
    request.set_version(newest_.version());
    for (const v1::Range& range : index.RangesOf(0, index.size())) *request.add_ranges() = range;
    Traffic ignored;
    EXPECT_EQ(server_.Client()->Read(request, values, &ignored), absl::OkStatus());
    return values;
  }
  uint64_t digest() const { return newest_.digest(); }

 private:
  class Control final : public RecordingControl {
   public:
    Control(FakeRun& run, int ranks, uint32_t last) : run_(run), ranks_(ranks), last_(last) {
      start = StartOf(run.newest_.step() + 4);
      start.set_version(run.newest_.version());
      start.set_step(run.newest_.step());
      start.set_digest(run.newest_.digest());
      start.set_total_steps(100);
      start.set_fragment(run.FragmentOf(run.newest_.version() + 1));
      *start.mutable_included() = run.included_;
    }
    absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration timeout) override {
      if (!run_.commits_) return absl::CancelledError("the generation has ended");
      return RecordingControl::AwaitDecision(timeout);
    }
    void Send(const TrainingReport& report) override {
      RecordingControl::Send(report);
      const auto* adoption = std::get_if<v1::Adopted>(&report);
      if (adoption != nullptr && run_.adopted_) run_.adopted_(*adoption);
      const auto* message = std::get_if<v1::Contributed>(&report);
      if (message == nullptr || !run_.commits_) return;
      run_.Commit(*message, ranks_);
      if (message->round() < last_) decisions.push_back(run_.newest_);
    }
    ShardLocation LocationOf(uint32_t) const override { return run_.server_.address(); }

   private:
    FakeRun& run_;
    const int ranks_;
    const uint32_t last_;
  };

  // The fragment that the round exchanges; 0: all values.
  uint32_t FragmentOf(uint32_t round) const {
    const uint32_t count = FragmentsOf(spec_.averaging());
    return count > 1 ? (round - 1) % count + 1 : 0;
  }

  void Commit(const v1::Contributed& contributed, int ranks) {
    v1::Apply apply;
    apply.set_run("run-1");
    apply.set_round(contributed.round());
    apply.set_fragment(FragmentOf(contributed.round()));
    v1::Participant& participant = *apply.add_participants();
    participant.set_group(contributed.place().group());
    participant.set_generation(contributed.place().generation());
    participant.set_ranks(ranks);
    participant.set_samples(contributed.samples());
    if (const auto up = CodingOf(spec_.averaging().up())) *apply.mutable_up() = *up;
    if (const auto down = CodingOf(spec_.averaging().down())) *apply.mutable_down() = *down;
    if (const auto outer = OuterOptimizerOf(spec_.averaging())) {
      *apply.mutable_outer()->mutable_optimizer() = *outer;
      apply.mutable_outer()->set_rate(contributed.rate());
    }
    const auto applied = server_.host().Apply(apply);
    ASSERT_TRUE(applied.ok()) << applied.status();
    newest_.set_adopt(true);
    newest_.set_included(true);
    newest_.set_round(contributed.round());
    newest_.set_version(contributed.round());
    newest_.set_step(contributed.step());
    newest_.set_next_step(contributed.step() + 4);
    newest_.set_digest(applied->digest());
    newest_.set_fragment(FragmentOf(contributed.round() + 1));
    // The runs of these tests repeat rounds of group 0 only.
    if (participant.group() == 0) {
      included_.set_round(contributed.round());
      included_.set_generation(participant.generation());
    }
  }

  const v1::RunSpec spec_;
  const TemporaryFolder folder_;
  testing::RoundsServer server_;
  std::function<void(const v1::Adopted&)> adopted_;
  v1::Decision newest_;
  // The newest contribution of group 0 that `newest_` includes.
  v1::IncludedContribution included_;
  bool commits_ = true;
  uint32_t generation_ = 0;
};

}  // namespace cadre
