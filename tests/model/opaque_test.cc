// Opaque models: their rules, their parameters and what a run of them begins with.
#include "model/opaque.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/validate.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kOpaqueSpec[] = R"(
  name: "opaque" batch_per_group: 8
  model { opaque {
    parameter { name: "w" shape: 2 shape: 3 } parameter { name: "mean" shape: 3 trained: false }
    parameter { name: "scale" }
  } }
  averaging { every_steps: 4 } cluster { groups: 2 } stop { steps: 100 })";

v1::RunSpec OpaqueSpec(const std::string& more = "") {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kOpaqueSpec, &spec));
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(more, &spec));
  return spec;
}

std::string ProblemOf(const std::string& more) {
  return std::string(ValidateRunSpec(OpaqueSpec(more)).message());
}

TEST(OpaqueTest, ParametersAreInTheOrderOfTheSpec) {
  ASSERT_TRUE(ValidateRunSpec(OpaqueSpec()).ok()) << ProblemOf("");
  const auto index = ParameterIndex::FromModel(OpaqueSpec().model());
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->size(), 10);
  EXPECT_EQ((*index)[1].offset, 6);
  EXPECT_TRUE(IsStatistic((*index)[1].role));
  EXPECT_FALSE(IsStatistic((*index)[2].role));
  EXPECT_EQ((*index)[2].shape.elements(), 1);
}

TEST(OpaqueTest, ProblemsNameTheField) {
  EXPECT_THAT(ProblemOf("model { opaque { parameter { name: 'w' shape: 1 } } }"),
              HasSubstr("model.opaque.parameter[3].name: is 'w' once more"));
  EXPECT_THAT(ProblemOf("model { opaque { parameter { name: 'x' shape: 0 } } }"),
              HasSubstr("model.opaque.parameter[3].shape: has no elements"));
  EXPECT_THAT(
      ProblemOf("model { opaque { parameter { name: 'x' shape: 4294967296 shape: 4294967296 "
                "} } }"),
      HasSubstr("model.opaque: has more than"));
  const std::string large = "model { opaque { parameter { name: 'x' shape: 68719476736 } } }";
  EXPECT_EQ(ProblemOf(large), "");
  EXPECT_THAT(ProblemOf(large + "averaging { up { codec: CODEC_INT8 } }"),
              HasSubstr("model.opaque: has more than the 68719476736 elements"));
  EXPECT_THAT(ProblemOf("model { layer { name: 'fc' } }"),
              HasSubstr("model.layer: cannot be combined with model.opaque"));
  EXPECT_THAT(ProblemOf("optimizer { sgd {} }"), HasSubstr("optimizer: cannot be combined"));
  EXPECT_THAT(ProblemOf("precision: BF16"), HasSubstr("precision: cannot be combined"));
  EXPECT_THAT(ProblemOf("averaging { every_steps: 0 }"), HasSubstr("averaging.every_steps: is 0"));
  EXPECT_THAT(ProblemOf("stop { steps: 0 epochs: 2 }"),
              HasSubstr("model.opaque.epoch_samples: is missing"));
  EXPECT_THAT(ProblemOf("stop { test_accuracy: 0.9 }"),
              HasSubstr("stop.test_accuracy: requires model.opaque.test_samples"));
  EXPECT_THAT(ProblemOf("model { opaque { test_samples: 9223372036854775808 } }"),
              HasSubstr("model.opaque.test_samples: is 9223372036854775808; at most"));
  EXPECT_FALSE(Graph::FromModel(OpaqueSpec().model()).ok()) << "nothing can be planned";
}

TEST(OpaqueTest, DifferencesNameTheParameterAndBothSides) {
  const v1::OpaqueModel run = OpaqueSpec().model().opaque();
  EXPECT_EQ(ParametersDifference(run, run), "");
  v1::OpaqueModel other = OpaqueSpec().model().opaque();
  other.mutable_parameter(0)->set_shape(1, 4);
  EXPECT_EQ(ParametersDifference(run, other),
            "parameter 0 is 'w' [2, 3] in the run, but 'w' [2, 4] in this program");
  other = OpaqueSpec().model().opaque();
  other.mutable_parameter()->SwapElements(0, 2);
  EXPECT_THAT(ParametersDifference(run, other), HasSubstr("'w' [2, 3] in the run, but 'scale' []"));
}

TEST(OpaqueTest, FrozenParametersAreComparedButNotExchanged) {
  const std::string frozen =
      "model { opaque { parameter { name: 'f' shape: 5 frozen_digest: '1f' } } }";
  const v1::RunSpec spec = OpaqueSpec(frozen);
  EXPECT_TRUE(ValidateRunSpec(spec).ok()) << ProblemOf(frozen);
  EXPECT_EQ(ParameterIndex::FromOpaque(spec.model().opaque()).size(), 10);
  v1::OpaqueModel other = spec.model().opaque();
  other.mutable_parameter(3)->set_frozen_digest("2f");
  EXPECT_EQ(ParametersDifference(spec.model().opaque(), other),
            "parameter 3 is 'f' [5], frozen with digest 1f in the run, but 'f' [5], frozen with "
            "digest 2f in this program");
  EXPECT_THAT(ProblemOf("model { opaque { parameter { name: 'f' shape: 1 trained: true "
                        "frozen_digest: '1f' } } }"),
              HasSubstr("parameter[3].trained: cannot be combined with frozen_digest"));
  v1::RunSpec all = spec;
  for (v1::OpaqueParameter& one : *all.mutable_model()->mutable_opaque()->mutable_parameter()) {
    one.clear_trained();
    one.set_frozen_digest("1f");
  }
  EXPECT_THAT(ValidateRunSpec(all).message(), HasSubstr("only frozen parameters"));
}

TEST(OpaqueTest, ARunBeginsWithValuesOfAGroupUnlessAFileHasThem) {
  EXPECT_TRUE(BeginsWithGroupValues(OpaqueSpec()));
  EXPECT_FALSE(BeginsWithGroupValues(OpaqueSpec("checkpoint { from: '/model.safetensors' }")));
  EXPECT_FALSE(BeginsWithGroupValues(v1::RunSpec()));
}

TEST(OpaqueTest, AnEpochIsTheRunUnlessItIsGiven) {
  EXPECT_EQ(EpochSamples(OpaqueSpec()), 1600U);
  EXPECT_EQ(EpochSamples(OpaqueSpec("model { opaque { epoch_samples: 7 } }")), 7U);
}

}  // namespace
}  // namespace cadre::testing
