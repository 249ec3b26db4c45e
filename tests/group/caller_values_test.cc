// How the parameters of a program are found in the model of a run, and divided among ranks.
#include "group/caller_values.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/transport/thread_transport.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
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

// A parameter of which this rank has all elements.
CallerParameter Whole(std::string name, std::vector<uint64_t> shape, float* values) {
  int64_t elements = 1;
  for (const uint64_t extent : shape) elements *= static_cast<int64_t>(extent);
  return {.name = std::move(name), .shape = std::move(shape), .parts = {{{0, elements}, values}}};
}

CallerParameter Statistic(CallerParameter parameter) {
  parameter.trained = false;
  return parameter;
}

std::string ErrorOf(const std::vector<CallerParameter>& parameters, const v1::Model& model) {
  return std::string(CallerValues::Make(parameters, model).status().message());
}

// Runs `rank(transport, number)` in a thread for each rank.
template <typename Rank>
void RunRanks(int ranks, const Rank& rank) {
  auto transports = MakeThreadTransports(ranks, absl::Seconds(10));
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i) threads.emplace_back([&, i] { rank(*transports[i], i); });
  for (std::thread& thread : threads) thread.join();
}

TEST(CallerValuesTest, ParametersAreThoseOfTheRun) {
  std::vector<float> values(9);
  const CallerParameter w = Whole("w", {2, 3}, values.data());
  const CallerParameter mean = Statistic(Whole("mean", {3}, values.data() + 6));
  auto transports = MakeThreadTransports(1, absl::Seconds(10));
  auto made = CallerValues::Make({w, mean}, Opaque());
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(made->Divide(*transports[0]).ok());
  ASSERT_EQ(made->owned().size(), 2U);
  EXPECT_EQ(made->owned()[1].positions.begin, 6);
  EXPECT_EQ(ErrorOf({mean, w}, Opaque()),
            "parameter 0 is 'w' [2, 3] in the run, but 'mean' [3], not trained in this program");
  EXPECT_EQ(ErrorOf({w}, Opaque()),
            "parameter 1 is 'mean' [3], not trained in the run, but no parameter in this program");
  EXPECT_THAT(ErrorOf({w, Whole("mean", {3}, values.data() + 6)}, Opaque()),
              HasSubstr("but 'mean' [3] in this program"));
}

TEST(CallerValuesTest, AVersionReachesWhatTheRankHolds) {
  std::vector<float> own(6, -1);
  CallerParameter w{.name = "w", .shape = {2, 3}};
  w.parts = {{{4, 6}, own.data()}, {{0, 1}, own.data() + 2}};
  auto made = CallerValues::Make({w, Statistic(Whole("mean", {3}, own.data() + 3))}, Opaque());
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<float> version(9);
  std::iota(version.begin(), version.end(), 0.0F);
  made->SetAll(version);
  EXPECT_THAT(own, ElementsAre(4, 5, 0, 6, 7, 8));
}

TEST(CallerValuesTest, FrozenParametersHaveNoPositions) {
  v1::Model model = Opaque();
  v1::OpaqueParameter& frozen = *model.mutable_opaque()->add_parameter();
  frozen.set_name("frozen");
  frozen.add_shape(5);
  frozen.set_frozen_digest("1f");
  std::vector<float> values(9);
  std::vector<CallerParameter> parameters = {
      Whole("w", {2, 3}, values.data()),
      Statistic(Whole("mean", {3}, values.data() + 6)),
      {.name = "frozen", .shape = {5}, .trained = false, .frozen_digest = "1f"}};
  const auto made = CallerValues::Make(parameters, model);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->index().size(), 9);
  parameters[2].frozen_digest = "2f";
  EXPECT_THAT(ErrorOf(parameters, model), HasSubstr("frozen with digest 1f in the run, but"));
}

TEST(CallerValuesTest, ParametersOfAGraphAreFoundByName) {
  const v1::Model model = Parse(R"(
    input { channels: 1 height: 2 width: 2 }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} })");
  std::vector<float> values(15);
  const CallerParameter bias = Whole("fc.bias", {3}, values.data());
  const CallerParameter weight = Whole("fc.weight", {3, 4}, values.data() + 3);
  auto transports = MakeThreadTransports(1, absl::Seconds(10));
  auto made = CallerValues::Make({bias, weight}, model);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(made->Divide(*transports[0]).ok());
  EXPECT_EQ(made->owned()[0].values.data(), values.data() + 3);
  EXPECT_THAT(ErrorOf({bias}, model), HasSubstr("no parameter 'fc/weight' [3, 4]"));
  CallerParameter other = weight;
  other.shape = {3, 5};
  EXPECT_THAT(ErrorOf({bias, other}, model), HasSubstr("[3, 5] in this program, but 'fc/weight'"));
}

TEST(CallerValuesTest, AValueThatIsNotFiniteIsNamed) {
  std::vector<float> values(9);
  values[4] = std::numeric_limits<float>::infinity();
  auto transports = MakeThreadTransports(1, absl::Seconds(10));
  auto made = CallerValues::Make(
      {Whole("w", {2, 3}, values.data()), Statistic(Whole("mean", {3}, values.data() + 6))},
      Opaque());
  ASSERT_TRUE(made->Divide(*transports[0]).ok());
  EXPECT_EQ(made->CheckFinite().message(), "element 4 of parameter 'w' is inf");
}

// Sets each value that the rank owns to its position.
void FillOwned(const CallerValues& values) {
  for (const Owned& owned : values.owned()) {
    std::iota(owned.values.begin(), owned.values.end(), owned.positions.begin);
  }
}

TEST(CallerValuesTest, RanksDivideWhatTheyShare) {
  RunRanks(2, [](Transport& transport, int /*rank*/) {
    std::vector<float> values(9);
    auto made = CallerValues::Make(
        {Whole("w", {2, 3}, values.data()), Statistic(Whole("mean", {3}, values.data() + 6))},
        Opaque());
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->Divide(transport).ok());
    FillOwned(*made);
    ASSERT_TRUE(made->GiveShared().ok());
    EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  });
}

// The error of CheckShared of each rank, after `change` has changed its nine values.
template <typename Change>
std::vector<std::string> DifferencesAfter(int ranks, const Change& change) {
  std::vector<std::string> errors(ranks);
  RunRanks(ranks, [&](Transport& transport, int rank) {
    std::vector<float> values(9, 0.5F);
    change(values, rank);
    auto made = CallerValues::Make(
        {Whole("w", {2, 3}, values.data()), Statistic(Whole("mean", {3}, values.data() + 6))},
        Opaque());
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->Divide(transport).ok());
    made->TakeShared();
    errors[rank] = std::string(made->CheckShared().message());
  });
  return errors;
}

TEST(CallerValuesTest, SharedValuesMustBeEqual) {
  EXPECT_THAT(DifferencesAfter(3, [](auto&, int) {}), Each(""));
  // Rank 0 owns the first element, rank 2 the other one.
  for (const int element : {0, 5}) {
    EXPECT_THAT(DifferencesAfter(3,
                                 [element](auto& values, int rank) {
                                   if (rank == 2) values[element] = 1;
                                 }),
                Each(HasSubstr("parameter 'w' has other values on rank 2 than on rank 0")));
  }
  EXPECT_THAT(DifferencesAfter(3, [](auto& values, int rank) { values[7] = rank; }), Each(""))
      << "statistics may differ";
}

// Rank 2 differs from rank 0, which has the same rows of w; ranks 1 and 3 find no difference.
TEST(CallerValuesTest, ReplicasOfAShardMustBeEqual) {
  RunRanks(4, [](Transport& transport, int rank) {
    std::vector<float> w(3, rank == 2 ? 2.0F : 1.0F), mean(3);
    const int64_t begin = rank % 2 == 0 ? 0 : 3;
    auto made = CallerValues::Make(
        {{.name = "w", .shape = {2, 3}, .parts = {{{begin, begin + 3}, w.data()}}},
         Statistic(Whole("mean", {3}, mean.data()))},
        Opaque());
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->Divide(transport).ok());
    made->TakeShared();
    EXPECT_THAT(std::string(made->CheckShared().message()),
                HasSubstr(rank % 2 == 0 ? "'w' has other values on rank 2 than on rank 0" : ""));
    EXPECT_EQ(made->CheckShared().ok(), rank % 2 != 0);
  });
}

// Four ranks as two replicas of two shards: columns 0 and 1 of w, and column 2; all have the mean.
TEST(CallerValuesTest, ReplicasOfShardsDivideThem) {
  std::atomic<int64_t> owned = 0;
  RunRanks(4, [&owned](Transport& transport, int rank) {
    const int64_t begin = rank % 2 == 0 ? 0 : 2, columns = rank % 2 == 0 ? 2 : 1;
    std::vector<float> w(2 * columns), mean(3);
    CallerParameter parameter{.name = "w", .shape = {2, 3}};
    for (int64_t row = 0; row < 2; ++row) {
      parameter.parts.push_back(
          {{row * 3 + begin, row * 3 + begin + columns}, w.data() + row * columns});
    }
    auto made =
        CallerValues::Make({parameter, Statistic(Whole("mean", {3}, mean.data()))}, Opaque());
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->Divide(transport).ok());
    for (const Owned& one : made->owned()) owned += one.positions.size();
    FillOwned(*made);
    ASSERT_TRUE(made->GiveShared().ok());
    EXPECT_THAT(w, rank % 2 == 0 ? std::vector<float>({0, 1, 3, 4}) : std::vector<float>({2, 5}));
    EXPECT_THAT(mean, ElementsAre(6, 7, 8));
  });
  EXPECT_EQ(owned, 9) << "every value is owned once";
}

TEST(CallerValuesTest, PartsMustCoverTheModel) {
  auto transports = MakeThreadTransports(1, absl::Seconds(10));
  std::vector<float> values(9);
  const auto error = [&](std::vector<CallerParameter::Part> parts) {
    auto made = CallerValues::Make({{.name = "w", .shape = {2, 3}, .parts = std::move(parts)},
                                    Statistic(Whole("mean", {3}, values.data() + 6))},
                                   Opaque());
    return std::string(made->Divide(*transports[0]).message());
  };
  EXPECT_EQ(error({{{0, 6}, values.data()}}), "");
  EXPECT_EQ(error({{{0, 4}, values.data()}}), "element 4 of parameter 'w' belongs to no rank");
  EXPECT_EQ(error({{{0, 4}, values.data()}, {{3, 6}, values.data()}}),
            "element 3 of parameter 'w' belongs to rank 0 twice");
}

}  // namespace
}  // namespace cadre
