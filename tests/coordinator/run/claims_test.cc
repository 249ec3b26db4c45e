#include "coordinator/run/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClaimsTest : public ::testing::Test {
 protected:
  ClaimsTest() {
    run_ = Parse<v1::RunRecord>(R"(
      spec {
        batch_per_group: 32
        averaging { every_steps: 10 }
        stop { steps: 1000000 }
      }
      train_samples: 6400
      version: 5
      step: 50
    )");
    contributed_ = Parse<v1::Contributed>(
        "round: 6 base_version: 5 step: 60 samples: 320 train_seconds: 1 rate: 0.1");
  }
  std::string Why() const { return WhyImpossible(run_, contributed_); }

  v1::RunRecord run_;
  v1::Contributed contributed_;
};

TEST_F(ClaimsTest, StepsUpToTheBoundary) {
  for (const uint32_t step : {51U, 60U}) {
    contributed_.set_step(step);
    EXPECT_THAT(Why(), IsEmpty());
  }
  contributed_.set_step(50);
  EXPECT_EQ(Why(), "it claims step 50, and version 5 has step 50");
  contributed_.set_step(1'000'000);
  EXPECT_EQ(Why(), "it claims step 1000000, and the round has steps up to 60");
  run_.mutable_spec()->mutable_averaging()->set_max_solo_steps(20);
  contributed_.set_step(80);
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_step(81);
  EXPECT_THAT(Why(), HasSubstr("up to 80"));
}

TEST_F(ClaimsTest, StepsEndWithTheRun) {
  run_.mutable_spec()->mutable_stop()->set_steps(55);
  contributed_.set_step(55);
  contributed_.set_samples(160);
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_step(56);
  EXPECT_THAT(Why(), HasSubstr("up to 55"));
}

TEST_F(ClaimsTest, SamplesOfTheSteps) {
  contributed_.set_samples(321);
  EXPECT_EQ(Why(), "it claims 321 samples, and the round has at most 320 for a group");
  contributed_.set_samples(uint64_t{1} << 62);
  EXPECT_THAT(Why(), HasSubstr("4611686018427387904 samples"));
  // A contribution to a round has what was trained while the round before was exchanged.
  run_.mutable_spec()->mutable_averaging()->mutable_overlap()->set_steps(4);
  contributed_.set_samples(14 * 32);
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_samples(14 * 32 + 1);
  EXPECT_THAT(Why(), HasSubstr("at most 448"));
}

TEST_F(ClaimsTest, NumbersThatAreNeverPossible) {
  for (const float rate : {-1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    contributed_.set_rate(rate);
    EXPECT_THAT(Why(), HasSubstr("a learning rate of"));
  }
  contributed_.set_rate(0);
  contributed_.set_samples(0);
  EXPECT_THAT(Why(), HasSubstr("no samples"));
  contributed_.set_step(0);
  EXPECT_THAT(Why(), HasSubstr("no steps"));
  contributed_.set_round(0);
  EXPECT_THAT(Why(), HasSubstr("no round"));
}

TEST_F(ClaimsTest, OlderRoundsHadOtherBounds) {
  contributed_.set_round(3);
  contributed_.set_base_version(2);
  contributed_.set_step(30);
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_base_version(5);
  EXPECT_THAT(Why(), IsEmpty()) << "the round decides";
  contributed_.set_round(6);
  contributed_.set_base_version(4);
  EXPECT_THAT(Why(), IsEmpty()) << "it was trained from another version";
}

TEST_F(ClaimsTest, RunsThatNeverAverageHaveAnEnd) {
  run_.mutable_spec()->mutable_averaging()->set_every_steps(0);
  contributed_.set_step(900'000);
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_step(1'000'001);
  EXPECT_THAT(Why(), HasSubstr("the run has 1000000"));
  run_.mutable_spec()->clear_stop();
  EXPECT_THAT(Why(), IsEmpty()) << "an accuracy ends the run";
}

TEST_F(ClaimsTest, EvaluationsHaveTheLabelsOfTheirSamples) {
  run_.set_test_samples(100);
  v1::Evaluated evaluated = Parse<v1::Evaluated>("begin: 20 end: 60 labels: 40 correct: 40");
  EXPECT_THAT(WhyImpossible(run_, evaluated), IsEmpty());
  evaluated.set_correct(41);
  EXPECT_EQ(WhyImpossible(run_, evaluated), "more correct answers than labels: 41 of 40");
  evaluated.set_labels(41);
  EXPECT_EQ(WhyImpossible(run_, evaluated), "it claims 41 labels, and the samples have at most 40");
  evaluated.set_labels(39);
  EXPECT_EQ(WhyImpossible(run_, evaluated), "fewer labels than samples: 39 for 40");
  run_.mutable_spec()->mutable_model()->mutable_tokens()->set_length(8);
  evaluated.set_labels(8 * 40);
  EXPECT_THAT(WhyImpossible(run_, evaluated), IsEmpty());
  evaluated.set_labels(8 * 40 + 1);
  EXPECT_THAT(WhyImpossible(run_, evaluated), HasSubstr("at most 320"));
  evaluated.set_end(101);
  EXPECT_EQ(WhyImpossible(run_, evaluated),
            "it claims results for samples 20 to 101, and the run has 100");
  EXPECT_THAT(WhyImpossible(run_, Parse<v1::Evaluated>("begin: 20 end: 20")), IsEmpty())
      << "a part without samples";
  evaluated = Parse<v1::Evaluated>("begin: 60 end: 20");
  EXPECT_THAT(WhyImpossible(run_, evaluated), HasSubstr("for samples 60 to 20"));
  evaluated = Parse<v1::Evaluated>("begin: 20 end: 60 labels: 4611686018427387904");
  run_.mutable_spec()->mutable_model()->mutable_opaque();
  EXPECT_THAT(WhyImpossible(run_, evaluated), HasSubstr("at most 41943040"));
}

TEST_F(ClaimsTest, FirstValuesHaveNoSteps) {
  run_ = Parse<v1::RunRecord>(
      "spec { model { opaque { parameter { name: 'w' shape: 4 } } } averaging { every_steps: 10 } "
      "}");
  contributed_ = Parse<v1::Contributed>("round: 1 samples: 1");
  EXPECT_THAT(Why(), IsEmpty());
  contributed_.set_step(10);
  EXPECT_THAT(Why(), HasSubstr("first values"));
  contributed_.set_step(0);
  contributed_.set_samples(2);
  EXPECT_THAT(Why(), HasSubstr("first values"));
  contributed_.set_round(2);
  EXPECT_THAT(Why(), HasSubstr("it has no steps")) << "the next round has some";
}

}  // namespace
}  // namespace cadre
