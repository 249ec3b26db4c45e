#include "lab/time_to_accuracy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Row {
  uint32_t workers;
  double epochs;
  bool reached = true;
};

v1::EpochsTable TableOf(const std::vector<Row>& rows) {
  v1::EpochsTable table;
  table.set_batch_per_worker(8);
  for (const Row& row : rows) {
    v1::EpochsEntry& entry = *table.add_entry();
    entry.set_workers(row.workers);
    entry.set_epochs(row.epochs);
    entry.set_reached(row.reached);
  }
  return table;
}

EpochsCurve CurveOf(const std::vector<Row>& rows) {
  auto curve = EpochsCurve::FromTable(TableOf(rows));
  EXPECT_TRUE(curve.ok()) << curve.status();
  return *std::move(curve);
}

// --- The rule ---

TEST(TimeToAccuracyTest, Product) { EXPECT_DOUBLE_EQ(TimeToAccuracy(0.5, 100, 4), 200); }

TEST(TimeToAccuracyTest, Thresholds) {
  // M = 2, perfect scaling, epochs from 4 to 7.
  EXPECT_NEAR(HybridThreshold(2, 1, 1, 4, 7), 1.142857, 5e-7);
  EXPECT_NEAR(1.32 / HybridThreshold(2, 1, 1, 4, 7), 1.155, 5e-7);
  EXPECT_DOUBLE_EQ(HybridThreshold(2, 1, 1, 4, 5), 1.6);
  // Scaling efficiency falls from 0.95 to 0.90.
  EXPECT_NEAR(HybridThreshold(2, 0.95, 0.90, 4, 7), 1.082707, 5e-7);
  EXPECT_NEAR(1.32 / HybridThreshold(2, 0.95, 0.90, 4, 7), 1.219167, 5e-7);
  // Twice the workers need twice the epochs, so any speed-up by splitting reduces the time.
  EXPECT_NEAR(HybridThreshold(2, 1, 1, 1, 2), 1, 1e-12);
}

TEST(TimeToAccuracyTest, ThresholdIsCrossover) {
  const double threshold = HybridThreshold(4, 0.9, 0.7, 5, 11);
  EXPECT_NEAR(HybridSpeedup(threshold, 0.9, 8, 4, 5), DataParallelSpeedup(0.7, 32, 4, 11), 1e-12);
  EXPECT_DOUBLE_EQ(DataParallelSpeedup(0.5, 8, 4, 8), 2);
}

// Step times of the rule: one second on one device, SU^M on M devices, SE_N for N workers.
struct Rule {
  std::map<int64_t, double> speedups;
  std::function<double(int64_t)> efficiency = [](int64_t /*workers*/) { return 1; };
  // Whether several devices of a worker split the model.
  bool splits_model = true;

  TrainingTimes Times(const EpochsCurve& curve) const {
    return {.epochs = &curve,
            .samples = 8 << 20,
            .batch_per_worker = 8,
            .step = [this](int64_t workers, int64_t devices) -> std::optional<HybridStep> {
              if (devices == 1) return HybridStep{.seconds = 1 / efficiency(workers)};
              const auto found = speedups.find(devices);
              if (found == speedups.end()) return std::nullopt;
              return HybridStep{.seconds = 1 / (found->second * efficiency(workers)),
                                .splits_model = splits_model};
            }};
  }
};

TEST(TimeToAccuracyTest, PlansDevices) {
  Rule rule{.speedups = {{2, 1.32}}};
  const EpochsCurve steep = CurveOf({{1, 4}, {8, 4}, {16, 7}});
  std::vector<DevicePlan> plans = DevicePlansFor(16, rule.Times(steep));
  ASSERT_EQ(plans.size(), 2u) << "no other speed-up is known";
  EXPECT_EQ(FastestPlan(plans), 0u);
  EXPECT_EQ(plans[0].workers, 8);
  EXPECT_EQ(plans[0].model_devices, 2);
  EXPECT_EQ(plans[0].epochs, 4);
  EXPECT_NEAR(plans[0].seconds, (1 << 20) / HybridSpeedup(1.32, 1, 8, 1, 4), 1e-6);
  EXPECT_NEAR(plans[1].seconds / plans[0].seconds, 1.155, 5e-7);

  const EpochsCurve flat = CurveOf({{1, 4}, {8, 4}, {16, 5}});
  plans = DevicePlansFor(16, rule.Times(flat));
  EXPECT_EQ(plans[FastestPlan(plans)].workers, 16) << "1.32 is below 1.6";
  EXPECT_NEAR(plans[1].seconds, (1 << 20) / DataParallelSpeedup(1, 16, 1, 5), 1e-6);

  rule.efficiency = [](int64_t workers) { return workers > 8 ? 0.90 : 0.95; };
  plans = DevicePlansFor(16, rule.Times(steep));
  EXPECT_NEAR(plans[1].seconds / plans[0].seconds, 1.219167, 5e-7);
}

TEST(TimeToAccuracyTest, ImpossiblePlans) {
  const Rule rule{.speedups = {{2, 1.5}, {4, 2}}};
  const EpochsCurve curve = CurveOf({{1, 4}, {8, 5}});
  EXPECT_TRUE(DevicePlansFor(64, rule.Times(curve)).empty()) << "16 workers are not in the table";
  EXPECT_EQ(DevicePlansFor(16, rule.Times(curve)).size(), 2u);
  const EpochsCurve never = CurveOf({{1, 4}, {2, 9, false}});
  ASSERT_EQ(DevicePlansFor(2, rule.Times(never)).size(), 1u);
  EXPECT_EQ(DevicePlansFor(2, rule.Times(never))[0].model_devices, 2);
  // If an epoch has fewer samples than a step of two workers, they must not win with zero seconds.
  TrainingTimes few = rule.Times(curve);
  few.samples = 10;
  ASSERT_EQ(DevicePlansFor(2, few).size(), 1u);
  EXPECT_EQ(DevicePlansFor(2, few)[0].workers, 1);
  EXPECT_GT(DevicePlansFor(2, few)[0].seconds, 0);
  EXPECT_EQ(StepsPerEpoch(10, 16), 0);
  EXPECT_EQ(StepsPerEpoch(33, 16), 2);
}

TEST(TimeToAccuracyTest, Crossover) {
  // Doubling the workers needs no more epochs up to 32, then 1.5 and then 1.75 times as many.
  const EpochsCurve curve =
      CurveOf({{1, 4}, {2, 4}, {4, 4}, {8, 4}, {16, 4}, {32, 4}, {64, 6}, {128, 10.5}});
  const auto crossover = [&](std::map<int64_t, double> speedups, int64_t max_devices) {
    const Rule rule{.speedups = std::move(speedups)};
    return CrossoverDevices(max_devices, rule.Times(curve));
  };
  // The thresholds are 2 / 1.5 = 1.333 and 2 / 1.75 = 1.143.
  EXPECT_EQ(crossover({{2, 1.32}}, 128), 128);
  EXPECT_EQ(crossover({{2, 1.4}}, 128), 64);
  EXPECT_EQ(crossover({{2, 1.1}}, 128), std::nullopt);
  EXPECT_EQ(crossover({{2, 1.32}}, 64), std::nullopt);
  EXPECT_EQ(crossover({{2, 2.1}}, 1 << 20), 2) << "the table ends";
  EXPECT_EQ(crossover({}, 128), std::nullopt);
  const Rule samples_only{.speedups = {{2, 1.32}}, .splits_model = false};
  EXPECT_EQ(CrossoverDevices(128, samples_only.Times(curve)), std::nullopt)
      << "smaller batches are faster, not a split model";
}

// With too large a batch the target is not reached, so only plans that split the model remain.
TEST(TimeToAccuracyTest, CrossoverBeforeUnreachedTarget) {
  const Rule rule{.speedups = {{2, 1.01}}};
  const EpochsCurve curve = CurveOf({{1, 4}, {2, 4}, {4, 9, false}});
  EXPECT_EQ(CrossoverDevices(4, rule.Times(curve)), 4);
}

// --- The table ---

v1::EpochsTable SmallTable() {
  v1::EpochsTable table;
  table.set_model("0123456789abcdef");
  table.set_target_accuracy(0.875F);
  table.set_batch_per_worker(64);
  v1::EpochsEntry& entry = *table.add_entry();
  entry.set_workers(4);
  entry.set_epochs(3.25);
  entry.set_seed(1);
  entry.set_reached(true);
  return table;
}

class EpochsTableTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::EpochsTable> Read(const std::string& text) {
    return ReadEpochsTable(folder_.Write("epochs.textproto", text));
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "epochs.textproto";
};

TEST_F(EpochsTableTest, PrintsAndReads) {
  const std::string text = PrintEpochsTable(SmallTable(), "lenet");
  EXPECT_THAT(text, AllOf(HasSubstr("# "), HasSubstr("\"lenet\"")));
  const auto table = Read(text);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->SerializeAsString(), SmallTable().SerializeAsString());
}

TEST_F(EpochsTableTest, ReportsErrorsWithPosition) {
  EXPECT_TRUE(absl::IsNotFound(ReadEpochsTable(path_).status()));
  for (const auto& [text, field] : std::initializer_list<std::pair<const char*, const char*>>{
           {"target_accuracy: 1.5", "target_accuracy"},
           {"entry { epochs: 2 }", "entry[0].workers"},
           {"entry { workers: 2 epochs: 1 } entry { workers: 4 }", "entry[1].epochs"},
           {"entry { workers: 2 epochs: -1 }", "entry[0].epochs"},
           {"entry { workers: 2 epochs: inf }", "entry[0].epochs"},
           {"entry { workers: 2 epochs: nan }", "entry[0].epochs"},
           {"entry { workers: 2 epoch: 1 }", "epoch"}}) {
    const absl::Status status = Read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_ + ":1:"), HasSubstr(field)));
  }
}

TEST(EpochsCurveTest, InterpolatesOverDoublings) {
  const EpochsCurve curve = CurveOf({{16, 7}, {1, 4}, {4, 5}});
  EXPECT_DOUBLE_EQ(*curve.At(1), 4);
  EXPECT_DOUBLE_EQ(*curve.At(2), 4.5);
  EXPECT_DOUBLE_EQ(*curve.At(4), 5);
  EXPECT_DOUBLE_EQ(*curve.At(8), 6);
  EXPECT_DOUBLE_EQ(*curve.At(16), 7);
  EXPECT_NEAR(*curve.At(6.5), 5 + std::log2(6.5 / 4), 1e-12);
}

TEST(EpochsCurveTest, RejectsUnmeasured) {
  const EpochsCurve curve = CurveOf({{2, 4}, {4, 5}});
  for (const double workers : {0.0, 1.0, 4.1, 1e9, std::nan("")}) {
    EXPECT_EQ(curve.At(workers).status().code(), absl::StatusCode::kOutOfRange) << workers;
  }
  EXPECT_THAT(std::string(curve.At(8).status().message()), HasSubstr("2 to 4 workers, not for 8"));
}

TEST(EpochsCurveTest, SeedsAreAveraged) {
  EXPECT_DOUBLE_EQ(*CurveOf({{1, 4}, {1, 5}, {1, 9}}).At(1), 6);
}

TEST(EpochsCurveTest, UnreachedIsInfinite) {
  const EpochsCurve curve = CurveOf({{1, 4}, {2, 5}, {4, 20, false}, {4, 6}});
  EXPECT_DOUBLE_EQ(*curve.At(2), 5);
  EXPECT_TRUE(std::isinf(*curve.At(3)));
  EXPECT_TRUE(std::isinf(*curve.At(4))) << "one of two entries did not reach the target";
}

TEST(EpochsCurveTest, RejectsMalformedTables) {
  const struct {
    std::vector<Row> rows;
    const char* message;
  } cases[] = {
      {{}, "no entry"},
      {{{1, 4}, {0, 4}}, "entry[1].workers: is missing"},
      {{{1, 4, false}, {2, 4, false}}, "reached its target"},
  };
  for (const auto& [rows, message] : cases) {
    const auto curve = EpochsCurve::FromTable(TableOf(rows));
    EXPECT_EQ(curve.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(curve.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace cadre
