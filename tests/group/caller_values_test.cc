// How the parameters of a program are found in the model of a run, and divided among ranks.
#include "group/caller_values.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "worker/train/agreement.h"
#include "worker/transport/thread_transport.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

v1::Model Parse(const std::string& text) {
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
  return model;
}

v1::Model Opaque() {
  return Parse(R"(opaque {
    parameter { name: "w" shape: 2 shape: 3 } parameter { name: "mean" shape: 3 trained: false }
  })");
}

std::string ErrorOf(const std::vector<CallerParameter>& parameters, const v1::Model& model) {
  return std::string(CallerValues::Make(parameters, model, 0, 1).status().message());
}

TEST(CallerValuesTest, ParametersAreThoseOfTheRun) {
  std::vector<float> values(9);
  const CallerParameter w{.name = "w", .shape = {2, 3}, .values = values.data()};
  const CallerParameter mean{
      .name = "mean", .shape = {3}, .trained = false, .values = values.data() + 6};
  const auto made = CallerValues::Make({w, mean}, Opaque(), 0, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->owned().size(), 2U);
  EXPECT_EQ(made->owned()[1].positions.begin, 6);
  EXPECT_EQ(ErrorOf({mean, w}, Opaque()),
            "parameter 0 is 'w' [2, 3] in the run, but 'mean' [3], not trained in this program");
  EXPECT_EQ(ErrorOf({w}, Opaque()),
            "parameter 1 is 'mean' [3], not trained in the run, but no parameter in this program");
  CallerParameter trained = mean;
  trained.trained = true;
  EXPECT_THAT(ErrorOf({w, trained}, Opaque()), HasSubstr("but 'mean' [3] in this program"));
}

TEST(CallerValuesTest, ParametersOfAGraphAreFoundByName) {
  const v1::Model model = Parse(R"(
    input { channels: 1 height: 2 width: 2 }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} })");
  std::vector<float> values(15);
  const CallerParameter bias{.name = "fc.bias", .shape = {3}, .values = values.data()};
  const CallerParameter weight{.name = "fc.weight", .shape = {3, 4}, .values = values.data() + 3};
  const auto made = CallerValues::Make({bias, weight}, model, 0, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->owned()[0].values.data(), values.data() + 3);
  EXPECT_THAT(ErrorOf({bias}, model), HasSubstr("no parameter 'fc/weight' [3, 4]"));
  CallerParameter other = weight;
  other.shape = {3, 5};
  EXPECT_THAT(ErrorOf({bias, other}, model), HasSubstr("[3, 5] in this program, but 'fc/weight'"));
}

TEST(CallerValuesTest, AValueThatIsNotFiniteIsNamed) {
  std::vector<float> values(9);
  values[4] = std::numeric_limits<float>::infinity();
  const auto made = CallerValues::Make(
      {{.name = "w", .shape = {2, 3}, .values = values.data()},
       {.name = "mean", .shape = {3}, .trained = false, .values = values.data() + 6}},
      Opaque(), 0, 1);
  EXPECT_EQ(made->CheckFinite().message(), "element 4 of parameter 'w' is inf");
}

TEST(CallerValuesTest, RanksDivideWhatTheyShare) {
  auto transports = MakeThreadTransports(2, absl::Seconds(10));
  std::vector<std::vector<float>> values = {std::vector<float>(9), std::vector<float>(9)};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Communicator group = WholeGroup(*transports[rank]);
      auto made = CallerValues::Make(
          {{.name = "w", .shape = {2, 3}, .values = values[rank].data()},
           {.name = "mean", .shape = {3}, .trained = false, .values = values[rank].data() + 6}},
          Opaque(), rank, 2);
      ASSERT_TRUE(made.ok());
      EXPECT_TRUE(made->CheckPartition(group).ok());
      for (const Owned& owned : made->owned()) {
        for (size_t i = 0; i < owned.values.size(); ++i)
          owned.values[i] = owned.positions.begin + i;
      }
      EXPECT_TRUE(made->GiveShared(group).ok());
      EXPECT_THAT(values[rank], testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(CallerValuesTest, PartsMustCoverTheModelOnce) {
  auto transports = MakeThreadTransports(1, absl::Seconds(10));
  Communicator group = WholeGroup(*transports[0]);
  std::vector<float> values(9);
  const auto error = [&](std::vector<CallerParameter::Part> parts) {
    const auto made = CallerValues::Make(
        {{.name = "w", .shape = {2, 3}, .parts = std::move(parts)},
         {.name = "mean", .shape = {3}, .trained = false, .values = values.data() + 6}},
        Opaque(), 0, 1);
    return std::string(made->CheckPartition(group).message());
  };
  EXPECT_EQ(error({{{0, 6}, values.data()}}), "");
  EXPECT_EQ(error({{{0, 4}, values.data()}}), "element 4 of parameter 'w' belongs to no rank");
  EXPECT_EQ(error({{{0, 4}, values.data()}, {{3, 6}, values.data()}}),
            "element 3 of parameter 'w' belongs to rank 0 and to rank 0");
}

}  // namespace
}  // namespace cadre
