#include "cli/plan_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace cadre {
namespace {

// Within these bounds sums of products of seconds and rates stay finite.
constexpr double kMaxSeconds = 1e12;
constexpr double kMinRate = 1e-12;
constexpr double kMaxRate = 1e30;

absl::Status NotNegative(absl::string_view flag, std::optional<double> value) {
  if (!value || (*value >= 0 && *value <= kMaxSeconds)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " must be 0 to ", kMaxSeconds, ", not ", *value));
}

absl::Status Positive(absl::string_view flag, std::optional<double> value) {
  if (!value || (*value >= kMinRate && *value <= kMaxRate)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be above 0 (", kMinRate, " to ",
                                                 kMaxRate, "), not ", *value));
}

absl::Status Divides(absl::string_view flag, std::optional<uint32_t> ranks, uint32_t workers) {
  if (!ranks || *ranks == 0 || workers % *ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is ", *ranks,
                                                 ", which does not divide the ", workers,
                                                 " workers of --workers"));
}

// The first given flag of those that describe a link; empty: none.
std::string LinkFlag(const PlanOptions& options) {
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
  if (const std::string flag = LinkFlag(options); options.profile && !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, " and --profile contradict: the profile states all links and speeds"));
  }
  if (options.alpha.has_value() != options.bandwidth.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.alpha ? "alpha" : "bandwidth", " requires --",
                     options.alpha ? "bandwidth" : "alpha", ": together they describe the link"));
  }
  if (!options.bandwidth && (options.gamma || options.flops)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.gamma ? "gamma" : "flops",
                     " requires --alpha and --bandwidth: without a link nothing is predicted"));
  }
  return absl::OkStatus();
}

// Parts of the report that are about time.
absl::Status CheckTimed(const PlanOptions& options) {
  if (options.link_given() || options.profile) return absl::OkStatus();
  const char* const flag = !options.compare.empty() ? "compare"
                           : options.epochs         ? "epochs"
                           : options.groups         ? "groups"
                                                    : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag,
                   " requires --alpha and --bandwidth, or --profile: without a link nothing is "
                   "predicted"));
}

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
  if (options.workers == 0 || options.workers > kMaxPlannedWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers must be 1 to ", kMaxPlannedWorkers, ", not ", options.workers));
  }
  if (options.batch == 0u) return absl::InvalidArgumentError("--batch must be at least 1");
  if (options.batch.value_or(1) > kMaxPlannedBatch) {
    return absl::InvalidArgumentError(absl::StrCat("--batch must be at most ", kMaxPlannedBatch));
  }
  if (options.memory == 0u) return absl::InvalidArgumentError("--memory must be at least 1 byte");
  if (options.samples == 0u) return absl::InvalidArgumentError("--samples must be at least 1");
  CADRE_RETURN_IF_ERROR(CheckLink(options));
  CADRE_RETURN_IF_ERROR(CheckTimed(options));
  CADRE_RETURN_IF_ERROR(CheckMesh(options));
  CADRE_RETURN_IF_ERROR(Divides("model-ranks", options.flags.model_ranks, options.workers));
  return Divides("space-ranks", options.flags.space_ranks, options.workers);
}

absl::StatusOr<Strategy> ParseStrategy(absl::string_view name) {
  if (const std::optional<Strategy> strategy = StrategyFromName(name)) return *strategy;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown strategy '", name, "'; use ", StrategyNames()));
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
