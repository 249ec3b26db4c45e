// Input that `cadre formula` refuses; worked_numbers_test.cc tests the values.
#include "cli/formulas.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Result Show(const std::string& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int code =
      ShowFormula({}, absl::StrSplit(arguments, ' ', absl::SkipEmpty()), {.out = out, .err = err});
  return {code, out.str(), err.str()};
}

TEST(FormulasTest, ListsFormulas) {
  EXPECT_THAT(Show("").out, AllOf(HasSubstr("butterfly-limit"), HasSubstr("group-hybrid"),
                                  HasSubstr("[gamma=X]"), HasSubstr("forward=X,Y,...")));
}

TEST(FormulasTest, PrintsOneNumberPerLine) {
  EXPECT_EQ(Show("halo batch=2 width=5 channels=3 kernel=3").out, "words 30.0\n");
}

// The largest numbers are evaluated without delay.
TEST(FormulasTest, TakesLargeNumbers) {
  EXPECT_EQ(Show("averaging parameters=900000000000 groups=1048576 ranks=1048576").exit_code, 0);
}

TEST(FormulasTest, RefusesInvalidInput) {
  const struct {
    const char* arguments;
    const char* error;
  } cases[] = {
      {"nowhere", "unknown formula 'nowhere'"},
      {"halo batch=2 width=5 channels=3", "missing kernel"},
      {"halo batch=2 width=5 channels=3 kernel=3 depth=1", "no parameter 'depth'"},
      {"halo batch=2 width=5 channels=3 kernel=3 kernel=3", "duplicate kernel"},
      {"halo batch=2.5 width=5 channels=3 kernel=3", "batch is '2.5', but must be a whole number"},
      {"halo batch=0 width=5 channels=3 kernel=3", "batch is '0'"},
      {"butterfly-limit ranks=6 alpha=1 bandwidth=1", "a power of two"},
      {"ring ranks=6 bytes=1 alpha=1 bandwidth=0", "bandwidth is '0'"},
      {"ring ranks=6 bytes=1 alpha=-1 bandwidth=1", "alpha is '-1'"},
      {"overlap forward=1,2 backward=1 communication=1,2", "one number per layer"},
      {"overlap forward=1, backward=1 communication=1", "forward is ''"},
      // Loops without end, overflow, results that are not finite.
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
       "groups of 4 do not divide 6 workers"},
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
