// Tests `cadre formula`: one number from the papers for each result, which shows that parameters
// and results are connected correctly (tests/plan/cost tests all numbers), and invalid input.
#include "lab/formulas.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result Show(const std::string& arguments) { return Call("formula " + arguments); }

TEST(FormulasTest, ListsFormulas) {
  EXPECT_THAT(Show("").out, AllOf(HasSubstr("butterfly-limit"), HasSubstr("group-hybrid"),
                                  HasSubstr("[gamma=X]"), HasSubstr("forward=X,Y,...")));
}

TEST(FormulasTest, PrintsOneNumberPerLine) {
  EXPECT_EQ(Show("halo batch=2 width=5 channels=3 kernel=3").out, "words 30.0\n");
}

constexpr char kLink[] = " ranks=8 alpha=50e-6 bandwidth=1.25e9";
constexpr char kAlexNet[] =
    "group-hybrid workers=512 samples=4 group=32 convolutions=5 alpha=2e-6 bandwidth=6e9 "
    "weights=34848,614400,884736,1327104,884736,37748736,16777216,4096000 "
    "inputs=154587,69984,43264,64896,64896,9216,4096,4096 "
    "outputs=290400,186624,64896,64896,43264,4096,4096,1000";
constexpr char kAveraging[] =
    "averaging parameters=25557032 groups=8 ranks=8 tau=8 samples=1281167 batch=256";
constexpr char kRule[] =
    "hybrid-rule devices=2 epochs=4 more_epochs=7 speedup=1.32 workers=8 epochs_of_one=4";
constexpr char kOverlap[] = "overlap forward=10,10,2,2 backward=20,20,4,4 communication=3,3,40,10";
constexpr char kTiny[] = "grid pr=2 pc=3 batch=6 inputs=4 outputs=6 weights=24 alpha=1 bandwidth=4";

struct WorkedNumbers {
  std::string arguments;
  std::map<std::string, double> results;
};

std::vector<WorkedNumbers> NumbersOfThePapers() {
  const double model = 511.0 / 512 * 2048 * (659'272 + 260'448 + 154'587);
  return {
      {absl::StrCat("ring bytes=3538944", kLink),
       {{"seconds", 5.6545e-3}, {"messages", 14}, {"bytes", 2 * 7.0 / 8 * 3'538'944}}},
      {absl::StrCat("butterfly bytes=3538944", kLink), {{"seconds", 8.6435e-3}}},
      {absl::StrCat("halving-doubling bytes=3538944", kLink), {{"seconds", 5.2545e-3}}},
      {absl::StrCat("butterfly-limit", kLink),
       {{"butterfly_always", 0}, {"bytes", 550'000}, {"bytes_over_alpha_beta", 8.8}}},
      {"butterfly-limit ranks=2 alpha=1 bandwidth=1", {{"butterfly_always", 1}}},
      {kOverlap, {{"seconds", 84}, {"exposed", 12}, {"serial", 128}}},
      {kTiny,
       {{"all_gather_words", 6}, {"input_gradient_words", 8}, {"weight_gradient_words", 16}}},
      {"batch-limit weights=37748736 inputs=9216 outputs=4096",
       {{"simple", 6144}, {"exact", 3351.3}}},
      {"halo batch=64 width=227 channels=3 kernel=11", {{"words", 217'920}}},
      {"group weights=58621952 samples=32 activations=35816", {{"g_star", 10.11}}},
      {kAlexNet,
       {{"g_star", 28.61},
        {"data_parallel_words", 124'491'927.875},
        {"data_parallel_seconds", 18 * 2e-6 + 124'491'927.875 * 4 / 6e9},
        {"model_parallel_words", model},
        {"model_parallel_seconds", 16 * 9 * 2e-6 + model * 4 / 6e9},
        {"group_hybrid_words", 15'353'079.875},
        {"state_bytes", 66.9e6}}},
      {absl::StrCat(kAlexNet, " operations=1e9 flops=1e12"),
       {{"data_parallel_seconds", 18 * 2e-6 + 124'491'927.875 * 4 / 6e9 + 3 * 4e-3}}},
      {kRule,
       {{"threshold", 1.142857},
        {"gain", 1.155},
        {"hybrid_speedup", 1.32 * 8},
        {"data_speedup", 16 * 4.0 / 7}}},
      {absl::StrCat(kRule, " efficiency=0.95 more_efficiency=0.90"),
       {{"threshold", 1.082707}, {"gain", 1.219167}}},
      {kAveraging,
       {{"naive_across_words", 44'724'806},
        {"across_words", 5'590'600.75},
        {"step_words", 44'724'806},
        {"hierarchical_step_words", 45'423'631.09375},
        {"synchronous_step_words", 50'315'406.75},
        {"synchronous_steps", 5'004},
        {"hierarchical_steps", 625},
        {"epoch_saving", 8.869},
        {"saving_across", 7},
        {"synchronous_bytes_across_per_step", 2.0 * 7 * 25'557'032 * 4}}},
      {"activations ranks=8 batch=256 inputs=9216 outputs=4096",
       {{"gradient_words", 33'030'144}, {"activation_words", 1'175'552}, {"ratio", 28.098}}},
      {"discrepancy signal=1 noise=4 groups=4", {{"gamma", 1.5}}},
  };
}

TEST(FormulasTest, EveryResultHasItsWorkedNumber) {
  for (const auto& [arguments, expected] : NumbersOfThePapers()) {
    std::vector<std::string> words = absl::StrSplit(arguments, ' ', absl::SkipEmpty());
    const std::string name = words.front();
    words.erase(words.begin());
    const auto results = Evaluate(name, words);
    ASSERT_TRUE(results.ok()) << arguments << ": " << results.status();
    std::map<std::string, double> found(results->begin(), results->end());
    for (const auto& [field, value] : expected) {
      ASSERT_TRUE(found.contains(field)) << arguments << " " << field;
      // The papers state at least three digits.
      EXPECT_NEAR(found[field], value, 5e-4 * std::abs(value)) << arguments << " " << field;
    }
  }
}

// The largest numbers are evaluated without delay.
TEST(FormulasTest, AcceptsLargeNumbers) {
  EXPECT_EQ(Show("averaging parameters=900000000000 groups=1048576 ranks=1048576").exit_code, 0);
}

TEST(FormulasTest, RejectsInvalidInput) {
  const struct {
    const char* arguments;
    const char* error;
  } cases[] = {
      {"nowhere", "unknown formula 'nowhere'"},
      {"halo batch=2 width=5 channels=3", "missing parameter kernel"},
      {"halo batch=2 width=5 channels=3 kernel=3 depth=1", "no parameter 'depth'"},
      {"halo batch=2 width=5 channels=3 kernel=3 kernel=3", "duplicate parameter kernel"},
      {"halo batch=2.5 width=5 channels=3 kernel=3", "batch is '2.5', but must be a whole number"},
      {"halo batch=0 width=5 channels=3 kernel=3", "batch is '0'"},
      {"butterfly-limit ranks=6 alpha=1 bandwidth=1", "a power of two"},
      {"ring ranks=6 bytes=1 alpha=1 bandwidth=0", "bandwidth is '0'"},
      {"ring ranks=6 bytes=1 alpha=-1 bandwidth=1", "alpha is '-1'"},
      {"overlap forward=1,2 backward=1 communication=1,2", "one number per layer"},
      {"overlap forward=1, backward=1 communication=1", "forward is ''"},
      // These would lead to endless loops, overflow or results that are not finite.
      {"averaging parameters=9000000000000000 groups=9000000000000000 ranks=9000000000000000",
       "groups is '9000000000000000', but must be a whole number, 1 to 1048576"},
      {"averaging parameters=1 groups=4611686018427388 ranks=4611686018427388 samples=1e300",
       "groups is '4611686018427388'"},
      {"averaging parameters=1 groups=1 ranks=1 samples=1e300", "samples is '1e300'"},
      {"averaging parameters=9000000000000000 groups=1048576 ranks=1",
       "groups times parameters is more than"},
      {"averaging parameters=1 groups=1048576 ranks=1 samples=1 batch=9000000000000000",
       "groups times batch is more than"},
      {"ring ranks=1048577 bytes=1 alpha=1 bandwidth=1", "ranks is '1048577'"},
      {"ring ranks=2 bytes=1 alpha=1e308 bandwidth=1e-300", "seconds is inf"},
      {"hybrid-rule devices=2 epochs=0 more_epochs=7 speedup=1",
       "epochs is '0', but must be a number"},
      {"hybrid-rule devices=2 epochs=4 more_epochs=0 speedup=1", "more_epochs is '0'"},
      {"discrepancy signal=0 noise=0 groups=1", "signal and noise are both 0"},
      {"group-hybrid workers=6 samples=1 group=4 weights=1 inputs=1 outputs=1 alpha=0 bandwidth=1",
       "6 workers cannot be divided into groups of 4"},
      {"group-hybrid workers=4 samples=1 group=4 weights=1,2 inputs=1 outputs=1 alpha=0 "
       "bandwidth=1",
       "must have one number per layer"},
      {"grid pr=1 pc=1048577 batch=1 outputs=1 weights=1", "pc is '1048577'"},
  };
  for (const auto& [arguments, error] : cases) {
    const Result result = Show(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(error)) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

}  // namespace
}  // namespace cadre
