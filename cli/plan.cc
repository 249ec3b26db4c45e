// A user may request a plan for more workers than a run may have, for example to compare it with
// the figures of a paper. The run file is therefore validated as a run of a single rank, and the
// number of ranks and the pins are set afterwards (LoadFor).
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/plan_render.h"
#include "cli/spec_file.h"
#include "model/validate.h"
#include "plan/cluster_profile.h"
#include "plan/cost/time_to_accuracy.h"
#include "plan/report/plan_report.h"

namespace cadre {
namespace {

// The first of the flags that is given; "" if none is.
std::string FirstGiven(const CommandLine& line, const std::vector<std::string>& flags) {
  const auto given = std::find_if(flags.begin(), flags.end(),
                                  [&](const std::string& flag) { return line.Has(flag); });
  return given == flags.end() ? "" : *given;
}

absl::Status CheckLink(const CommandLine& line) {
  const std::string flag = FirstGiven(line, {"alpha", "bandwidth", "gamma", "flops"});
  if (flag.empty()) return absl::OkStatus();
  if (line.Has("profile")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, " and --profile contradict: the profile states all links and speeds"));
  }
  const bool alpha = line.Has("alpha");
  if (alpha != line.Has("bandwidth")) {
    return absl::InvalidArgumentError(absl::StrCat("--", alpha ? "alpha" : "bandwidth",
                                                   " requires --", alpha ? "bandwidth" : "alpha",
                                                   ": together they describe the link"));
  }
  if (alpha) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, " requires --alpha and --bandwidth: without a link nothing is predicted"));
}

// Rejects flags for parts of the report that consist of times if nothing states how fast the
// cluster is.
absl::Status CheckTimed(const CommandLine& line) {
  const std::string flag = FirstGiven(line, {"compare", "epochs", "groups"});
  if (flag.empty() || line.Has("bandwidth") || line.Has("profile")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag,
                   " requires --alpha and --bandwidth, or --profile: without a link nothing is "
                   "predicted"));
}

absl::Status CheckRanks(const SpecFlags& flags, uint32_t workers) {
  const std::pair<const char*, std::optional<uint32_t>> axes[] = {
      {"model-ranks", flags.model_ranks}, {"space-ranks", flags.space_ranks}};
  for (const auto& [flag, ranks] : axes) {
    if (ranks.value_or(0) == 0 || workers % *ranks == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " is ", *ranks,
                                                   ", which does not divide the ", workers,
                                                   " workers of --workers"));
  }
  if (flags.mesh.empty()) return absl::OkStatus();
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : flags.mesh) {
    ranks = std::min<uint64_t>(ranks * axis.size(), uint64_t{1} << 32);
  }
  if (ranks == workers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--mesh and --workers contradict: the mesh has ",
                                                 ranks, " ranks, not ", workers));
}

// Parses a name such as "uniform-grid". Errors: InvalidArgument listing the names.
absl::StatusOr<Strategy> ParseStrategy(absl::string_view name) {
  if (const std::optional<Strategy> strategy = StrategyFromName(name)) return *strategy;
  const std::string known = absl::StrJoin(
      AllStrategies(), ", ",
      [](std::string* out, Strategy strategy) { absl::StrAppend(out, StrategyName(strategy)); });
  return absl::InvalidArgumentError(absl::StrCat("unknown strategy '", name, "'; use ", known));
}

// Parses a list such as "data,model,auto", or "all". `data` is an alias of batch, `hybrid` of
// group-hybrid. Duplicates are dropped.
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

// Sets the pins after LoadSpec, which rejects pins for more ranks than a run may have.
void Pin(const SpecFlags& flags, v1::Cluster& cluster) {
  cluster.set_model_ranks(flags.model_ranks.value_or(0));
  cluster.set_space_ranks(flags.space_ranks.value_or(0));
  if (!flags.mesh.empty()) {
    cluster.clear_model_ranks();
    cluster.clear_space_ranks();
    cluster.mutable_mesh()->Assign(flags.mesh.begin(), flags.mesh.end());
  }
  for (const v1::LayerPin& pin : flags.layers) {
    auto& layers = *cluster.mutable_layer();
    layers.erase(std::remove_if(layers.begin(), layers.end(),
                                [&](const auto& other) { return other.layer() == pin.layer(); }),
                 layers.end());
    *cluster.add_layer() = pin;
  }
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
  cluster.set_ranks_per_group(workers);
  if (given.batch) loaded.spec.set_batch_per_group(*given.batch);
  if (loaded.spec.micro_batches() > loaded.spec.batch_per_group()) {
    return absl::InvalidArgumentError(
        absl::StrCat(line.argument(), ": micro_batches is ", loaded.spec.micro_batches(),
                     ", but a step has only ", loaded.spec.batch_per_group(), " samples"));
  }
  if (large) Pin(given, cluster);
  // --model-ranks without --space-ranks means no rows are split.
  if (given.model_ranks.value_or(0) > 0 && cluster.space_ranks() == 0) cluster.set_space_ranks(1);
  return std::move(loaded.spec);
}

absl::Status ReadEpochs(const std::string& path, PlanRequest& request) {
  CADRE_ASSIGN_OR_RETURN(request.epochs, ReadEpochsTable(path));
  CADRE_RETURN_IF_ERROR(Annotate(EpochsCurve::FromTable(*request.epochs).status(), path));
  if (request.samples) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--epochs requires --samples: the run does not state the samples of an epoch");
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

// The request as far as the flags state it; ReadFiles adds the rest. Errors: InvalidArgument naming
// the flag.
absl::StatusOr<PlanRequest> RequestOf(const CommandLine& line, const SpecFlags& flags) {
  PlanRequest request{.workers = static_cast<int>(line.Value<uint32_t>("workers")),
                      .flops = line.Get<double>("flops").value_or(0),
                      .sensitivity = line.Get<bool>("sensitivity")};
  CADRE_RETURN_IF_ERROR(CheckLink(line));
  CADRE_RETURN_IF_ERROR(CheckTimed(line));
  CADRE_RETURN_IF_ERROR(CheckRanks(flags, line.Value<uint32_t>("workers")));
  if (const auto strategy = line.Get<std::string>("strategy")) {
    CADRE_ASSIGN_OR_RETURN(request.strategy, ParseStrategy(*strategy));
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
    return absl::InvalidArgumentError("missing argument RUN.textproto|MODEL");
  }
  if (in.line.Has("solver-seconds")) {
    return absl::InvalidArgumentError("--solver-seconds is only valid with --placement");
  }
  if (!in.line.Has("workers")) return absl::InvalidArgumentError("missing flag --workers");
  CADRE_ASSIGN_OR_RETURN(const SpecFlags flags, SpecFlagsOf(in.line));
  CADRE_ASSIGN_OR_RETURN(PlanRequest request, RequestOf(in.line, flags));
  if (const absl::Status read = ReadFiles(in.line, flags, request); !read.ok()) {
    return FailSpec(in.console, read);
  }
  const auto question = MakePlanQuestion(std::move(request));
  if (!question.ok()) return FailSpec(in.console, question.status());
  const absl::StatusOr<PlanReport> report = BuildPlanReport(**question);
  if (!report.ok()) return Fail(in.console, report.status());
  Print(*report, in.global, in.console);
  return kExitOk;
}

}  // namespace cadre
