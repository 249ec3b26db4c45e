#include "cli/plan_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace cadre {
namespace {

// Seconds, or bytes or operations a second: sums of products of these stay finite.
constexpr double kMostSeconds = 1e12;
constexpr double kLeastRate = 1e-12;
constexpr double kMostRate = 1e30;

absl::Status NotNegative(absl::string_view flag, std::optional<double> value) {
  if (!value || (*value >= 0 && *value <= kMostSeconds)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be 0 or more, not ", *value,
                                                 *value > 0 ? "; 1e12 is the most" : ""));
}

absl::Status Positive(absl::string_view flag, std::optional<double> value) {
  if (!value || (*value >= kLeastRate && *value <= kMostRate)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be above 0, not ", *value,
                                                 *value > 0 ? "; 1e-12 to 1e30 is taken" : ""));
}

absl::Status Divides(absl::string_view flag, std::optional<uint32_t> ranks, uint32_t workers) {
  if (!ranks || *ranks == 0 || workers % *ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is ", *ranks,
                                                 ", which does not divide the ", workers,
                                                 " workers of --workers"));
}

// The first of the flags that describe a link; empty: none was given.
std::string GivenOfLink(const PlanOptions& options) {
  if (options.alpha) return "alpha";
  if (options.bandwidth) return "bandwidth";
  if (options.gamma) return "gamma";
  return options.flops ? "flops" : "";
}

absl::Status CheckLink(const PlanOptions& options) {
  CADRE_RETURN_IF_ERROR(NotNegative("alpha", options.alpha));
  CADRE_RETURN_IF_ERROR(Positive("bandwidth", options.bandwidth));
  CADRE_RETURN_IF_ERROR(NotNegative("gamma", options.gamma));
  CADRE_RETURN_IF_ERROR(Positive("flops", options.flops));
  if (const std::string flag = GivenOfLink(options); options.profile && !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, " and --profile contradict: the profile says how fast everything is"));
  }
  if (options.alpha.has_value() != options.bandwidth.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.alpha ? "alpha" : "bandwidth", " needs --",
                     options.alpha ? "bandwidth" : "alpha", " beside it: both describe the link"));
  }
  if (!options.bandwidth && (options.gamma || options.flops)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.gamma ? "gamma" : "flops",
                     " needs --alpha and --bandwidth beside it: without a link nothing is "
                     "predicted"));
  }
  return absl::OkStatus();
}

// The mesh of --mesh, which sets the workers everywhere else.
absl::Status CheckMesh(const PlanOptions& options) {
  if (options.flags.mesh.empty()) return absl::OkStatus();
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : options.flags.mesh) {
    ranks = std::min<uint64_t>(ranks * axis.size(), uint64_t{1} << 32);
  }
  if (ranks == options.workers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--mesh and --workers contradict: the mesh has ",
                                                 ranks, " ranks, not ", options.workers));
}

std::string StrategyNames() {
  return absl::StrJoin(AllStrategies(), ", ", [](std::string* out, Strategy strategy) {
    absl::StrAppend(out, StrategyName(strategy));
  });
}

}  // namespace

absl::Status CheckPlanOptions(const PlanOptions& options) {
  if (options.workers == 0 || options.workers > kMostPlannedWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--workers must say how many workers the group has, 1 to ", kMostPlannedWorkers));
  }
  if (options.batch == 0u) return absl::InvalidArgumentError("--batch must be at least 1");
  if (options.batch.value_or(1) > kMostPlannedBatch) {
    return absl::InvalidArgumentError(absl::StrCat("--batch must be at most ", kMostPlannedBatch));
  }
  if (options.memory == 0u) return absl::InvalidArgumentError("--memory must be at least 1 byte");
  if (options.samples == 0u) return absl::InvalidArgumentError("--samples must be at least 1");
  CADRE_RETURN_IF_ERROR(CheckLink(options));
  if (!options.compare.empty() && !options.link_given() && !options.profile) {
    return absl::InvalidArgumentError(
        "--compare needs --alpha and --bandwidth, or --profile: what is compared is time");
  }
  if (options.epochs && !options.link_given() && !options.profile) {
    return absl::InvalidArgumentError(
        "--epochs needs --alpha and --bandwidth, or --profile: time to a target needs the time of "
        "a step");
  }
  CADRE_RETURN_IF_ERROR(CheckMesh(options));
  if (options.groups && !options.link_given() && !options.profile) {
    return absl::InvalidArgumentError(
        "--groups needs --profile, or --alpha and --bandwidth, beside it: without a link nothing "
        "is "
        "predicted");
  }
  CADRE_RETURN_IF_ERROR(Divides("model_ranks", options.flags.model_ranks, options.workers));
  return Divides("space_ranks", options.flags.space_ranks, options.workers);
}

absl::StatusOr<Strategy> ParseStrategy(absl::string_view name) {
  if (const std::optional<Strategy> strategy = StrategyFromName(name)) return *strategy;
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no strategy; there are ", StrategyNames()));
}

absl::StatusOr<std::vector<Strategy>> ParseStrategies(absl::string_view names) {
  if (names == "all") return AllStrategies();
  std::vector<Strategy> strategies;
  for (absl::string_view name : absl::StrSplit(names, ',')) {
    if (name == "data") name = "batch";
    if (name == "hybrid") name = "group-hybrid";
    CADRE_ASSIGN_OR_RETURN(const Strategy strategy, ParseStrategy(name));
    const bool twice =
        std::find(strategies.begin(), strategies.end(), strategy) != strategies.end();
    if (!twice) strategies.push_back(strategy);
  }
  return strategies;
}

}  // namespace cadre
