// Trains a small version of a model of the zoo under parallel plans, and compares the result of
// each plan with the result of one worker.
#include <cstdio>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "gflags/gflags.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/small_models.h"

DEFINE_string(model, "lenet", "model of model/zoo/; it is trained with few channels and features");
DEFINE_int32(ranks, 2, "number of ranks of the group; every mesh of that many ranks is compared");
DEFINE_string(
    plans, "all",
    "all: every pair of splits of every two neighboring layers, on every mesh; otherwise "
    "the number of random plans, or placed:N for N random plans whose layers are placed on "
    "some of the ranks");
DEFINE_int32(seed, 1, "seed of the random plans");
DEFINE_string(zoo, "model/zoo", "folder of the zoo's run files");
DEFINE_bool(progress, true, "print progress on standard error");

namespace cadre {
namespace {

absl::StatusOr<ComparisonResult> Compare() {
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, SmallModel(FLAGS_zoo, FLAGS_model));
  uint32_t plans = 0;
  const bool all = FLAGS_plans == "all";
  absl::string_view count = FLAGS_plans;
  const bool placed = absl::ConsumePrefix(&count, "placed:");
  if (!all && (!absl::SimpleAtoi(count, &plans) || plans == 0)) {
    return absl::InvalidArgumentError(
        "--plans must be 'all', a number of at least 1, or 'placed:' and such a number");
  }
  if (FLAGS_ranks < 1 || FLAGS_ranks > 64) {
    return absl::InvalidArgumentError("--ranks must be from 1 to 64");
  }
  Comparison comparison(spec, [] { return MakeCpuBackend(1); });
  const auto progress = [](size_t done, size_t of, const ComparisonResult& result) {
    if (!FLAGS_progress || (done % 50 != 0 && done != of)) return;
    std::fprintf(stderr, "\r%zu of %zu plans, %d failures, worst error %.2g ", done, of,
                 result.failures, result.worst_relative_error);
    if (done == of) std::fputc('\n', stderr);
  };
  std::mt19937_64 random(FLAGS_seed);
  return comparison.Run(placed ? comparison.PlacedPlans(FLAGS_ranks, plans, random)
                               : comparison.Plans(FLAGS_ranks, all ? 0 : plans, random),
                        progress);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage(
      "verifies that parallel plans compute what one worker computes.\n"
      "  equivalence --model resnet18 --ranks 4 --plans 200\n"
      "Prints one JSON line; exits with 1 if a plan failed.");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const auto result = cadre::Compare();
  if (!result.ok()) {
    std::fprintf(stderr, "equivalence: %s\n", std::string(result.status().message()).c_str());
    return 2;
  }
  for (const std::string& failure : result->messages) {
    std::fprintf(stderr, "%s\n", failure.c_str());
  }
  std::printf("%s\n", absl::StrFormat(R"({"model":"%s","ranks":%d,"plans":%d,"failures":%d,)"
                                      R"("worst_relative_error":%.3g,"tolerance":%.3g,"seed":%d})",
                                      FLAGS_model, FLAGS_ranks, result->plans, result->failures,
                                      result->worst_relative_error, cadre::kTolerance, FLAGS_seed)
                          .c_str());
  return result->failures == 0 ? 0 : 1;
}
