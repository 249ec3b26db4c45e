#include "spec/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/spec/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

v1::SyntheticData& Synthetic(v1::RunSpec& s) {
  v1::SyntheticData& data = *s.mutable_data()->mutable_synthetic();
  data.set_train_samples(100);
  data.set_test_samples(10);
  data.set_classes(10);
  return data;
}
v1::IdxFiles& Idx(v1::RunSpec& s) { return *s.mutable_data()->mutable_idx(); }
v1::Sgd& Sgd(v1::RunSpec& s) { return *s.mutable_optimizer()->mutable_sgd(); }
v1::Schedule& Rates(v1::RunSpec& s) { return *s.mutable_schedule(); }
v1::Averaging& Averages(v1::RunSpec& s) { return *s.mutable_averaging(); }
v1::Cluster& Machines(v1::RunSpec& s) { return *s.mutable_cluster(); }
v1::Stop& Ends(v1::RunSpec& s) { return *s.mutable_stop(); }

struct Rule {
  const char* label;
  std::function<void(v1::RunSpec&)> change;
  const char* field;
  const char* message;
};

class EveryRule : public ::testing::TestWithParam<Rule> {};

// One change to the demo breaks one rule: one problem, at its field.
TEST_P(EveryRule, IsChecked) {
  v1::RunSpec spec = testing::DemoSpec();
  ASSERT_THAT(FindProblems(spec), IsEmpty());
  GetParam().change(spec);
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 1U) << ValidateRunSpec(spec);
  EXPECT_EQ(problems[0].field, GetParam().field);
  EXPECT_THAT(problems[0].message, HasSubstr(GetParam().message));
  const absl::Status status = ValidateRunSpec(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), problems[0].field + ": " + problems[0].message);
}

using S = v1::RunSpec;

INSTANTIATE_TEST_SUITE_P(
    Specs, EveryRule,
    ::testing::Values(
        Rule{"NoName", [](S& s) { s.clear_name(); }, "name", "is missing"},
        Rule{"LongName", [](S& s) { s.set_name(std::string(64, 'a')); }, "name",
             "has 64 characters; at most 63"},
        Rule{"BadName", [](S& s) { s.set_name("my_run"); }, "name", "'my_run'"},
        Rule{"NoModel", [](S& s) { s.clear_model(); }, "model", "is missing"},
        Rule{"NoInput", [](S& s) { s.mutable_model()->mutable_input()->set_height(0); },
             "model.input.height", "is 0"},
        Rule{"NoLayers", [](S& s) { s.mutable_model()->clear_layer(); }, "model.layer",
             "no layers"},
        Rule{"Layer",
             [](S& s) {
               s.mutable_model()->mutable_layer(3)->mutable_convolution()->set_kernel(20);
             },
             "model.layer[3].convolution.kernel", "is 20, larger than the padded input of 16 x 16"},
        Rule{"NoOperation", [](S& s) { s.mutable_model()->mutable_layer(1)->clear_relu(); },
             "model.layer[1]", "says no operation"},
        Rule{"NoData", [](S& s) { s.clear_data(); }, "data", "give idx or synthetic"},
        Rule{"NoTrainImages", [](S& s) { Idx(s).clear_train_images(); }, "data.idx.train_images",
             "is missing"},
        Rule{"NoTrainLabels", [](S& s) { Idx(s).clear_train_labels(); }, "data.idx.train_labels",
             "is missing"},
        Rule{"NoTestImages", [](S& s) { Idx(s).clear_test_images(); }, "data.idx.test_images",
             "is missing"},
        Rule{"NoTestLabels", [](S& s) { Idx(s).clear_test_labels(); }, "data.idx.test_labels",
             "is missing"},
        Rule{"Mean", [](S& s) { Idx(s).set_mean(kNan); }, "data.idx.mean", "is nan"},
        Rule{"Stddev", [](S& s) { Idx(s).set_stddev(-0.5F); }, "data.idx.stddev", "is -0.5"},
        Rule{"InfiniteStddev", [](S& s) { Idx(s).set_stddev(kInf); }, "data.idx.stddev", "is inf"},
        Rule{"NoTrainSamples", [](S& s) { Synthetic(s).set_train_samples(0); },
             "data.synthetic.train_samples", "at least 1"},
        Rule{"NoTestSamples", [](S& s) { Synthetic(s).set_test_samples(0); },
             "data.synthetic.test_samples", "at least 1"},
        Rule{"NoClasses", [](S& s) { Synthetic(s).set_classes(0); }, "data.synthetic.classes",
             "at least 1"},
        Rule{"OtherClasses", [](S& s) { Synthetic(s).set_classes(11); }, "data.synthetic.classes",
             "is 11; the model tells 10 classes apart"},
        Rule{"Noise", [](S& s) { Synthetic(s).set_noise(-1); }, "data.synthetic.noise", "is -1"},
        Rule{"NoBatch", [](S& s) { s.set_batch_per_group(0); }, "batch_per_group", "at least 1"},
        Rule{"LargeBatch", [](S& s) { s.set_batch_per_group(1U << 31); }, "batch_per_group",
             "at most 1048576"},
        Rule{"OddBatch", [](S& s) { s.set_batch_per_group(63); }, "batch_per_group",
             "is 63, which 2 ranks cannot share evenly; the nearest that fit are 62 and 64"},
        Rule{"SmallBatch", [](S& s) { s.set_batch_per_group(1); }, "batch_per_group",
             "the nearest that fit are 2"},
        Rule{"NoOptimizer", [](S& s) { s.clear_optimizer(); }, "optimizer", "give sgd"},
        Rule{"Momentum", [](S& s) { Sgd(s).set_momentum(1); }, "optimizer.sgd.momentum", "is 1;"},
        Rule{"NegativeMomentum", [](S& s) { Sgd(s).set_momentum(-0.1F); }, "optimizer.sgd.momentum",
             "is -0.1;"},
        Rule{"NanMomentum", [](S& s) { Sgd(s).set_momentum(kNan); }, "optimizer.sgd.momentum",
             "is nan;"},
        Rule{"WeightDecay", [](S& s) { Sgd(s).set_weight_decay(-1e-4F); },
             "optimizer.sgd.weight_decay", "at least 0"},
        Rule{"NoSchedule", [](S& s) { s.clear_schedule(); }, "schedule.base_rate", "is 0;"},
        Rule{"NegativeRate", [](S& s) { Rates(s).set_base_rate(-1); }, "schedule.base_rate",
             "above 0"},
        Rule{"NanRate", [](S& s) { Rates(s).set_base_rate(kNan); }, "schedule.base_rate", "nan"},
        Rule{"InfiniteRate", [](S& s) { Rates(s).set_base_rate(kInf); }, "schedule.base_rate",
             "inf"},
        Rule{"StepEvery", [](S& s) { Rates(s).mutable_step()->set_factor(0.1F); },
             "schedule.step.every_steps", "at least 1"},
        Rule{"StepFactor", [](S& s) { Rates(s).mutable_step()->set_every_steps(5); },
             "schedule.step.factor", "above 0"},
        Rule{"Fraction", [](S& s) { Rates(s).mutable_cosine()->set_final_fraction(1.5F); },
             "schedule.cosine.final_fraction", "is 1.5; it must be from 0 to 1"},
        Rule{"NanFraction", [](S& s) { Rates(s).mutable_cosine()->set_final_fraction(kNan); },
             "schedule.cosine.final_fraction", "is nan"},
        Rule{"CosineWithoutEnd",
             [](S& s) {
               Ends(s).clear_epochs();
               Ends(s).set_test_accuracy(0.9F);
             },
             "schedule.cosine", "known length"},
        Rule{"NoAverages", [](S& s) { s.clear_averaging(); }, "averaging.every_steps",
             "legal only with one group; there are 2 groups"},
        Rule{"Quorum", [](S& s) { Averages(s).set_quorum(3); }, "averaging.quorum",
             "is 3; there are only 2 groups"},
        Rule{"Groups", [](S& s) { Machines(s).set_groups(4'000'000'000U); }, "cluster.groups",
             "at most 4096"},
        Rule{"Ranks",
             [](S& s) {
               s.set_batch_per_group(8192);
               Machines(s).set_ranks_per_group(8192);
             },
             "cluster.ranks_per_group", "at most 4096"},
        Rule{"MinRanks", [](S& s) { Machines(s).set_min_ranks_per_group(3); },
             "cluster.min_ranks_per_group", "is 3; a group has only 2 ranks"},
        Rule{"ModelRanks", [](S& s) { Machines(s).set_model_ranks(3); }, "cluster.model_ranks",
             "is 3, which does not divide the 2 ranks"},
        Rule{"Aggregators", [](S& s) { Machines(s).set_aggregators(5000); }, "cluster.aggregators",
             "at most 4096"},
        Rule{"NoStop", [](S& s) { s.clear_stop(); }, "stop", "would never end"},
        Rule{"Accuracy", [](S& s) { Ends(s).set_test_accuracy(90); }, "stop.test_accuracy",
             "is 90; it must be above 0 and at most 1"},
        Rule{"NegativeAccuracy", [](S& s) { Ends(s).set_test_accuracy(-0.1F); },
             "stop.test_accuracy", "is -0.1"},
        Rule{"NanAccuracy", [](S& s) { Ends(s).set_test_accuracy(kNan); }, "stop.test_accuracy",
             "is nan"}),
    [](const auto& info) { return info.param.label; });

struct Fine {
  const char* label;
  std::function<void(v1::RunSpec&)> change;
};

class EveryLimit : public ::testing::TestWithParam<Fine> {};

// The last values that are legal, and what may be left out.
TEST_P(EveryLimit, IsLegal) {
  v1::RunSpec spec = testing::DemoSpec();
  GetParam().change(spec);
  EXPECT_EQ(ValidateRunSpec(spec), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(
    Specs, EveryLimit,
    ::testing::Values(
        Fine{"Demo", [](S&) {}}, Fine{"LongName", [](S& s) { s.set_name(std::string(63, 'z')); }},
        Fine{"NameOfAll", [](S& s) { s.set_name("a-z-0-9"); }},
        Fine{"Synthetic", [](S& s) { Synthetic(s); }},
        Fine{"NoStddev", [](S& s) { Idx(s).clear_stddev(); }},
        Fine{"PlainSgd", [](S& s) { Sgd(s).Clear(); }},
        Fine{"ConstantRate", [](S& s) { Rates(s).clear_cosine(); }},
        Fine{"NoEndFraction", [](S& s) { Rates(s).mutable_cosine()->set_final_fraction(0); }},
        Fine{"WholeFraction", [](S& s) { Rates(s).mutable_cosine()->set_final_fraction(1); }},
        Fine{"Steps",
             [](S& s) {
               Rates(s).mutable_step()->set_every_steps(1);
               Rates(s).mutable_step()->set_factor(1);
             }},
        Fine{"OneGroupAlone",
             [](S& s) {
               s.clear_averaging();
               Machines(s).set_groups(1);
             }},
        Fine{"NoCluster",
             [](S& s) {
               s.clear_averaging();
               s.clear_cluster();
             }},
        Fine{"FullQuorum", [](S& s) { Averages(s).set_quorum(2); }},
        Fine{"AllRanks",
             [](S& s) {
               Machines(s).set_min_ranks_per_group(2);
               Machines(s).set_model_ranks(2);
             }},
        Fine{"OneModelRank", [](S& s) { Machines(s).set_model_ranks(1); }},
        Fine{"OnlySteps",
             [](S& s) {
               Ends(s).clear_epochs();
               Ends(s).set_steps(1);
             }},
        Fine{"OnlyAccuracy",
             [](S& s) {
               Rates(s).clear_cosine();
               Ends(s).clear_epochs();
               Ends(s).set_test_accuracy(1);
             }}),
    [](const auto& info) { return info.param.label; });

TEST(ValidateTest, AllProblemsAreFoundInTheOrderOfTheFields) {
  std::vector<std::string> fields;
  for (const Problem& problem : FindProblems(v1::RunSpec())) fields.push_back(problem.field);
  EXPECT_THAT(fields, ::testing::ElementsAre("name", "model", "data", "batch_per_group",
                                             "optimizer", "schedule.base_rate", "stop"));
  const absl::Status status = ValidateRunSpec(v1::RunSpec());
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 6);
}

TEST(ValidateTest, ClassesAreNotComparedWithABrokenModel) {
  v1::RunSpec spec = testing::DemoSpec();
  Synthetic(spec).set_classes(3);
  spec.mutable_model()->mutable_layer(8)->clear_name();
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].field, "model.layer[8].name");
}

}  // namespace
}  // namespace cadre
