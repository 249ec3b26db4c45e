// A group whose ranks own more intervals than a contribution may have ranges, as the ranks of a
// program that divides columns of matrices do.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "comm/communicator.h"
#include "member/member_loop.h"
#include "model/initial_value.h"
#include "tests/base/expect.h"
#include "tests/member/fake_run.h"

namespace cadre {
namespace {

// With two ranks, each owns more single elements than a contribution may have ranges (65,536).
constexpr int64_t kElements = 2 * 65'600;

v1::RunSpec Spec() {
  auto spec = Parse<v1::RunSpec>(R"(
        name: "intervals"
        model {
          input { channels: 1 height: 1 }
          layer { name: "fc" fully_connected { out_features: 2 no_bias: true } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 2 } }
        batch_per_group: 8
        optimizer { sgd {} }
        schedule { base_rate: 0.01 }
        averaging { every_steps: 4 }
        seed: 5
        cluster { groups: 1 ranks_per_group: 2 }
      )");
  spec.mutable_model()->mutable_input()->set_width(kElements / 2);
  return spec;
}

// Owns the positions p with p % ranks == rank. A step adds p % 7 to the value of each.
class StridedModel final : public TrainedModel {
 public:
  StridedModel(const v1::RunSpec& spec, int rank, int ranks)
      : index_(*ParameterIndex::FromModel(spec.model())) {
    std::vector<float> all(index_.size());
    FillInitialValues(index_, spec.seed(), 0, all);
    for (int64_t p = rank; p < index_.size(); p += ranks) values_.push_back(all[p]);
    for (size_t i = 0; i < values_.size(); ++i) {
      const int64_t p = rank + static_cast<int64_t>(i) * ranks;
      owned_.push_back({{p, p + 1}, std::span(values_).subspan(i, 1)});
    }
  }

  absl::Status Open(FailureNote& /*failure*/) override { return absl::OkStatus(); }
  absl::Status Prepare(Transport& transport, const RankProtocol& /*protocol*/,
                       FailureNote& /*failure*/) override {
    group_ = std::make_unique<Communicator>(transport, AllRanks(transport.size()));
    return absl::OkStatus();
  }
  v1::Prepared Describe() const override { return {}; }
  const ParameterIndex& index() const override { return index_; }
  Communicator& group() override { return *group_; }
  std::span<const Owned> owned() const override { return owned_; }
  absl::Status Fetch(bool /*states*/) override { return absl::OkStatus(); }
  absl::Status Store(bool /*states*/) override { return absl::OkStatus(); }
  absl::Status CheckWeights() override { return absl::OkStatus(); }
  absl::Status Gather() override { return absl::OkStatus(); }
  void StartAt(uint32_t step) override { step_ = step; }
  absl::StatusOr<uint32_t> Train(const RankProtocol::Train& train,
                                 FailureNote& /*failure*/) override {
    for (; step_ < train.until; ++step_) {
      for (const Owned& one : owned_) one.values[0] += static_cast<float>(one.positions.begin % 7);
    }
    return step_;
  }
  void MoveTo(uint32_t step) override { step_ = step; }
  PeriodReport TakePeriod() override { return {}; }

 private:
  const ParameterIndex index_;
  std::unique_ptr<Communicator> group_;
  std::vector<float> values_;
  std::vector<Owned> owned_;
  uint32_t step_ = 0;
};

TEST(ManyIntervals, AreExchangedAsOnePartPerRank) {
  constexpr int kRanks = 2;
  const v1::RunSpec spec = Spec();
  FakeRun run(spec);
  run.Train(
      kRanks, 2,
      [&](const v1::Assignment& assignment, RecordingControl& control,
          std::unique_ptr<Transport> link) {
        StridedModel model(spec, static_cast<int>(assignment.place().rank()), kRanks);
        Cancellation cancellation;
        Counters counters;
        MemberLoopOptions options;
        options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
          return std::move(link);
        };
        return RunMemberLoop(assignment, model, control, cancellation, counters, options);
      });
  ASSERT_EQ(run.version(), 2U);

  const ParameterIndex index = *ParameterIndex::FromModel(spec.model());
  ASSERT_EQ(index.size(), kElements);
  std::vector<float> expected(kElements);
  FillInitialValues(index, spec.seed(), 0, expected);
  for (int step = 0; step < 8; ++step) {
    for (int64_t p = 0; p < kElements; ++p) expected[p] += static_cast<float>(p % 7);
  }
  EXPECT_EQ(run.digest(), Digest(expected, 0));
}

}  // namespace
}  // namespace cadre
