// Groups that are re-formed: optimizer states move with them. The coordinator is a fake, the
// aggregator is real.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "model/coding.h"
#include "tests/server/rounds_server.h"
#include "tests/worker/expect.h"
#include "tests/worker/train/recording_control.h"
#include "tests/worker/transport/ranks.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

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

// A run with one shard, and what its coordinator knows.
class TrainedRun {
 public:
  explicit TrainedRun(const v1::RunSpec& spec) : spec_(spec), server_(folder_.path()) {
    v1::OpenRun open;
    open.set_run("run-1");
    open.set_lineage("run-1.a");
    open.set_shards(1);
    *open.mutable_spec() = spec;
    const auto opened = server_.host().OpenRun(open);
    EXPECT_TRUE(opened.ok()) << opened.status();
    newest_.set_digest(opened->digest());
  }

  // Worker workers[i] trains as rank i until `versions` more versions are committed. The group is
  // released before it adopts the last one.
  void Train(const std::vector<int>& workers, uint32_t versions) {
    const int ranks = std::ssize(workers);
    v1::Assignment assignment = AssignmentOf(spec_, ranks);
    assignment.mutable_place()->set_generation(++generation_);
    server_.host().Fence(testing::FenceOf("run-1", 0, generation_));
    for (int rank = 0; rank < ranks; ++rank) assignment.add_peers(absl::StrCat("peer ", rank));
    assignment.add_shards()->set_address(server_.address());
    auto transports = MakeThreadTransports(ranks, absl::Seconds(30));
    std::vector<std::unique_ptr<Control>> controls;
    for (int rank = 0; rank < ranks; ++rank) {
      controls.push_back(std::make_unique<Control>(*this, ranks, newest_.version() + versions));
    }
    OnRanks(ranks, [&](int rank) {
      v1::Assignment mine = assignment;
      mine.mutable_place()->set_rank(rank);
      const auto kernels = MakeCpuBackend(1);
      Cancellation cancellation;
      Counters counters;
      LinkCache links;
      TrainerOptions options;
      options.links = &links;
      options.states = &vaults[workers[rank]];
      options.residuals = &residuals[workers[rank]];
      options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
        return std::move(transports[rank]);
      };
      const TrainerOutcome outcome =
          TrainAsMember(mine, *kernels, *controls[rank], cancellation, counters, options);
      EXPECT_TRUE(absl::IsCancelled(outcome.status) || absl::IsUnavailable(outcome.status))
          << outcome.status;
    });
  }
  uint64_t digest() const { return newest_.digest(); }

  std::vector<StateVault> vaults{4};
  std::vector<StateVault> residuals{4};

 private:
  class Control final : public RecordingControl {
   public:
    Control(TrainedRun& run, int ranks, uint32_t last) : run_(run), ranks_(ranks), last_(last) {
      start = StartOf(run.newest_.step() + 4);
      start.set_version(run.newest_.version());
      start.set_step(run.newest_.step());
      start.set_digest(run.newest_.digest());
      start.set_total_steps(100);
    }
    void Send(const TrainingReport& report) override {
      RecordingControl::Send(report);
      const auto* message = std::get_if<v1::Contributed>(&report);
      if (message == nullptr) return;
      run_.Commit(*message, ranks_);
      if (message->round() < last_) decisions.push_back(run_.newest_);
    }
    std::string ShardAddress(uint32_t) const override { return run_.server_.address(); }

   private:
    TrainedRun& run_;
    const int ranks_;
    const uint32_t last_;
  };

  void Commit(const v1::Contributed& contributed, int ranks) {
    v1::Apply apply;
    apply.set_run("run-1");
    apply.set_round(contributed.round());
    v1::Participant& participant = *apply.add_participants();
    participant.set_generation(generation_);
    participant.set_ranks(ranks);
    participant.set_samples(contributed.samples());
    if (const auto up = CodingOf(spec_.averaging().up())) *apply.mutable_up() = *up;
    const auto applied = server_.host().Apply(apply);
    ASSERT_TRUE(applied.ok()) << applied.status();
    newest_.set_adopt(true);
    newest_.set_included(true);
    newest_.set_round(contributed.round());
    newest_.set_version(contributed.round());
    newest_.set_step(contributed.step());
    newest_.set_next_step(contributed.step() + 4);
    newest_.set_digest(applied->digest());
  }

  const v1::RunSpec spec_;
  const TemporaryFolder folder_;
  testing::RoundsServer server_;
  v1::Decision newest_;
  uint32_t generation_ = 0;
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

}  // namespace
}  // namespace cadre
