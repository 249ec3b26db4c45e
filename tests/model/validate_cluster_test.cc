// What a run file gives for `cluster` and `averaging`, and pins of layers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/validate.h"
#include "tests/model/changed_spec.h"

namespace cadre {
namespace {

using ::cadre::testing::Changed;
using ::cadre::testing::ExpectProblems;
using ::cadre::testing::kTokenFiles;

TEST(ValidateClusterTest, WaitForAggregatorsHasLimits) {
  ExpectProblems({
      {"", "cluster { aggregator_wait_ms: 999 }", "cluster.aggregator_wait_ms",
       "is 999; it must be from 1000 to 86400000"},
      {"", "cluster { aggregator_wait_ms: 86400001 }", "cluster.aggregator_wait_ms",
       "is 86400001; it must be from 1000 to 86400000"},
  });
}

TEST(ValidateClusterTest, Recomputation) {
  ExpectProblems(
      {{"", "cluster { recompute: 4 }", "cluster.recompute", "is 4; give AUTO, OFF or ALL"}});
}

TEST(ValidateClusterTest, Clusters) {
  ExpectProblems({
      {"averaging", "", "averaging.every_steps", "requires a single group; there are 2 groups"},
      {"", "averaging { quorum: 3 }", "averaging.quorum", "is 3; there are only 2 groups"},
      {"", "averaging { min_groups: 3 }", "averaging.min_groups", "is 3; there are only 2 groups"},
      {"", "cluster { max_pause_ms: 0 }", "cluster.max_pause_ms", "is 0; it must be positive"},
      {"", "averaging { up { codec: CODEC_STAT2 keep: 3 } }", "averaging.up.keep",
       "is 3; only CODEC_TOPK leaves values out"},
      {"", "averaging { down { codec: CODEC_TOPK keep: 4097 } }", "averaging.down.keep",
       "is 4097; at most 4096 is possible"},
      {"", "averaging { up { codec: CODEC_INT8 error_feedback: 1.5 } }",
       "averaging.up.error_feedback", "is 1.5; it must be in [0, 1]"},
      {"", "averaging { every_steps: 4 overlap { steps: 4 } }", "averaging.overlap.steps",
       "is 4; it must be less than the steps between rounds, of which there are 4"},
      {"", "averaging { every_steps: 8 fragments { count: 2 } overlap { steps: 4 } }",
       "averaging.overlap.steps", "less than the steps between rounds, of which there are 4"},
      {"", "averaging { every_steps: 8 fragments { count: 65 } }", "averaging.fragments.count",
       "is 65; at most 64 is possible"},
      {"", "averaging { every_steps: 8 fragments { count: 3 } }", "averaging.fragments.count",
       "is 3; averaging.every_steps must be a multiple of it, but is 8"},
      {"", "averaging { every_steps: 8 fragments { count: 2 } max_solo_steps: 4 }",
       "averaging.fragments.count", "requires that averaging.max_solo_steps is 0"},
      {"",
       "averaging { every_steps: 8 fragments { count: 2 } outer { nesterov { every_rounds: 2 } } }",
       "averaging.outer.nesterov.every_rounds", "requires that averaging.fragments.count is 1"},
      {"", "averaging { every_steps: 8 staleness {} }", "averaging.staleness.max_rounds",
       "is 0; it must be at least 1"},
      {"", "averaging { every_steps: 8 staleness { max_rounds: 2 weight: 1.5 } }",
       "averaging.staleness.weight", "is 1.5; it must be in [0, 1]"},
      {"averaging", "averaging { steps_by_speed: true } cluster { groups: 1 }",
       "averaging.steps_by_speed", "is set, but averaging.every_steps is 0"},
      {"", "averaging { overlap { steps: 1 blend: -0.5 } }", "averaging.overlap.blend",
       "is -0.5; it must be in [0, 1]"},
      {"", "averaging { overlap { blend: 0.5 } }", "averaging.overlap.blend",
       "is set, but averaging.overlap.steps is not"},
      {"", "averaging { outer {} }", "averaging.outer", "has no kind; give nesterov or slowmo"},
      {"", "averaging { outer { nesterov { learning_rate: 0 } } }",
       "averaging.outer.nesterov.learning_rate", "is 0; it must be a number above 0"},
      {"", "averaging { outer { slowmo { momentum: 1 } } }", "averaging.outer.slowmo.momentum",
       "is 1; it must be at least 0 and below 1"},
      {"", "cluster { min_ranks_per_group: 3 }", "cluster.min_ranks_per_group",
       "is 3; a group has only 2 ranks"},
      {"", "cluster { model_ranks: 3 }", "cluster.model_ranks",
       "is 3, which does not divide the 2 ranks"},
      {"", "cluster { space_ranks: 3 }", "cluster.space_ranks",
       "is 3, which does not divide the 2 ranks"},
      {"", "cluster { ranks_per_group: 12 model_ranks: 4 space_ranks: 6 }", "cluster.space_ranks",
       "their product, 24, does not divide the 12 ranks"},
      {"", "cluster { ranks_per_group: 29 space_ranks: 29 }", "cluster.space_ranks",
       "only 28 rows"},
      {"", "cluster { collectives: 7 }", "cluster.collectives", "is 7; give AUTO, RING, BUTTERFLY"},
      {"", "cluster { collectives: NATIVE }", "cluster.collectives", "set cluster.device to CUDA"},
      {"", "cluster { device: 3 }", "cluster.device", "is 3; give CPU or CUDA"},
      {"", "cluster { overlap: -1 }", "cluster.overlap", "is -1; give ON or OFF"},
      {"", "cluster { pipeline: -1 }", "cluster.pipeline",
       "is -1; give ONE_FORWARD_ONE_BACKWARD, ALL_FORWARD_FIRST or NO_PIPELINE"},
      {"", "precision: 4", "precision", "is 4; give FP32, TF32 or BF16"},
      {"", "precision: TF32 cluster { device: CPU }", "precision", "is TF32, which only CUDA"},
  });
}

TEST(ValidateClusterTest, PinnedMeshes) {
  const std::string data = "cluster { mesh { name: 'data' size: 2 } }";
  ExpectProblems({
      {"", "cluster { mesh { name: 'data' size: 1 } mesh { name: 'depth' size: 2 } }",
       "cluster.mesh[1].name", "is 'depth'; give data, space, model or stage"},
      {"", "cluster { mesh { name: 'data' size: 1 } mesh { name: 'data' size: 2 } }",
       "cluster.mesh[1].name", "once more"},
      {"", data + "cluster { mesh { name: 'model' } }", "cluster.mesh[1].size", "is 0"},
      {"", "cluster { mesh { name: 'data' size: 4294967295 } }", "cluster.mesh[0].size",
       "at most 4096"},
      {"", data + "cluster { mesh { name: 'model' size: 2 } }", "cluster.mesh",
       "is data=2, model=2, which makes 4 ranks; ranks_per_group is 2"},
      {"", data + "cluster { model_ranks: 2 }", "cluster.model_ranks",
       "is 2, but cluster.mesh has 1 along model"},
      {"", "cluster { mesh { name: 'space' size: 2 } space_ranks: 1 }", "cluster.space_ranks",
       "is 1, but cluster.mesh has 2 along space"},
      {"", "cluster { mesh { name: 'space' size: 29 } ranks_per_group: 29 }",
       "cluster.mesh[0].size", "only 28 rows"},
  });
}

TEST(ValidateClusterTest, PinnedLayers) {
  std::string many;
  for (int i = 0; i < 10000; ++i) many += "layer { layer: 'conv1' parallelism: DATA }";
  ExpectProblems({
      {"", "cluster { layer { layer: 'fc9' parallelism: MODEL } }", "cluster.layer[0].layer",
       "is 'fc9', which is not a layer of the model"},
      {"", "cluster { layer { layer: 'conv1' parallelism: 9 } }", "cluster.layer[0].parallelism",
       "is 9; give DATA, MODEL, MODEL_IN or DOMAIN"},
      {"", "cluster { layer { layer: 'fc2' parallelism: DOMAIN } }", "cluster.layer[0].parallelism",
       "layer 'fc2' can only be split along data, model, model-in"},
      {"", "cluster { mesh { name: 'data' size: 2 } layer { layer: 'fc1' parallelism: MODEL } }",
       "cluster.layer[0].parallelism", "no axis besides data"},
      {"",
       "cluster { layer { layer: 'conv1' parallelism: DATA }"
       "  layer { layer: 'conv1' parallelism: MODEL } }",
       "cluster.layer[1].layer", "is 'conv1' once more"},
      {"", "cluster {" + many + "}", "cluster.layer", "pins 10000 layers; the model has "},
  });
}

TEST(ValidateClusterTest, PinnedLayersWhoseClassesAreSampled) {
  const auto with = [](const std::string& head, const std::string& parallelism) {
    return absl::StrCat(
        "model { tokens { length: 8 }"
        "  layer { name: 'e' embedding { vocabulary: 10 features: 4 } }"
        "  layer { name: 'head' fully_connected { ",
        head,
        " } }"
        "  layer { name: 'loss' softmax_cross_entropy { sampling { classes: 4 } } } }",
        kTokenFiles, "cluster { layer { layer: 'head' parallelism: ", parallelism, " } }");
  };
  ExpectProblems({
      {"model", with("out_features: 10", "MODEL"), "cluster.layer[0].parallelism",
       "can only be split along data, model-in, since the loss samples its outputs"},
      {"model", with("tied_to: 'e' no_bias: true", "MODEL_IN"), "cluster.layer[0].parallelism",
       "can only be split along data, since it shares its weight with another layer"},
  });
}

// The product of the sizes is a multiple of 2^32.
TEST(ValidateClusterTest, LargeMeshesAreRefused) {
  const std::vector<Problem> problems = FindProblems(Changed(
      "", "cluster { mesh { name: 'model' size: 65536 } mesh { name: 'stage' size: 65536 } }"));
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0].field, "cluster.mesh[0].size");
}

TEST(ValidateClusterTest, PlacedLayers) {
  const std::string stages = "cluster { mesh { name: 'stage' size: 2 } }";
  const auto pin = [](const std::string& layer, const std::string& axis, int coordinate) {
    return "cluster { layer { layer: '" + layer + "' at { axis: '" + axis +
           "' coordinate: " + std::to_string(coordinate) + " } } }";
  };
  ExpectProblems({
      {"", "cluster { ranks_per_group: 99 mesh { name: 'stage' size: 99 } }", "cluster.mesh",
       "has 99 stages, but the model has"},
      {"", stages + pin("fc1", "stage", 2), "cluster.layer[0].at",
       "places layer 'fc1' at stage@2, which does not exist; axis stage of cluster.mesh has the "
       "coordinates 0 to 1"},
      {"", stages + pin("fc1", "model", 0), "cluster.layer[0].at",
       "places layer 'fc1' at model@0, but cluster.mesh has no axis 'model'"},
      {"", stages + pin("fc9", "stage", 1), "cluster.layer[0].at", "neither a layer nor a block"},
      {"", stages + pin("fc1", "stage", 1) + pin("fc2", "stage", 0), "cluster.layer[1].at",
       "places layer 'fc2' at stage@0, but it reads layer"},
      {"", "cluster { layer { layer: 'fc1' } }", "cluster.layer[0].parallelism",
       "or place the layer with 'at'"},
  });
}

}  // namespace
}  // namespace cadre
