#include "model/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/changed_spec.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::Changed;
using ::cadre::testing::ExpectProblems;
using ::cadre::testing::kTokenFiles;
using ::testing::HasSubstr;

// Other data sources and models, each legal with the rest of the demo.
constexpr char kSynthetic[] =
    "data { synthetic { train_samples: 100000 test_samples: 10 classes: 10 } }";
constexpr char kCifar[] =
    "model { input { channels: 3 height: 32 width: 32 } } data { cifar10 { directory: '/cifar' } }";
constexpr char kFolders[] =
    "model { input { channels: 3 height: 64 width: 64 } }"
    "data { image_folder { train: '/train' test: '/test' } }";
constexpr char kShards[] =
    "model { input { channels: 3 height: 64 width: 64 } }"
    "data { tar_shards { train: '/train-{000..015}.tar' test: '/test.tar' } }";
constexpr char kTokenModel[] =
    "model { tokens { length: 8 }"
    "  layer { name: 'e' embedding { vocabulary: 10 features: 4 } }"
    "  layer { name: 'head' fully_connected { out_features: 10 } }"
    "  layer { name: 'loss' softmax_cross_entropy {} } }";
// Images of 2^20 pixels.
constexpr char kLargeImages[] =
    "model { input { channels: 1 height: 1024 width: 1024 }"
    "  layer { name: 'pool' global_average_pool {} }"
    "  layer { name: 'head' fully_connected { out_features: 256 } }"
    "  layer { name: 'loss' softmax_cross_entropy {} } }"
    "data { synthetic { train_samples: 100000 test_samples: 10 classes: 256 } }"
    "schedule { warmup_steps: 10 }";

TEST(ValidateTest, NameModelAndBatch) {
  ExpectProblems({
      {"name", "", "name", "is missing"},
      {"", "name: '" + std::string(64, 'a') + "'", "name", "has 64 characters; at most 63"},
      {"", "priority: 1001", "priority", "is 1001; from -1000 to 1000 are possible"},
      {"", "priority: -1001", "priority", "is -1001; from -1000 to 1000 are possible"},
      {"", "name: 'my_run'", "name", "'my_run'"},
      {"model", "", "model", "is missing"},
      {"model.input.height", "", "model.input.height", "is 0"},
      {"model.layer", "", "model.layer", "no layers"},
      {"", "batch_per_group: 0", "batch_per_group", "at least 1"},
      {"", "batch_per_group: 2147483648", "batch_per_group", "at most 1048576"},
      {"", "micro_batches: 65", "micro_batches", "is 65; at most the 64 samples"},
  });
}

TEST(ValidateTest, Size) {
  ExpectProblems({
      {"data", "data { tar_shards { train: '" + std::string(4097, 'a') + "' test: '/t' } }",
       "data.tar_shards.train", "has 4097 bytes; at most 4096"},
      {"", "model { layer { name: 'long' input: 'a' input: '" + std::string(5000, 'b') + "' } }",
       "model.layer[10].input[1]", "has 5000 bytes"},
      {"", "checkpoint { directory: '" + std::string(8'000'000, 'c') + "' }", "spec",
       "at most 1048576 are allowed"},
  });
}

// A range of names is counted, not expanded.
TEST(ValidateTest, MillionShards) {
  const std::string path(500, 'a');
  const v1::RunSpec spec =
      Changed("data", absl::StrCat("data { tar_shards { train: '/", path, "{000000..999999}.tar'",
                                   " test: '/t' augmentation { mean: [0, 0] } } }"));
  const absl::Time begin = absl::Now();
  const std::vector<Problem> problems = FindProblems(spec);
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(50));
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].field, "data.tar_shards.augmentation.mean");
}

TEST(ValidateTest, LayersAreNamed) {
  v1::RunSpec spec = testing::DemoSpec();
  spec.mutable_model()->mutable_layer(3)->mutable_convolution()->set_kernel(20);
  EXPECT_EQ(ValidateRunSpec(spec).message(),
            "model.layer[3].convolution.kernel: layer 'conv2': is 20, larger than the padded input "
            "of 16 x 16; at most 16 fits");
}

TEST(ValidateTest, IdxAndSyntheticData) {
  ExpectProblems({
      {"data", "", "data", "has no source; give idx"},
      {"data.idx.train_images", "", "data.idx.train_images", "is missing"},
      {"data.idx.train_labels", "", "data.idx.train_labels", "is missing"},
      {"data.idx.test_images", "", "data.idx.test_images", "is missing"},
      {"data.idx.test_labels", "", "data.idx.test_labels", "is missing"},
      {"", "data { idx { test_labels: 'a\\x80' } }", "data.idx.test_labels", "is not UTF-8"},
      {"", "data { idx { mean: nan } }", "data.idx.mean", "is nan"},
      {"", "data { idx { stddev: -0.5 } }", "data.idx.stddev", "is -0.5"},
      {"", "data { idx { stddev: inf } }", "data.idx.stddev", "is inf"},
      {"model", kTokenModel, "data.idx", "contains images, but the model requires tokens"},
      {"", "data { synthetic { test_samples: 10 classes: 10 } }", "data.synthetic.train_samples",
       "at least 1"},
      {"", "data { synthetic { train_samples: 100000 classes: 10 } }",
       "data.synthetic.test_samples", "at least 1"},
      {"", "data { synthetic { train_samples: 100000 test_samples: 10 } }",
       "data.synthetic.classes", "at least 1"},
      {"", absl::StrCat(kSynthetic, "data { synthetic { classes: 11 } }"), "data.synthetic.classes",
       "is 11; the model has 10 classes"},
      {"", absl::StrCat(kSynthetic, "data { synthetic { noise: -1 } }"), "data.synthetic.noise",
       "is -1"},
      {"model", absl::StrCat(kTokenModel, kSynthetic, "data { synthetic { noise: 1.5 } }"),
       "data.synthetic.noise", "must be from 0 to 1"},
      {"model", absl::StrCat(kTokenModel, kSynthetic, "data { synthetic { noise: nan } }"),
       "data.synthetic.noise", "is nan"},
  });
}

TEST(ValidateTest, OtherDataSources) {
  const auto augmented = [](const std::string& fields) {
    return absl::StrCat(kCifar, "data { cifar10 { augmentation {", fields, "} } }");
  };
  ExpectProblems({
      {"", absl::StrCat(kCifar, "data { cifar10 { directory: '' } }"), "data.cifar10.directory",
       "is missing"},
      {"", absl::StrCat(kCifar, "model { input { height: 64 width: 64 } }"), "data.cifar10",
       "holds images of [32, 32, 3]"},
      {"model", absl::StrCat(kTokenModel, "data { cifar10 { directory: '/c' } }"), "data.cifar10",
       "contains images"},
      {"", augmented("crop_padding: 5000"), "data.cifar10.augmentation.crop_padding",
       "at most 1024"},
      {"", augmented("crop_padding: 4 random_resized_crop: true"),
       "data.cifar10.augmentation.crop_padding", "cannot be combined with random_resized_crop"},
      {"", augmented("mean: 0.5"), "data.cifar10.augmentation.mean",
       "has 1 numbers; the model's input has 3 channels"},
      {"", augmented("stddev: 1 stddev: 0 stddev: 1"), "data.cifar10.augmentation.stddev[1]",
       "above 0"},
      {"", absl::StrCat(kFolders, "data { image_folder { train: '' } }"), "data.image_folder.train",
       "is missing"},
      {"", absl::StrCat(kFolders, "data { image_folder { test: '\\xff' } }"),
       "data.image_folder.test", "UTF-8"},
      {"", absl::StrCat(kFolders, "model { input { channels: 4 } }"), "data.image_folder",
       "the model takes 4"},
      {"", absl::StrCat(kShards, "data { tar_shards { train: '' } }"), "data.tar_shards.train",
       "is missing"},
      {"", absl::StrCat(kShards, "data { tar_shards { test: 't{9..3}.tar' } }"),
       "data.tar_shards.test", "descending range"},
      {"", kTokenFiles, "data.token_files", "contains tokens, but the model requires images"},
      {"model", absl::StrCat(kTokenModel, "data { token_files { test: '/test' } }"),
       "data.token_files.train", "is missing"},
      {"model",
       absl::StrCat(kTokenModel, kTokenFiles, "data { token_files { bytes_per_token: 3 } }"),
       "data.token_files.bytes_per_token", "must be 1, 2 or 4"},
      {"model",
       absl::StrCat("model { tokens { length: 8 }"
                    "  layer { name: 'e' embedding { vocabulary: 10 features: 4 } }"
                    "  layer { name: 'class' class_token {} }"
                    "  layer { name: 'head' fully_connected { out_features: 10 } }"
                    "  layer { name: 'loss' softmax_cross_entropy {} } }",
                    kTokenFiles),
       "model.layer[3].softmax_cross_entropy",
       "takes the scores of 9 tokens, but a sample has 8 labels"},
      {"model",
       "model { input { channels: 1 height: 4 width: 4 }"
       "  layer { name: 'tokens' to_tokens {} }"
       "  layer { name: 'head' fully_connected { out_features: 10 } }"
       "  layer { name: 'loss' softmax_cross_entropy {} } }",
       "model.layer[2].softmax_cross_entropy",
       "takes the scores of 16 tokens, but a sample has 1 label"},
      {"model", absl::StrCat(kTokenModel, kTokenFiles, "cluster { space_ranks: 2 }"),
       "cluster.space_ranks", "only images have rows"},
  });
}

TEST(ValidateTest, ClassesMatchData) {
  v1::RunSpec spec = Changed("", kCifar);
  spec.mutable_model()->mutable_layer(8)->mutable_fully_connected()->set_out_features(9);
  EXPECT_THAT(ValidateRunSpec(spec).message(), HasSubstr("the model has only 9"));
  spec = Changed("model", absl::StrCat(kTokenModel, kTokenFiles));
  spec.mutable_model()->mutable_layer(0)->mutable_embedding()->set_vocabulary(11);
  EXPECT_THAT(ValidateRunSpec(spec).message(),
              HasSubstr("model.layer[0].embedding.vocabulary: layer 'e': is 11"));
}

// Values that would exhaust the memory of a worker.
TEST(ValidateTest, Sizes) {
  ExpectProblems({
      {"", absl::StrCat(kSynthetic, "data { synthetic { train_samples: 268435457 } }"),
       "data.synthetic.train_samples", "is 268435457; at most 268435456"},
      {"", absl::StrCat(kSynthetic, "data { synthetic { test_samples: 4294967295 } }"),
       "data.synthetic.test_samples", "at most 268435456"},
      {"model", absl::StrCat(kLargeImages, "batch_per_group: 4097"), "batch_per_group",
       "over 2 ranks; a rank's part may have 2147483648 elements, so that at most 4096 such"},
      {"model", absl::StrCat(kLargeImages, "batch_per_group: 2049 cluster { model_ranks: 2 }"),
       "batch_per_group",
       "over 1 rank; a rank's part may have 2147483648 elements, so that at "
       "most 2048 such"},
      {"", "cluster { groups: 4000000000 }", "cluster.groups", "at most 4096"},
      {"", "cluster { ranks_per_group: 8192 }", "cluster.ranks_per_group", "at most 4096"},
      {"", "cluster { aggregators: 5000 }", "cluster.aggregators", "at most 4096"},
  });
  v1::RunSpec spec =
      Changed("model", absl::StrCat(kLargeImages, "data { synthetic { classes: 257 } }"));
  spec.mutable_model()->mutable_layer(1)->mutable_fully_connected()->set_out_features(257);
  EXPECT_THAT(ValidateRunSpec(spec).message(), HasSubstr("so that at most 256 classes"));
}

TEST(ValidateTest, Optimizers) {
  ExpectProblems({
      {"optimizer", "", "optimizer", "give sgd, adamw or lars"},
      {"", "optimizer { sgd { momentum: 1 } }", "optimizer.sgd.momentum", "is 1;"},
      {"", "optimizer { sgd { momentum: -0.1 } }", "optimizer.sgd.momentum", "is -0.1;"},
      {"", "optimizer { sgd { momentum: nan } }", "optimizer.sgd.momentum", "is nan;"},
      {"", "optimizer { sgd { weight_decay: -1e-4 } }", "optimizer.sgd.weight_decay", "at least 0"},
      {"", "optimizer { sgd { momentum: 0 nesterov: true } }", "optimizer.sgd.nesterov",
       "no effect without momentum"},
      {"", "optimizer { adamw { beta1: 1 } }", "optimizer.adamw.beta1", "below 1"},
      {"", "optimizer { adamw { beta2: -1 } }", "optimizer.adamw.beta2", "is -1"},
      {"", "optimizer { adamw { epsilon: nan } }", "optimizer.adamw.epsilon", "nan"},
      {"", "optimizer { adamw { weight_decay: inf } }", "optimizer.adamw.weight_decay", "inf"},
      {"", "optimizer { lars { momentum: 1 } }", "optimizer.lars.momentum", "below 1"},
      {"", "optimizer { lars { weight_decay: -1 } }", "optimizer.lars.weight_decay", "at least 0"},
      {"", "optimizer { lars { trust: -1 } }", "optimizer.lars.trust", "at least 0"},
      {"", "optimizer { clip_norm: -1 }", "optimizer.clip_norm", "at least 0"},
  });
}

TEST(ValidateTest, SchedulesAndStops) {
  const std::string only_accuracy = "stop { test_accuracy: 0.9 }";
  ExpectProblems({
      {"schedule", "", "schedule.base_rate", "is 0;"},
      {"", "schedule { base_rate: -1 }", "schedule.base_rate", "above 0"},
      {"", "schedule { base_rate: nan }", "schedule.base_rate", "nan"},
      {"", "schedule { base_rate: inf }", "schedule.base_rate", "inf"},
      {"", "schedule { step { factor: 0.1 } }", "schedule.step.every_steps", "at least 1"},
      {"", "schedule { step { every_steps: 5 } }", "schedule.step.factor", "above 0"},
      {"", "schedule { cosine { final_fraction: 1.5 } }", "schedule.cosine.final_fraction",
       "is 1.5; it must be from 0 to 1"},
      {"", "schedule { cosine { final_fraction: nan } }", "schedule.cosine.final_fraction",
       "is nan"},
      {"stop.epochs", only_accuracy, "schedule.cosine", "known length"},
      {"", "schedule { polynomial { power: -1 } }", "schedule.polynomial.power", "at least 0"},
      {"", "schedule { polynomial { final_fraction: 2 } }", "schedule.polynomial.final_fraction",
       "from 0 to 1"},
      {"stop.epochs", only_accuracy + "schedule { polynomial {} }", "schedule.polynomial",
       "known length"},
      {"", "stop { steps: 99 }", "schedule.warmup_steps",
       "is 100, but the run ends after at most 99 steps by stop.steps"},
      // 6 epochs of 100 samples, 128 samples per step of both groups.
      {"", absl::StrCat(kSynthetic, "data { synthetic { train_samples: 100 } }"),
       "schedule.warmup_steps", "at most 10 steps by stop.epochs"},
      {"stop", "", "stop", "give epochs, steps or"},
      {"", "stop { test_accuracy: 90 }", "stop.test_accuracy", "must be above 0 and at most 1"},
      {"", "stop { test_accuracy: -0.1 }", "stop.test_accuracy", "is -0.1"},
      {"", "stop { test_accuracy: nan }", "stop.test_accuracy", "is nan"},
  });
}

TEST(ValidateTest, EvaluationHasAnInterval) {
  ExpectProblems({
      {"", "evaluation { every_steps: 0 }", "evaluation.every_steps", "at least 1"},
  });
}

TEST(ValidateTest, Checkpoints) {
  ExpectProblems({
      {"", "checkpoint { every_steps: 16 }", "checkpoint.every_steps",
       "is 16, but checkpoint.directory is not set"},
      {"", "checkpoint { keep: 1 }", "checkpoint.keep",
       "is 1, but checkpoint.directory is not set"},
      {"", "checkpoint { directory: '/tmp' every_steps: 24 }", "checkpoint.every_steps",
       "the nearest that fit are 16 and 32"},
      {"", "checkpoint { directory: '/tmp' every_steps: 8 }", "checkpoint.every_steps",
       "the nearest that fit are 16"},
      {"", "checkpoint { directory: '/\\xff' }", "checkpoint.directory", "'/\\xff' is not UTF-8"},
      {"", "checkpoint { from_step: 3 }", "checkpoint.from_step",
       "is 3, but checkpoint.from is not set"},
      {"", "checkpoint { from_position: 3 }", "checkpoint.from_position",
       "is 3, but checkpoint.from is not set"},
      {"", "checkpoint { from: '/c' from_position: 9223372036854775808 }",
       "checkpoint.from_position", "at most"},
      {"", "checkpoint { from: '/c' from_step: 4000 } stop { steps: 4000 }", "stop.steps",
       "nothing is left to train"},
      {"", "checkpoint { from: '\\xc3' }", "checkpoint.from", "is not UTF-8"},
      {"", "checkpoint { from: 'a\\0b' }", "checkpoint.from", "contains a zero byte"},
  });
}

// The largest legal values, and fields that may be left out.
TEST(ValidateTest, LegalSpecs) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "name: '" + std::string(63, 'z') + "'"},
      {"", "name: 'a-z-0-9'"},
      {"", absl::StrCat(kSynthetic, "data { synthetic { noise: 1.5 } }")},
      {"", absl::StrCat(kSynthetic,
                        "data { synthetic { train_samples: 268435456 "
                        "test_samples: 268435456 } }")},
      {"model", absl::StrCat(kLargeImages, "batch_per_group: 4096")},
      {"model", absl::StrCat(kLargeImages, "batch_per_group: 2048 cluster { model_ranks: 2 }")},
      {"model", absl::StrCat(kTokenModel, kSynthetic, "data { synthetic { noise: 1 } }")},
      {"", absl::StrCat(kCifar,
                        "data { cifar10 { augmentation { flip: true crop_padding: 4 "
                        "mean: 0.5 mean: 0.5 mean: 0.4 stddev: 1 stddev: 1 stddev: 1 } } }")},
      {"", kFolders},
      {"", kShards},
      {"model", absl::StrCat(kTokenModel, kTokenFiles)},
      {"model",
       absl::StrCat(kTokenModel, kTokenFiles, "data { token_files { bytes_per_token: 4 } }")},
      {"", "optimizer { adamw {} }"},
      {"", "optimizer { lars { trust: 0.01 } }"},
      {"", "optimizer { sgd { nesterov: true } }"},
      {"optimizer.sgd.momentum, optimizer.sgd.weight_decay", ""},
      {"", "schedule { polynomial { power: 2 } }"},
      {"", "schedule { cosine { final_fraction: 0 } }"},
      {"", "schedule { cosine { final_fraction: 1 } }"},
      {"", "schedule { step { every_steps: 1 factor: 1 } }"},
      {"schedule.cosine", ""},
      {"", "stop { steps: 100 }"},
      {"stop.epochs", "stop { steps: 100 }"},
      {"stop.epochs, schedule.cosine", "stop { test_accuracy: 1 }"},
      {"", "cluster { ranks_per_group: 56 space_ranks: 28 model_ranks: 2 }"},
      {"",
       "cluster { ranks_per_group: 4 model_ranks: 2 mesh { name: 'model' size: 2 }"
       "  mesh { name: 'data' size: 2 } layer { layer: 'fc2' parallelism: MODEL_IN }"
       "  layer { layer: 'conv1' parallelism: DOMAIN } }"},
      {"", "cluster { min_ranks_per_group: 2 model_ranks: 2 }"},
      {"", "cluster { model_ranks: 1 }"},
      {"", "cluster { collectives: PAPER overlap: OFF }"},
      {"", "cluster { device: CUDA collectives: NATIVE } precision: TF32"},
      {"", "precision: BF16"},
      {"", "cluster { device: CPU } precision: FP32"},
      {"averaging", "cluster { groups: 1 }"},
      {"averaging, cluster", ""},
      {"", "averaging { quorum: 2 min_groups: 2 }"},
      {"", "averaging { outer { nesterov {} } }"},
      {"", "checkpoint { directory: '/\\303\\251' every_steps: 32 keep: 1 from: '/c/step-10' }"},
      {"", "cluster { groups: 1 } checkpoint { directory: '/d' every_steps: 7 }"},
      {"data.idx.stddev", ""},
      {"", "batch_per_group: 63"},
      {"", "batch_per_group: 1"},
      {"", "micro_batches: 64"},
  };
  for (const auto& [cleared, text] : cases) {
    EXPECT_EQ(ValidateRunSpec(Changed(cleared, text)), absl::OkStatus())
        << "without " << cleared << ", with " << text;
  }
}

// A batch norm behind `before`, on images of [4, side, side].
std::vector<Problem> NormProblems(const std::string& before, int side, const std::string& text) {
  return FindProblems(Changed(
      "model, data, micro_batches, batch_per_group",
      absl::StrCat("model { input { channels: 4 height: ", side, " width: ", side, " } ", before,
                   " layer { name: 'bn' batch_norm {} }"
                   " layer { name: 'fc' fully_connected { out_features: 10 } }"
                   " layer { name: 'loss' softmax_cross_entropy {} } } ",
                   kSynthetic, text)));
}

// Their variance would be 0, and the norm's output its shift.
TEST(ValidateTest, StatisticsOfOneValueAreRefused) {
  const struct {
    const char* before;
    int side;
    const char* text;
    bool refused;
  } cases[] = {
      {"", 1, "batch_per_group: 1", true},
      {"", 1, "batch_per_group: 8 micro_batches: 8", true},
      // The smallest of the micro-batches has one sample.
      {"", 1, "batch_per_group: 7 micro_batches: 5", true},
      {"layer { name: 'pool' average_pool { kernel: 4 } }", 4, "batch_per_group: 1", true},
      {"layer { name: 'c' convolution { out_channels: 4 kernel: 3 } }", 3, "batch_per_group: 1",
       true},
      {"", 1, "batch_per_group: 2", false},
      {"", 1, "batch_per_group: 8 micro_batches: 4", false},
      {"", 2, "batch_per_group: 8 micro_batches: 8", false},
      {"layer { name: 'pool' average_pool { kernel: 2 } }", 4, "batch_per_group: 1", false},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(absl::StrCat(each.before, each.side, each.text));
    const std::vector<Problem> problems = NormProblems(each.before, each.side, each.text);
    ASSERT_EQ(problems.size(), each.refused ? 1U : 0U) << StatusOf(problems);
    if (!each.refused) continue;
    EXPECT_EQ(problems[0].field,
              absl::StrCat("model.layer[", *each.before == '\0' ? 0 : 1, "].batch_norm"));
    EXPECT_THAT(problems[0].message,
                ::testing::AllOf(HasSubstr("layer 'bn': its statistics cover one value"),
                                 HasSubstr("1 x 1 positions of the 1 sample"),
                                 HasSubstr("at least 2 samples per micro-batch")));
  }
  EXPECT_THAT(NormProblems("", 1, "batch_per_group: 7 micro_batches: 5")[0].message,
              HasSubstr("batch_per_group is 7, micro_batches 5"));
}

TEST(ValidateTest, FindsAllProblemsInOrder) {
  std::vector<std::string> fields;
  for (const Problem& problem : FindProblems(v1::RunSpec())) fields.push_back(problem.field);
  EXPECT_THAT(fields, ::testing::ElementsAre("name", "model", "data", "batch_per_group",
                                             "optimizer", "schedule.base_rate", "stop"));
  const absl::Status status = ValidateRunSpec(v1::RunSpec());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 6);
}

TEST(ValidateTest, ReportsAllUnusedLayers) {
  v1::RunSpec spec = testing::DemoSpec();
  spec.mutable_model()->mutable_layer(9)->add_input("relu3");
  spec.mutable_model()->mutable_layer(5)->add_input("conv2");
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].ToString(),
            "model.layer[4]: layer 'relu2': no layer uses its output; make it an input of a later "
            "layer, or remove it");
  EXPECT_EQ(problems[1].field, "model.layer[8]");
}

TEST(ValidateTest, SkipsClassesOfInvalidModel) {
  v1::RunSpec spec = Changed("", absl::StrCat(kSynthetic, "data { synthetic { classes: 3 } }"));
  spec.mutable_model()->mutable_layer(8)->clear_name();
  const std::vector<Problem> problems = FindProblems(spec);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].field, "model.layer[8].name");
}

}  // namespace
}  // namespace cadre
