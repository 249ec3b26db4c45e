#include "model/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

v1::SyntheticData& Synthetic(v1::RunSpec& s) {
  v1::SyntheticData& data = *s.mutable_data()->mutable_synthetic();
  data.set_train_samples(100'000);
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
             "model.layer[1]", "has no operation"},
        Rule{"NoData", [](S& s) { s.clear_data(); }, "data", "has no source; give idx, cifar10,"},
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
             "is 11; the model has 10 classes"},
        Rule{"Noise", [](S& s) { Synthetic(s).set_noise(-1); }, "data.synthetic.noise", "is -1"},
        Rule{"NoBatch", [](S& s) { s.set_batch_per_group(0); }, "batch_per_group", "at least 1"},
        Rule{"LargeBatch", [](S& s) { s.set_batch_per_group(1U << 31); }, "batch_per_group",
             "at most 1048576"},
        Rule{"MicroBatches", [](S& s) { s.set_micro_batches(65); }, "micro_batches",
             "is 65; at most the 64 samples"},
        Rule{"NoOptimizer", [](S& s) { s.clear_optimizer(); }, "optimizer", "give sgd, adamw or lars"},
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
             "is 0, which requires a single group; there are 2 groups,"},
        Rule{"Quorum", [](S& s) { Averages(s).set_quorum(3); }, "averaging.quorum",
             "is 3; there are only 2 groups"},
        Rule{"Groups", [](S& s) { Machines(s).set_groups(4'000'000'000U); }, "cluster.groups",
             "at most 4096"},
        Rule{"Ranks",
             [](S& s) {
               Machines(s).set_ranks_per_group(8192);
             },
             "cluster.ranks_per_group", "at most 4096"},
        Rule{"MinRanks", [](S& s) { Machines(s).set_min_ranks_per_group(3); },
             "cluster.min_ranks_per_group", "is 3; a group has only 2 ranks"},
        Rule{"ModelRanks", [](S& s) { Machines(s).set_model_ranks(3); }, "cluster.model_ranks",
             "is 3, which does not divide the 2 ranks"},
        Rule{"Aggregators", [](S& s) { Machines(s).set_aggregators(5000); }, "cluster.aggregators",
             "at most 4096"},
        Rule{"Collectives",
             [](S& s) { Machines(s).set_collectives(static_cast<v1::Cluster::CollectivePolicy>(7)); },
             "cluster.collectives",
             "is 7; give AUTO, RING, BUTTERFLY, HALVING_DOUBLING, PAPER or NATIVE"},
        Rule{"NativeOnCpus", [](S& s) { Machines(s).set_collectives(v1::Cluster::NATIVE); },
             "cluster.collectives", "set cluster.device to CUDA"},
        Rule{"Device", [](S& s) { Machines(s).set_device(static_cast<v1::Cluster::Device>(3)); },
             "cluster.device", "is 3; give CPU or CUDA"},
        Rule{"Precision", [](S& s) { s.set_precision(static_cast<v1::RunSpec::Precision>(4)); }, "precision",
             "is 4; give FP32, TF32 or BF16"},
        Rule{"Bf16Anywhere", [](S& s) { s.set_precision(v1::RunSpec::BF16); }, "precision",
             "is BF16, which only CUDA devices have; set cluster.device to CUDA"},
        Rule{"Tf32OnCpus",
             [](S& s) {
               Machines(s).set_device(v1::Cluster::CPU);
               s.set_precision(v1::RunSpec::TF32);
             },
             "precision", "is TF32, which only CUDA devices have"},
        Rule{"Overlap", [](S& s) { Machines(s).set_overlap(static_cast<v1::Cluster::Overlap>(-1)); },
             "cluster.overlap", "is -1; give ON or OFF"},
        Rule{"NoStop", [](S& s) { s.clear_stop(); }, "stop", "has no rule to end the run; give epochs, steps or"},
        Rule{"Accuracy", [](S& s) { Ends(s).set_test_accuracy(90); }, "stop.test_accuracy",
             "is 90; it must be above 0 and at most 1"},
        Rule{"NegativeAccuracy", [](S& s) { Ends(s).set_test_accuracy(-0.1F); },
             "stop.test_accuracy", "is -0.1"},
        Rule{"NanAccuracy", [](S& s) { Ends(s).set_test_accuracy(kNan); }, "stop.test_accuracy",
             "is nan"}),
    [](const auto& info) { return info.param.label; });

void Pin(v1::RunSpec& s, std::vector<std::pair<std::string, uint32_t>> mesh) {
  for (const auto& [name, size] : mesh) {
    v1::MeshAxis& axis = *Machines(s).add_mesh();
    axis.set_name(name);
    axis.set_size(size);
  }
}
void PinLayer(v1::RunSpec& s, const std::string& layer, v1::LayerPin::Parallelism parallelism) {
  v1::LayerPin& pin = *Machines(s).add_layer();
  pin.set_layer(layer);
  pin.set_parallelism(parallelism);
}
v1::Checkpoint& Saves(v1::RunSpec& s) { return *s.mutable_checkpoint(); }
v1::AdamW& Adam(v1::RunSpec& s) { return *s.mutable_optimizer()->mutable_adamw(); }
v1::Lars& Lars(v1::RunSpec& s) { return *s.mutable_optimizer()->mutable_lars(); }
v1::PolynomialDecay& Curve(v1::RunSpec& s) { return *Rates(s).mutable_polynomial(); }

INSTANTIATE_TEST_SUITE_P(
    Training, EveryRule,
    ::testing::Values(
        Rule{"Nesterov",
             [](S& s) {
               Sgd(s).set_momentum(0);
               Sgd(s).set_nesterov(true);
             },
             "optimizer.sgd.nesterov", "no effect without momentum"},
        Rule{"Beta1", [](S& s) { Adam(s).set_beta1(1); }, "optimizer.adamw.beta1", "below 1"},
        Rule{"Beta2", [](S& s) { Adam(s).set_beta2(-1); }, "optimizer.adamw.beta2", "is -1"},
        Rule{"Epsilon", [](S& s) { Adam(s).set_epsilon(kNan); }, "optimizer.adamw.epsilon", "nan"},
        Rule{"AdamDecay", [](S& s) { Adam(s).set_weight_decay(kInf); },
             "optimizer.adamw.weight_decay", "inf"},
        Rule{"LarsMomentum", [](S& s) { Lars(s).set_momentum(1); }, "optimizer.lars.momentum",
             "below 1"},
        Rule{"LarsDecay", [](S& s) { Lars(s).set_weight_decay(-1); }, "optimizer.lars.weight_decay",
             "at least 0"},
        Rule{"Trust", [](S& s) { Lars(s).set_trust(-1); }, "optimizer.lars.trust", "at least 0"},
        Rule{"Clip", [](S& s) { s.mutable_optimizer()->set_clip_norm(-1); }, "optimizer.clip_norm",
             "at least 0"},
        Rule{"Power", [](S& s) { Curve(s).set_power(-1); }, "schedule.polynomial.power",
             "at least 0"},
        Rule{"PolynomialFraction", [](S& s) { Curve(s).set_final_fraction(2); },
             "schedule.polynomial.final_fraction", "from 0 to 1"},
        Rule{"PolynomialWithoutEnd",
             [](S& s) {
               Curve(s);
               Ends(s).clear_epochs();
               Ends(s).set_test_accuracy(0.9F);
             },
             "schedule.polynomial", "known length"},
        Rule{"Warmup", [](S& s) { Ends(s).set_steps(99); }, "schedule.warmup_steps",
             "is 100, but the run ends after at most 99 steps by stop.steps"},
        // 6 epochs of 100 samples, 128 a step by both groups.
        Rule{"WarmupOfEpochs", [](S& s) { Synthetic(s).set_train_samples(100); },
             "schedule.warmup_steps", "at most 10 steps by stop.epochs"},
        Rule{"SpaceRanks", [](S& s) { Machines(s).set_space_ranks(3); }, "cluster.space_ranks",
             "is 3, which does not divide the 2 ranks"},
        Rule{"Mesh",
             [](S& s) {
               Machines(s).set_ranks_per_group(12);
               Machines(s).set_model_ranks(4);
               Machines(s).set_space_ranks(6);
             },
             "cluster.space_ranks", "their product, 24, does not divide the 12 ranks"},
        Rule{"PinnedAxis", [](S& s) { Pin(s, {{"data", 1}, {"depth", 2}}); },
             "cluster.mesh[1].name", "is 'depth'; give data, space or model"},
        Rule{"PinnedAxisTwice", [](S& s) { Pin(s, {{"data", 1}, {"data", 2}}); },
             "cluster.mesh[1].name", "once more"},
        Rule{"PinnedEmptyAxis", [](S& s) { Pin(s, {{"data", 2}, {"model", 0}}); },
             "cluster.mesh[1].size", "is 0"},
        Rule{"PinnedEndlessAxis", [](S& s) { Pin(s, {{"data", 0xffffffff}}); },
             "cluster.mesh[0].size", "at most 4096"},
        Rule{"PinnedRanks", [](S& s) { Pin(s, {{"data", 2}, {"model", 2}}); }, "cluster.mesh",
             "is data=2, model=2, which makes 4 ranks; ranks_per_group is 2"},
        Rule{"PinnedModelRanks",
             [](S& s) {
               Pin(s, {{"data", 2}});
               Machines(s).set_model_ranks(2);
             },
             "cluster.model_ranks", "is 2, but cluster.mesh has 1 along model"},
        Rule{"PinnedSpaceRanks",
             [](S& s) {
               Pin(s, {{"space", 2}});
               Machines(s).set_space_ranks(1);
             },
             "cluster.space_ranks", "is 1, but cluster.mesh has 2 along space"},
        Rule{"PinnedRows",
             [](S& s) {
               Pin(s, {{"space", 29}});
               Machines(s).set_ranks_per_group(29);
             },
             "cluster.mesh[0].size", "only 28 rows"},
        Rule{"PinnedLayer", [](S& s) { PinLayer(s, "fc9", v1::LayerPin::MODEL); }, "cluster.layer[0].layer",
             "is 'fc9', which is not a layer of the model"},
        Rule{"PinnedParallelism", [](S& s) { PinLayer(s, "conv1", static_cast<v1::LayerPin::Parallelism>(9)); },
             "cluster.layer[0].parallelism", "is 9; give DATA, MODEL, MODEL_IN or DOMAIN"},
        Rule{"PinnedIndex", [](S& s) { PinLayer(s, "fc2", v1::LayerPin::DOMAIN); },
             "cluster.layer[0].parallelism",
             "is 'domain', but layer 'fc2' can only be split by data, model, model-in"},
        Rule{"PinnedToNothing",
             [](S& s) {
               Pin(s, {{"data", 2}});
               PinLayer(s, "fc1", v1::LayerPin::MODEL);
             },
             "cluster.layer[0].parallelism", "no axis besides data"},
        Rule{"PinnedLayerTwice",
             [](S& s) {
               PinLayer(s, "conv1", v1::LayerPin::DATA);
               PinLayer(s, "conv1", v1::LayerPin::MODEL);
             },
             "cluster.layer[1].layer", "is 'conv1' once more"},
        Rule{"MorePinsThanLayers",
             [](S& s) {
               for (int i = 0; i < 10000; ++i) PinLayer(s, "conv1", v1::LayerPin::DATA);
             },
             "cluster.layer", "pins 10000 layers; the model has "},
        Rule{"MoreSpaceThanRows",
             [](S& s) {
               Machines(s).set_ranks_per_group(29);
               Machines(s).set_space_ranks(29);
             },
             "cluster.space_ranks", "the model's input has only 28 rows"},
        Rule{"SavesNowhere", [](S& s) { Saves(s).set_every_steps(16); }, "checkpoint.every_steps",
             "is 16, but checkpoint.directory is not set"},
        Rule{"KeepsNowhere", [](S& s) { Saves(s).set_keep(1); }, "checkpoint.keep",
             "is 1, but checkpoint.directory is not set"},
        Rule{"SavesBetweenAverages",
             [](S& s) {
               Saves(s).set_directory("/tmp");
               Saves(s).set_every_steps(24);
             },
             "checkpoint.every_steps", "every 16 steps only, the nearest that fit are 16 and 32"},
        Rule{"SavesTooOften",
             [](S& s) {
               Saves(s).set_directory("/tmp");
               Saves(s).set_every_steps(8);
             },
             "checkpoint.every_steps", "the nearest that fit are 16"},
        Rule{"DirectoryIsNoText", [](S& s) { Saves(s).set_directory("/\xff"); },
             "checkpoint.directory", "'/\\xff' is not UTF-8"},
        Rule{"CountsFromNothing", [](S& s) { Saves(s).set_from_step(3); }, "checkpoint.from_step",
             "is 3, but checkpoint.from is not set"},
        Rule{"ReadsOnFromNothing", [](S& s) { Saves(s).set_from_position(3); },
             "checkpoint.from_position", "is 3, but checkpoint.from is not set"},
        Rule{"PositionIsTooFar",
             [](S& s) {
               Saves(s).set_from("/ckpt");
               Saves(s).set_from_position(uint64_t{1} << 63);
             },
             "checkpoint.from_position", "at most"},
        Rule{"NothingIsLeft",
             [](S& s) {
               Saves(s).set_from("/ckpt");
               Saves(s).set_from_step(4000);
               s.mutable_stop()->set_steps(4000);
             },
             "stop.steps", "nothing is left to train"},
        Rule{"FromIsNoText", [](S& s) { Saves(s).set_from("\xc3"); }, "checkpoint.from",
             "is not UTF-8"},
        Rule{"FromHasZeros", [](S& s) { Saves(s).set_from(std::string("a\0b", 3)); },
             "checkpoint.from", "'a\\x00\\x62' contains a zero byte"}),
    [](const auto& info) { return info.param.label; });

// The demo with a model of another input.
void TakeImages(v1::RunSpec& s, uint32_t channels, uint32_t side) {
  v1::Image& input = *s.mutable_model()->mutable_input();
  input.set_channels(channels);
  input.set_height(side);
  input.set_width(side);
}

// One layer on synthetic images of side x side.
void SmallModel(v1::RunSpec& s, uint32_t side, uint32_t classes) {
  *s.mutable_model() = testing::SpecOf(R"(model {
    input { channels: 1 }
    layer { name: "pool" global_average_pool {} }
    layer { name: "head" fully_connected {} }
    layer { name: "loss" softmax_cross_entropy {} } })")
                           .model();
  TakeImages(s, 1, side);
  s.mutable_model()->mutable_layer(1)->mutable_fully_connected()->set_out_features(classes);
  Synthetic(s).set_classes(classes);
  Rates(s).set_warmup_steps(10);
}

v1::Cifar10& Cifar(v1::RunSpec& s) {
  TakeImages(s, 3, 32);
  v1::Cifar10& data = *s.mutable_data()->mutable_cifar10();
  data.set_directory("/cifar");
  return data;
}

v1::ImageFolder& Folders(v1::RunSpec& s) {
  TakeImages(s, 3, 64);
  v1::ImageFolder& data = *s.mutable_data()->mutable_image_folder();
  data.set_train("/train");
  data.set_test("/test");
  return data;
}

v1::TarShards& Shards(v1::RunSpec& s) {
  TakeImages(s, 3, 64);
  v1::TarShards& data = *s.mutable_data()->mutable_tar_shards();
  data.set_train("/train-{000..015}.tar");
  data.set_test("/test.tar");
  return data;
}

void TakeTokens(v1::RunSpec& s) {
  *s.mutable_model() = testing::SpecOf(R"(model {
    tokens { length: 8 }
    layer { name: "e" embedding { vocabulary: 10 features: 4 } }
    layer { name: "head" fully_connected { out_features: 10 } }
    layer { name: "loss" softmax_cross_entropy {} } })")
                           .model();
}

v1::TokenFiles& Tokens(v1::RunSpec& s) {
  TakeTokens(s);
  v1::TokenFiles& data = *s.mutable_data()->mutable_token_files();
  data.set_train("/train");
  data.set_test("/test");
  return data;
}

INSTANTIATE_TEST_SUITE_P(
    Sources, EveryRule,
    ::testing::Values(
        Rule{"IdxForTokens", [](S& s) { TakeTokens(s); }, "data.idx",
             "contains images, but the model requires tokens; give"},
        Rule{"PathIsNoText", [](S& s) { Idx(s).set_test_labels("a\x80"); }, "data.idx.test_labels",
             "is not UTF-8"},
        Rule{"CifarDirectory", [](S& s) { Cifar(s).clear_directory(); }, "data.cifar10.directory",
             "is missing"},
        Rule{"CifarInput",
             [](S& s) {
               Cifar(s);
               TakeImages(s, 3, 64);
             },
             "data.cifar10", "holds images of [32, 32, 3]"},
        Rule{"CifarClasses",
             [](S& s) {
               Cifar(s);
               s.mutable_model()->mutable_layer(8)->mutable_fully_connected()->set_out_features(9);
             },
             "data.cifar10", "the model has only 9"},
        Rule{"CifarForTokens",
             [](S& s) {
               Cifar(s);
               TakeTokens(s);
             },
             "data.cifar10", "contains images, but the model requires tokens; give"},
        Rule{"FolderTrain", [](S& s) { Folders(s).clear_train(); }, "data.image_folder.train",
             "is missing"},
        Rule{"FolderTest", [](S& s) { Folders(s).set_test("\xff"); }, "data.image_folder.test",
             "UTF-8"},
        Rule{"FolderChannels",
             [](S& s) {
               Folders(s);
               TakeImages(s, 4, 64);
             },
             "data.image_folder", "the model takes 4"},
        Rule{"TwoCrops",
             [](S& s) {
               Folders(s).mutable_augmentation()->set_random_resized_crop(true);
               Folders(s).mutable_augmentation()->set_crop_padding(4);
             },
             "data.image_folder.augmentation.crop_padding",
             "cannot be combined with random_resized_crop"},
        Rule{"CropPadding", [](S& s) { Cifar(s).mutable_augmentation()->set_crop_padding(5000); },
             "data.cifar10.augmentation.crop_padding", "at most 1024"},
        Rule{"MeanCount", [](S& s) { Cifar(s).mutable_augmentation()->add_mean(0.5F); },
             "data.cifar10.augmentation.mean", "has 1 numbers; the model's input has 3 channels"},
        Rule{"StddevZero",
             [](S& s) {
               for (const float v : {1.0F, 0.0F, 1.0F}) {
                 Cifar(s).mutable_augmentation()->add_stddev(v);
               }
             },
             "data.cifar10.augmentation.stddev[1]", "above 0"},
        Rule{"ShardsTrain", [](S& s) { Shards(s).clear_train(); }, "data.tar_shards.train",
             "is missing"},
        Rule{"ShardsRange", [](S& s) { Shards(s).set_test("t{9..3}.tar"); }, "data.tar_shards.test",
             "'t{9..3}.tar' has a descending range; a range is written"},
        Rule{"TokensForImages",
             [](S& s) {
               const v1::Model model = s.model();
               Tokens(s);
               *s.mutable_model() = model;
             },
             "data.token_files", "contains tokens, but the model requires images; give the"},
        Rule{"TokensTrain", [](S& s) { Tokens(s).clear_train(); }, "data.token_files.train",
             "is missing"},
        Rule{"TokenBytes", [](S& s) { Tokens(s).set_bytes_per_token(3); },
             "data.token_files.bytes_per_token", "must be 1, 2 or 4"},
        Rule{"Vocabulary",
             [](S& s) {
               Tokens(s);
               s.mutable_model()->mutable_layer(0)->mutable_embedding()->set_vocabulary(11);
             },
             "model.layer[0].embedding.vocabulary", "must be equal"},
        Rule{"SpaceOfTokens",
             [](S& s) {
               Tokens(s);
               Machines(s).set_space_ranks(2);
             },
             "cluster.space_ranks", "only images have rows"}),
    [](const auto& info) { return info.param.label; });

// What would not be refused until a worker had no memory left.
INSTANTIATE_TEST_SUITE_P(
    Memory, EveryRule,
    ::testing::Values(
        Rule{"TrainSamples", [](S& s) { Synthetic(s).set_train_samples((1U << 28) + 1); },
             "data.synthetic.train_samples", "is 268435457; at most 268435456"},
        Rule{"TestSamples", [](S& s) { Synthetic(s).set_test_samples(0xffffffff); },
             "data.synthetic.test_samples", "at most 268435456"},
        Rule{"Centres", [](S& s) { SmallModel(s, 1024, (1U << 28) / (1024 * 1024) + 1); },
             "data.synthetic.classes",
             "is 257, each with a centre of [1024, 1024, 1]; all of them may have 268435456 "
             "elements together, so that at most 256 classes"},
        Rule{"BatchElements",
             [](S& s) {
               SmallModel(s, 1024, 4);
               s.set_batch_per_group(4097);
             },
             "batch_per_group",
             "is 4097 samples of [1024, 1024, 1] over 2 ranks; a rank's part may have 2147483648 "
             "elements, so that at most 4096 such"},
        Rule{"BatchOfModelRanks",
             [](S& s) {
               SmallModel(s, 1024, 4);
               s.set_batch_per_group(2049);
               Machines(s).set_model_ranks(2);
             },
             "batch_per_group",
             "over 1 rank; a rank's part may have 2147483648 elements, so that "
             "at most 2048 such"},
        Rule{"NoiseOfTokens",
             [](S& s) {
               TakeTokens(s);
               Synthetic(s).set_noise(1.5F);
             },
             "data.synthetic.noise", "is 1.5; it must be from 0 to 1"},
        Rule{"NanNoiseOfTokens",
             [](S& s) {
               TakeTokens(s);
               Synthetic(s).set_noise(kNan);
             },
             "data.synthetic.noise", "is nan"}),
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
        Fine{"Synthetic",
             [](S& s) {
               Synthetic(s).set_train_samples(100);
               Rates(s).set_warmup_steps(10);
             }},
        Fine{"MostSamples",
             [](S& s) {
               Synthetic(s).set_train_samples(1U << 28);
               Synthetic(s).set_test_samples(1U << 28);
             }},
        Fine{"MostCentres", [](S& s) { SmallModel(s, 1024, 256); }},
        Fine{"MostBatchElements",
             [](S& s) {
               SmallModel(s, 1024, 4);
               s.set_batch_per_group(4096);
             }},
        Fine{"MostBatchOfModelRanks",
             [](S& s) {
               SmallModel(s, 1024, 4);
               s.set_batch_per_group(2048);
               Machines(s).set_model_ranks(2);
             }},
        // Noise of images is a deviation, and tokens have no centres.
        Fine{"NoiseOfImages", [](S& s) { Synthetic(s).set_noise(1.5F); }},
        Fine{"NoiseOfTokens",
             [](S& s) {
               TakeTokens(s);
               Synthetic(s).set_noise(1);
             }},
        Fine{"SyntheticTokens",
             [](S& s) {
               TakeTokens(s);
               Synthetic(s);
             }},
        Fine{"Cifar", [](S& s) { Cifar(s); }}, Fine{"Folders", [](S& s) { Folders(s); }},
        Fine{"Shards", [](S& s) { Shards(s); }}, Fine{"Tokens", [](S& s) { Tokens(s); }},
        Fine{"TokenBytes", [](S& s) { Tokens(s).set_bytes_per_token(4); }},
        Fine{"Augmentation",
             [](S& s) {
               v1::Augmentation& a = *Cifar(s).mutable_augmentation();
               a.set_flip(true);
               a.set_crop_padding(4);
               for (const float v : {0.49F, 0.48F, 0.45F}) {
                 a.add_mean(v);
                 a.add_stddev(v);
               }
             }},
        Fine{"Adam", [](S& s) { Adam(s); }}, Fine{"Lars", [](S& s) { Lars(s).set_trust(0.01F); }},
        Fine{"Nesterov", [](S& s) { Sgd(s).set_nesterov(true); }},
        Fine{"Polynomial", [](S& s) { Curve(s).set_power(2); }},
        Fine{"WarmupToTheEnd", [](S& s) { Ends(s).set_steps(100); }},
        Fine{"SpaceAndModel",
             [](S& s) {
               Machines(s).set_ranks_per_group(56);
               Machines(s).set_space_ranks(28);
               Machines(s).set_model_ranks(2);
             }},
        Fine{"Pins",
             [](S& s) {
               Machines(s).set_ranks_per_group(4);
               Machines(s).set_model_ranks(2);
               Pin(s, {{"model", 2}, {"data", 2}});
               PinLayer(s, "fc2", v1::LayerPin::MODEL_IN);
               PinLayer(s, "conv1", v1::LayerPin::DOMAIN);
             }},
        Fine{"Saves",
             [](S& s) {
               Saves(s).set_directory("/Ã©tÃ©");
               Saves(s).set_every_steps(32);
               Saves(s).set_keep(1);
               Saves(s).set_from("/there/step-10");
             }},
        Fine{"OneGroupSavesWhenItWants",
             [](S& s) {
               Machines(s).set_groups(1);
               Saves(s).set_directory("/d");
               Saves(s).set_every_steps(7);
             }},
        Fine{"NoStddev", [](S& s) { Idx(s).clear_stddev(); }},
        Fine{"OddBatch", [](S& s) { s.set_batch_per_group(63); }},
        Fine{"FewerSamplesThanRanks", [](S& s) { s.set_batch_per_group(1); }},
        Fine{"MicroBatchesOfOne", [](S& s) { s.set_micro_batches(64); }},
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
        Fine{"Collectives",
             [](S& s) {
               Machines(s).set_collectives(v1::Cluster::PAPER);
               Machines(s).set_overlap(v1::Cluster::OFF);
             }},
        Fine{"Gpus",
             [](S& s) {
               Machines(s).set_device(v1::Cluster::CUDA);
               Machines(s).set_collectives(v1::Cluster::NATIVE);
               s.set_precision(v1::RunSpec::BF16);
             }},
        Fine{"Fp32OnCpus",
             [](S& s) {
               Machines(s).set_device(v1::Cluster::CPU);
               s.set_precision(v1::RunSpec::FP32);
             }},
        Fine{"OneModelRank", [](S& s) { Machines(s).set_model_ranks(1); }},
        Fine{"OnlySteps",
             [](S& s) {
               Rates(s).set_warmup_steps(1);
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

TEST(ValidateTest, FindsAllProblemsInOrder) {
  std::vector<std::string> fields;
  for (const Problem& problem : FindProblems(v1::RunSpec())) fields.push_back(problem.field);
  EXPECT_THAT(fields, ::testing::ElementsAre("name", "model", "data", "batch_per_group",
                                             "optimizer", "schedule.base_rate", "stop"));
  const absl::Status status = ValidateRunSpec(v1::RunSpec());
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 6);
}

TEST(ValidateTest, ReportsAllUnusedLayers) {
  v1::RunSpec spec = testing::DemoSpec();
  spec.mutable_model()->mutable_layer(9)->add_input("relu3");
  spec.mutable_model()->mutable_layer(5)->add_input("conv2");
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].field, "model.layer[4]");
  EXPECT_EQ(problems[0].message,
            "layer 'relu2': no layer uses its output; make it an input of a later layer, or "
            "remove it");
  EXPECT_EQ(problems[1].field, "model.layer[8]");
}

TEST(ValidateTest, SkipsClassesOfInvalidModel) {
  v1::RunSpec spec = testing::DemoSpec();
  Synthetic(spec).set_classes(3);
  spec.mutable_model()->mutable_layer(8)->clear_name();
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].field, "model.layer[8].name");
}

}  // namespace
}  // namespace cadre
