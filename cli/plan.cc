// A user may request a plan for more workers than a run may have, for example to compare it with
// the figures of a paper. The run file is therefore validated as a run of a single rank, and the
// number of ranks and the pins are set afterwards (LoadFor).
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/plan_render.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "lab/plan_report.h"
#include "lab/time_to_accuracy.h"
#include "model/validate.h"
#include "plan/cluster_profile.h"

namespace cadre {
namespace {

// The first of the flags that is given; "" if none is.
std::string FirstGiven(const CommandLine& line, const std::vector<std::string>& flags) {
  const auto given = std::find_if(flags.begin(), flags.end(),
                                  [&](const std::string& flag) { return line.Has(flag); });
  return given == flags.end() ? "" : *given;
}

// The link is given by --alpha and --bandwidth, or by --profile. Without it no time is predicted,
// so flags that concern times are rejected.
absl::Status CheckLink(const CommandLine& line) {
  const std::string link_flag = FirstGiven(line, {"alpha", "bandwidth", "gamma", "flops"});
  if (line.Has("profile")) {
    if (link_flag.empty()) return absl::OkStatus();
    return UsageError(absl::StrCat(
        "--", link_flag, " and --profile contradict: the profile states all links and speeds"));
  }
  const bool alpha = line.Has("alpha");
  if (alpha != line.Has("bandwidth")) {
    return UsageError(absl::StrCat("--", alpha ? "alpha" : "bandwidth", " requires --",
                                   alpha ? "bandwidth" : "alpha",
                                   ": together they describe the link"));
  }
  const std::string flag = FirstGiven(line, {"gamma", "flops", "compare", "epochs", "groups"});
  if (alpha || flag.empty()) return absl::OkStatus();
  return UsageError(absl::StrCat("--", flag, " requires --alpha and --bandwidth",
                                 link_flag.empty() ? ", or --profile" : "",
                                 ": without a link no time is predicted"));
}

absl::Status CheckRanks(const SpecFlags& flags, uint32_t workers) {
  const std::pair<const char*, std::optional<uint32_t>> axes[] = {
      {"model-ranks", flags.model_ranks}, {"space-ranks", flags.space_ranks}};
  for (const auto& [flag, ranks] : axes) {
    if (ranks.value_or(0) == 0 || workers % *ranks == 0) continue;
    return UsageError(absl::StrCat("--", flag, " is ", *ranks, ", which does not divide the ",
                                   workers, " workers of --workers"));
  }
  if (flags.mesh.empty()) return absl::OkStatus();
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : flags.mesh) {
    ranks = std::min<uint64_t>(ranks * axis.size(), uint64_t{1} << 32);
  }
  if (ranks == workers) return absl::OkStatus();
  return UsageError(absl::StrCat("--mesh and --workers contradict: the mesh has ", ranks,
                                 " ranks, not ", workers));
}

// Parses a list such as "data,model,auto", or "all". `data` is an alias of batch, `hybrid` of
// group-hybrid. Duplicates are dropped. Errors: UsageError listing the names.
absl::StatusOr<std::vector<Strategy>> ParseStrategies(absl::string_view names) {
  if (names == "all") return AllStrategies();
  std::vector<Strategy> strategies;
  for (absl::string_view name : absl::StrSplit(names, ',')) {
    if (name == "data") name = "batch";
    if (name == "hybrid") name = "group-hybrid";
    const std::optional<Strategy> strategy = StrategyFromName(name);
    if (!strategy) {
      return UsageError(
          absl::StrCat("--compare: unknown strategy '", name, "'; use all, or some of ",
                       absl::StrJoin(AllStrategies(), ", ", [](std::string* out, Strategy known) {
                         absl::StrAppend(out, StrategyName(known));
                       })));
    }
    if (!absl::c_linear_search(strategies, *strategy)) strategies.push_back(*strategy);
  }
  return strategies;
}

// Reads a run file with all rules of LoadSpec except the limits on ranks and, because neither the
// schedule nor the data matter here, on the batch.
absl::StatusOr<v1::RunSpec> LoadFor(const CommandLine& line, const SpecFlags& given) {
  const auto workers = line.Value<uint32_t>("workers");
  SpecFlags flags = given;
  flags.here = false;
  // These flags are input of the planner, not changes of the run.
  flags.groups.reset();
  flags.batch.reset();
  const bool large = workers > kMaxRanksPerGroup;
  flags.ranks = large ? 1 : workers;
  if (large) {
    flags.mesh.clear();
    flags.model_ranks = flags.space_ranks = 0;
  }
  CADRE_ASSIGN_OR_RETURN(LoadedSpec loaded, LoadSpec(line.argument(), flags));
  v1::Cluster& cluster = *loaded.spec.mutable_cluster();
  // LoadSpec would reject these pins if they are for more ranks than a run may have.
  if (large) ApplyPins(given, cluster);
  cluster.set_ranks_per_group(workers);
  if (given.batch) loaded.spec.set_batch_per_group(*given.batch);
  if (loaded.spec.micro_batches() > loaded.spec.batch_per_group()) {
    return UsageError(absl::StrCat(line.argument(), ": micro_batches is ",
                                   loaded.spec.micro_batches(), ", but a step has only ",
                                   loaded.spec.batch_per_group(), " samples"));
  }
  // --model-ranks without --space-ranks means no rows are split.
  if (given.model_ranks.value_or(0) > 0 && cluster.space_ranks() == 0) cluster.set_space_ranks(1);
  return std::move(loaded.spec);
}

absl::Status ReadEpochs(const std::string& path, PlanRequest& request) {
  CADRE_ASSIGN_OR_RETURN(request.epochs, ReadEpochsTable(path));
  CADRE_RETURN_IF_ERROR(Annotate(EpochsCurve::FromTable(*request.epochs).status(), path));
  if (request.samples) return absl::OkStatus();
  return UsageError("--epochs requires --samples: the run does not state the samples of an epoch");
}

// Reads the files that the command line names. Errors: LoadSpec's, ReadClusterProfile's,
// ReadEpochsTable's; their messages name file and line.
absl::Status ReadFiles(const CommandLine& line, const SpecFlags& flags, PlanRequest& request) {
  CADRE_ASSIGN_OR_RETURN(request.spec, LoadFor(line, flags));
  if (const auto profile = line.Get<std::string>("profile")) {
    CADRE_ASSIGN_OR_RETURN(request.profile, ReadClusterProfile(*profile));
  }
  if (const auto samples = line.Get<uint64_t>("samples")) {
    request.samples = *samples;
  } else if (request.spec.data().has_synthetic()) {
    request.samples = request.spec.data().synthetic().train_samples();
  }
  if (const auto epochs = line.Get<std::string>("epochs")) return ReadEpochs(*epochs, request);
  return absl::OkStatus();
}

// The request as far as the flags state it; ReadFiles adds the rest. Errors: UsageError naming
// the flag.
absl::StatusOr<PlanRequest> RequestOf(const CommandLine& line, const SpecFlags& flags) {
  PlanRequest request{.workers = static_cast<int>(line.Value<uint32_t>("workers")),
                      .flops = line.Get<double>("flops").value_or(0),
                      .sensitivity = line.Get<bool>("sensitivity")};
  CADRE_RETURN_IF_ERROR(CheckLink(line));
  CADRE_RETURN_IF_ERROR(CheckRanks(flags, line.Value<uint32_t>("workers")));
  if (const auto strategy = line.Get<std::string>("strategy")) {
    request.strategy = *StrategyFromName(*strategy);
  }
  if (const auto compare = line.Get<std::string>("compare")) {
    CADRE_ASSIGN_OR_RETURN(request.compare, ParseStrategies(*compare));
  }
  if (line.Has("bandwidth")) {
    request.link = {.alpha = line.Value<double>("alpha"),
                    .bandwidth = line.Value<double>("bandwidth"),
                    .gamma = line.Get<double>("gamma").value_or(0)};
  }
  if (const auto memory = line.Get<uint64_t>("memory")) request.memory_bytes = *memory;
  if (const auto size = line.Get<uint64_t>("bucket-elements")) request.bucket_elements = *size;
  if (const auto groups = line.Get<uint32_t>("groups")) request.max_groups = *groups;
  return request;
}

}  // namespace

absl::StatusOr<int> ShowPlan(const Invocation& in) {
  if (in.line.Has("placement")) return ShowPlacement(in);
  if (in.line.arguments().empty()) {
    return UsageError("missing argument RUN.textproto|MODEL");
  }
  if (in.line.Has("solver-seconds")) {
    return UsageError("--solver-seconds is only valid with --placement");
  }
  if (!in.line.Has("workers")) return UsageError("missing flag --workers");
  CADRE_ASSIGN_OR_RETURN(const SpecFlags flags, SpecFlagsOf(in.line));
  CADRE_ASSIGN_OR_RETURN(PlanRequest request, RequestOf(in.line, flags));
  if (const absl::Status read = ReadFiles(in.line, flags, request); !read.ok()) {
    return FailSpec(in.console, read);
  }
  const auto question = MakePlanQuestion(std::move(request));
  if (!question.ok()) return FailSpec(in.console, question.status());
  const absl::StatusOr<PlanReport> report = BuildPlanReport(**question);
  if (!report.ok()) return Fail(in.console, report.status());
  Print(ToJson(*report), ToText(*report), in.global, in.console);
  return kExitOk;
}

}  // namespace cadre
