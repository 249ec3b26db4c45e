#include "cli/command_options.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/pin_flags.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Which of several GPUs ("cuda:1") is each worker's own setting, so a run file has only "cuda".
absl::StatusOr<std::optional<v1::Cluster::Device>> DeviceOf(const CommandLine& line) {
  const std::optional<std::string> device = line.Get<std::string>("device");
  if (!device) return std::nullopt;
  if (*device == "cpu") return v1::Cluster::CPU;
  int gpu = 0;
  absl::string_view number = *device;
  const bool numbered =
      absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &gpu) && gpu >= 0;
  if (*device != "cuda" && !numbered) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device takes cpu, cuda or, for 'cadre local', cuda:N (N = 0, 1, ...), not "
                     "'",
                     *device, "'"));
  }
  if (numbered && line.verb()->name != "local") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", *device, " is only valid with 'cadre local': each worker of a ",
                     "cluster has its own --device; use --device cuda"));
  }
  return v1::Cluster::CUDA;
}

// The value of a flag whose choices are names of the enum.
template <typename Enum>
std::optional<Enum> EnumOf(const CommandLine& line, absl::string_view flag) {
  const std::optional<std::string> name = line.Get<std::string>(flag);
  return name ? EnumFromText<Enum>(*name) : std::nullopt;
}

// The folder of the other programs: this program's.
absl::StatusOr<std::string> ProgramsFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find the folder of the other programs");
  return self.parent_path().string();
}

// Where programs of this user store what can be computed again; empty: nowhere.
std::string UserCache() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return absl::StrCat(cache, "/cadre");
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? absl::StrCat(home, "/.cache/cadre") : "";
}

}  // namespace

GlobalOptions GlobalOptionsOf(const CommandLine& line) {
  return {
      .coordinator = line.Value<std::string>("coordinator"),
      .format = line.Value<std::string>("o") == "json" ? OutputFormat::kJson : OutputFormat::kTable,
      .timeout = line.Get<absl::Duration>("timeout"),
      .quiet = line.On("quiet")};
}

absl::StatusOr<SpecFlags> SpecFlagsOf(const CommandLine& line) {
  SpecFlags flags{.groups = line.Get<uint32_t>("groups"),
                  .ranks = line.Get<uint32_t>("ranks"),
                  .aggregators = line.Get<uint32_t>("aggregators"),
                  .model_ranks = line.Get<uint32_t>("model-ranks"),
                  .space_ranks = line.Get<uint32_t>("space-ranks"),
                  .collectives = EnumOf<v1::Cluster::CollectivePolicy>(line, "collectives"),
                  .overlap = EnumOf<v1::Cluster::Overlap>(line, "overlap"),
                  .precision = EnumOf<v1::RunSpec::Precision>(line, "precision"),
                  .batch = line.Get<uint32_t>("batch"),
                  .from = line.Get<std::string>("from"),
                  .checkpoint = line.Get<std::string>("checkpoint")};
  CADRE_ASSIGN_OR_RETURN(flags.device, DeviceOf(line));
  if (const auto mesh = line.Get<std::string>("mesh")) {
    CADRE_ASSIGN_OR_RETURN(flags.mesh, ParseMesh(*mesh));
  }
  if (const auto layers = line.Get<std::string>("layer")) {
    CADRE_ASSIGN_OR_RETURN(flags.layers, ParseLayerPins(*layers));
  }
  return flags;
}

absl::StatusOr<LocalOptions> LocalOptionsOf(const CommandLine& line) {
  LocalOptions options{.spec = line.argument(),
                       .dir = line.Get<std::string>("dir").value_or(""),
                       .threads = line.Value<uint32_t>("threads"),
                       .device = line.Get<std::string>("device").value_or(""),
                       .restart = line.Value<bool>("restart"),
                       .lease = absl::Milliseconds(line.Value<uint32_t>("lease-ms"))};
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFlagsOf(line));
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  return options;
}

absl::StatusOr<PlanOptions> PlanOptionsOf(const CommandLine& line) {
  if (line.arguments().empty()) {
    return absl::InvalidArgumentError("missing argument RUN.textproto|MODEL");
  }
  if (line.Has("solver-seconds")) {
    return absl::InvalidArgumentError("--solver-seconds is only valid with --placement");
  }
  if (!line.Has("workers")) return absl::InvalidArgumentError("missing flag --workers");
  PlanOptions options{.spec = line.argument(),
                      .workers = line.Value<uint32_t>("workers"),
                      .batch = line.Get<uint32_t>("batch"),
                      .alpha = line.Get<double>("alpha"),
                      .bandwidth = line.Get<double>("bandwidth"),
                      .gamma = line.Get<double>("gamma"),
                      .flops = line.Get<double>("flops"),
                      .memory = line.Get<uint64_t>("memory"),
                      .profile = line.Get<std::string>("profile"),
                      .bucket_elements = line.Get<uint64_t>("bucket-elements"),
                      .groups = line.Get<uint32_t>("groups"),
                      .epochs = line.Get<std::string>("epochs"),
                      .samples = line.Get<uint64_t>("samples"),
                      .sensitivity = line.Get<bool>("sensitivity")};
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFlagsOf(line));
  // These are questions to the planner, not changes of the run.
  options.flags.groups.reset();
  options.flags.batch.reset();
  if (const auto strategy = line.Get<std::string>("strategy")) {
    CADRE_ASSIGN_OR_RETURN(options.strategy, ParseStrategy(*strategy));
  }
  if (const auto compare = line.Get<std::string>("compare")) {
    CADRE_ASSIGN_OR_RETURN(options.compare, ParseStrategies(*compare));
  }
  CADRE_RETURN_IF_ERROR(CheckPlanOptions(options));
  return options;
}

absl::StatusOr<PlacementOptions> PlacementOptionsOf(const CommandLine& line) {
  for (const std::string& flag : line.given()) {
    if (flag == "placement" || flag == "solver-seconds") continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " has no effect with --placement"));
  }
  if (!line.arguments().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", line.argument(), "'"));
  }
  PlacementOptions options{.graph = line.Value<std::string>("placement"),
                           .solver_seconds = line.Value<double>("solver-seconds")};
  CADRE_RETURN_IF_ERROR(CheckPlacementOptions(options));
  return options;
}

absl::StatusOr<ProbeOptions> ProbeOptionsOf(const CommandLine& line) {
  ProbeOptions options{.spec = line.argument(),
                       .workers = line.Value<uint32_t>("workers"),
                       .threads = line.Value<uint32_t>("threads"),
                       .rank = line.Value<uint32_t>("rank"),
                       .meet_timeout = line.Value<absl::Duration>("meet-timeout"),
                       .output = line.Get<std::string>("output").value_or(""),
                       .cache = line.Has("cache") ? line.Value<std::string>("cache") : UserCache(),
                       .fresh = line.On("fresh")};
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFlagsOf(line));
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  const std::string peers = line.Get<std::string>("peers").value_or("");
  if (!peers.empty()) options.peers = absl::StrSplit(peers, ',');
  CADRE_RETURN_IF_ERROR(CheckProbeOptions(options));
  return options;
}

absl::StatusOr<MeasureOptions> MeasureOptionsOf(const CommandLine& line) {
  MeasureOptions options{.spec = line.argument(),
                         .target = line.Value<double>("target"),
                         .batch = line.Get<uint32_t>("batch"),
                         .max_epochs = line.Get<uint32_t>("max-epochs"),
                         .rate = *RateRuleFromName(line.Value<std::string>("rate")),
                         .output = line.Get<std::string>("output").value_or(""),
                         .threads = line.Value<uint32_t>("threads")};
  if (!(options.target > 0 && options.target <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--target takes a fraction of the test samples, in (0, 1], not ", options.target));
  }
  CADRE_ASSIGN_OR_RETURN(options.workers, ParseWorkers(line.Value<std::string>("workers")));
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  return options;
}

TraceOptions TraceOptionsOf(const CommandLine& line) {
  return {.run = line.argument(),
          .group = line.Value<uint32_t>("group"),
          .steps = line.Value<uint32_t>("steps"),
          .output = line.Get<std::string>("output").value_or("")};
}

}  // namespace cadre
