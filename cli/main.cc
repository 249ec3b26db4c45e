// cadre: the program people use. Parses the command line and calls the verb.
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/control.h"
#include "cli/formulas.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/local.h"
#include "cli/measure_epochs.h"
#include "cli/options.h"
#include "cli/pin_flags.h"
#include "cli/placement.h"
#include "cli/plan.h"
#include "cli/probe.h"
#include "cli/queries.h"
#include "cli/trace.h"
#include "proto/schema_hash.h"
#include "spec/plan_collectives.h"

DEFINE_string(coordinator, "127.0.0.1:7000", "host:port of the coordinator");
DEFINE_string(o, "table", "form of what goes to stdout: table or json");
DEFINE_string(timeout, "", "give up after so long, such as 90s or 5m");
DEFINE_bool(quiet, false, "no progress and no hints on stderr");
DEFINE_string(color, "auto", "auto (on terminals) or never");
DEFINE_bool(detach, false, "run: print the run's id and leave");
DEFINE_int32(groups, -1, "local, run: groups, -1 takes the spec's; plan: the most to try");
DEFINE_int32(ranks, -1, "local, run: workers in each group; -1 takes the spec's");
DEFINE_int32(aggregators, -1, "local, run: aggregator shards; -1 takes the spec's");
DEFINE_int32(model_ranks, -1, "local, run: ranks along the model axis; -1 takes the spec's");
DEFINE_int32(space_ranks, -1, "local, run: ranks along the space axis; -1 takes the spec's");
DEFINE_string(mesh, "", "local, run, plan: axes and their ranks; empty takes the spec's");
DEFINE_string(layer, "", "local, run, plan: layers and how each is cut; empty takes the spec's");
DEFINE_string(collectives, "", "local, run, plan: policy of collectives; empty takes the spec's");
DEFINE_string(overlap, "", "local, run: on or off; empty takes the spec's");
DEFINE_string(device, "", "local, run: cpu or cuda, local also cuda:N; empty takes the spec's");
DEFINE_string(precision, "", "local, run: fp32, tf32 or bf16; empty takes the spec's");
DEFINE_string(from, "", "local, run: checkpoint to begin from; empty takes the spec's");
DEFINE_string(checkpoint, "", "local, run: folder for checkpoints; empty takes the spec's");
DEFINE_uint32(threads, 1, "local, measure-epochs, probe: compute threads of each worker");
DEFINE_string(dir, "", "local: folder to keep store, data and logs in");
DEFINE_bool(restart, true, "local: start processes again that die");
DEFINE_uint32(lease_ms, 5000, "local: silence after which a worker is taken for lost");
DEFINE_string(workers, "", "plan: workers of the group; measure-epochs: numbers of them");
DEFINE_uint32(batch, 0, "plan, measure-epochs: samples of a step; not given takes the spec's");
DEFINE_double(target, 0, "measure-epochs: test accuracy to reach");
DEFINE_uint32(max_epochs, 0, "measure-epochs: when to give up; not given takes the spec's");
DEFINE_string(rate, "linear", "measure-epochs: linear, sqrt or none");
DEFINE_double(alpha, 0, "plan: seconds that a message takes however short");
DEFINE_double(bandwidth, 0, "plan: bytes a second of a worker's link, each way");
DEFINE_double(gamma, 0, "plan: seconds to add a byte to another");
DEFINE_double(flops, 0, "plan: floating-point operations a second of a worker");
DEFINE_uint64(bucket_elements, 0, "plan: elements at which a bucket is full");
DEFINE_uint64(memory, 0, "plan: bytes of a worker");
DEFINE_string(profile, "", "plan: file of a cluster profile, in place of link and speed");
DEFINE_string(strategy, "auto", "plan: how layers may be cut; auto searches all ways");
DEFINE_string(compare, "", "plan: strategies to put side by side, or all");
DEFINE_string(epochs, "", "plan: file of a table of epochs; predicts the time to its target");
DEFINE_uint64(samples, 0, "plan: samples of a pass over the data; not given takes the spec's");
DEFINE_bool(sensitivity, false, "plan: search what would change the answer");
DEFINE_string(placement, "", "plan: file of an operator graph, to be placed on its devices");
DEFINE_double(solver_seconds, 10, "plan --placement: when the solver gives up");
DEFINE_string(peers, "", "probe: host:port of every host, by rank");
DEFINE_uint32(rank, 0, "probe: this host among --peers");
DEFINE_string(meet_timeout, "60s", "probe: how long to wait until all of --peers have come");
DEFINE_string(cache, "", "probe: folder of what was measured before; not given takes the user's");
DEFINE_bool(fresh, false, "probe: measure again what is in the cache");
DEFINE_int32(group, 0, "trace: the group");
DEFINE_int32(steps, 3, "trace: how many steps, 1 to 100");
DEFINE_string(output, "", "trace, measure-epochs, probe: file to write");
DEFINE_string(O, "", "trace, measure-epochs, probe: as --output");

namespace cadre {
namespace {

// The flags of this file (not those that libraries define), behind the parser's interface.
class OwnFlags : public FlagRegistry {
 public:
  OwnFlags() {
    std::vector<gflags::CommandLineFlagInfo> all;
    gflags::GetAllFlags(&all);
    for (const gflags::CommandLineFlagInfo& flag : all) {
      if (flag.filename == __FILE__) takes_value_[flag.name] = flag.type != "bool";
    }
  }
  std::optional<bool> TakesValue(absl::string_view name) const override {
    if (name == "help" || name == "h" || name == "version") return false;
    const auto flag = takes_value_.find(std::string(name));
    if (flag == takes_value_.end()) return std::nullopt;
    return flag->second;
  }
  absl::Status Set(absl::string_view name, absl::string_view value) override {
    if (name == "help" || name == "h") help_ = true;
    if (name == "version") version_ = true;
    if (!takes_value_.contains(std::string(name))) return absl::OkStatus();
    const std::string done =
        gflags::SetCommandLineOption(std::string(name).c_str(), std::string(value).c_str());
    if (!done.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("flag --", name, " does not take '", value, "'"));
  }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names = {"help", "version"};
    for (const auto& [name, takes_value] : takes_value_) names.push_back(name);
    return names;
  }
  bool help() const { return help_; }
  bool version() const { return version_; }

 private:
  std::map<std::string, bool> takes_value_;
  bool help_ = false;
  bool version_ = false;
};

int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

Console MakeConsole() {
  const bool out_terminal = isatty(STDOUT_FILENO) != 0;
  const bool err_terminal = isatty(STDERR_FILENO) != 0;
  return {.out = std::cout,
          .err = std::cerr,
          .out_terminal = out_terminal,
          .err_terminal = err_terminal,
          .color = FLAGS_color != "never",
          .width = TerminalWidth};
}

absl::StatusOr<GlobalOptions> GlobalsFromFlags() {
  GlobalOptions options;
  options.coordinator = FLAGS_coordinator;
  options.quiet = FLAGS_quiet;
  if (FLAGS_o == "json") {
    options.format = OutputFormat::kJson;
  } else if (FLAGS_o != "table") {
    return absl::InvalidArgumentError(absl::StrCat("-o takes table or json, not '", FLAGS_o, "'"));
  }
  if (FLAGS_color != "auto" && FLAGS_color != "never") {
    return absl::InvalidArgumentError(
        absl::StrCat("--color takes auto or never, not '", FLAGS_color, "'"));
  }
  if (!FLAGS_timeout.empty()) {
    CADRE_ASSIGN_OR_RETURN(const double seconds, ParseSeconds(FLAGS_timeout));
    options.timeout = absl::Seconds(seconds);
  }
  return options;
}

std::optional<uint32_t> IfGiven(int32_t value) {
  if (value < 0) return std::nullopt;
  return static_cast<uint32_t>(value);
}

std::optional<std::string> IfGiven(const std::string& value) {
  if (value.empty()) return std::nullopt;
  return value;
}

bool IsGiven(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

absl::StatusOr<std::optional<v1::CollectivePolicy>> PolicyFromFlags() {
  if (!IsGiven("collectives")) return std::nullopt;
  const std::optional<v1::CollectivePolicy> policy = PolicyFromName(FLAGS_collectives);
  if (policy) return policy;
  return absl::InvalidArgumentError(
      absl::StrCat("--collectives takes paper, ring, butterfly, halving-doubling, auto or, on GPUs "
                   "(--device cuda), native, not '",
                   FLAGS_collectives, "'"));
}

absl::StatusOr<std::optional<v1::Overlap>> OverlapFromFlags() {
  if (!IsGiven("overlap")) return std::nullopt;
  if (FLAGS_overlap == "on") return v1::ON;
  if (FLAGS_overlap == "off") return v1::OFF;
  return absl::InvalidArgumentError(
      absl::StrCat("--overlap takes on or off, not '", FLAGS_overlap, "'"));
}

bool NamesOneGpu() { return absl::StartsWith(FLAGS_device, "cuda:"); }

// Which of several GPUs is the worker's matter.
absl::StatusOr<std::optional<v1::ComputeDevice>> DeviceFromFlags() {
  if (!IsGiven("device")) return std::nullopt;
  if (FLAGS_device == "cpu") return v1::CPU;
  int gpu = 0;
  absl::string_view number = FLAGS_device;
  if (FLAGS_device == "cuda" || (NamesOneGpu() && absl::ConsumePrefix(&number, "cuda:") &&
                                 absl::SimpleAtoi(number, &gpu) && gpu >= 0)) {
    return v1::CUDA;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device takes cpu, cuda or, for 'cadre local', cuda:N (N = 0, 1, ...), not '",
                   FLAGS_device, "'"));
}

absl::StatusOr<std::optional<v1::Precision>> PrecisionFromFlags() {
  if (!IsGiven("precision")) return std::nullopt;
  if (FLAGS_precision == "fp32") return v1::FP32;
  if (FLAGS_precision == "tf32") return v1::TF32;
  if (FLAGS_precision == "bf16") return v1::BF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--precision takes fp32, tf32 or bf16, not '", FLAGS_precision, "'"));
}

absl::StatusOr<SpecFlags> SpecFromFlags() {
  if (FLAGS_groups == 0) return absl::InvalidArgumentError("--groups must be at least 1");
  if (FLAGS_ranks == 0) return absl::InvalidArgumentError("--ranks must be at least 1");
  CADRE_ASSIGN_OR_RETURN(const auto collectives, PolicyFromFlags());
  CADRE_ASSIGN_OR_RETURN(const auto overlap, OverlapFromFlags());
  CADRE_ASSIGN_OR_RETURN(const auto device, DeviceFromFlags());
  CADRE_ASSIGN_OR_RETURN(const auto precision, PrecisionFromFlags());
  SpecFlags pins;
  if (IsGiven("mesh")) {
    CADRE_ASSIGN_OR_RETURN(pins.mesh, ParseMesh(FLAGS_mesh));
  }
  if (IsGiven("layer")) {
    CADRE_ASSIGN_OR_RETURN(pins.layers, ParseLayerPins(FLAGS_layer));
  }
  return SpecFlags{.groups = IfGiven(FLAGS_groups),
                   .ranks = IfGiven(FLAGS_ranks),
                   .aggregators = IfGiven(FLAGS_aggregators),
                   .model_ranks = IfGiven(FLAGS_model_ranks),
                   .space_ranks = IfGiven(FLAGS_space_ranks),
                   .mesh = std::move(pins.mesh),
                   .layers = std::move(pins.layers),
                   .collectives = collectives,
                   .overlap = overlap,
                   .device = device,
                   .precision = precision,
                   .from = IfGiven(FLAGS_from),
                   .checkpoint = IfGiven(FLAGS_checkpoint)};
}

// The folder of the other programs: this program's.
absl::StatusOr<std::string> ProgramsFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find the folder of the other programs");
  return self.parent_path().string();
}

// Of --output and -O, which are one flag.
absl::StatusOr<std::string> OutputFromFlags() {
  if (!FLAGS_O.empty() && !FLAGS_output.empty()) {
    return absl::InvalidArgumentError("-O and --output are the same flag; give one of them");
  }
  return FLAGS_O.empty() ? FLAGS_output : FLAGS_O;
}

absl::StatusOr<LocalOptions> LocalFromFlags(const std::string& spec) {
  if (FLAGS_threads == 0) return absl::InvalidArgumentError("--threads must be at least 1");
  LocalOptions options;
  options.spec = spec;
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFromFlags());
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  options.dir = FLAGS_dir;
  options.threads = FLAGS_threads;
  options.device = FLAGS_device;
  options.restart = FLAGS_restart;
  options.lease = absl::Milliseconds(FLAGS_lease_ms);
  return options;
}

int UsageError(absl::string_view message, const Verb* verb) {
  std::cerr << "cadre: " << message << "\n";
  if (verb != nullptr) {
    std::cerr << "usage: cadre " << verb->name << (verb->usage.empty() ? "" : " ") << verb->usage
              << "\n";
  }
  std::cerr << "'cadre help" << (verb == nullptr ? "" : " ")
            << (verb == nullptr ? absl::string_view() : verb->name) << "' says more" << std::endl;
  return kExitUsage;
}

int UnknownVerb(const std::string& word) {
  std::vector<std::string> names;
  for (const Verb& verb : Verbs()) names.emplace_back(verb.name);
  const std::optional<std::string> nearest = Nearest(word, names);
  return UsageError(
      absl::StrCat("unknown verb '", word, "'",
                   nearest ? absl::StrCat("; did you mean '", *nearest, "'?") : std::string()),
      nullptr);
}

int Help(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "help") {
    std::cout << GeneralHelp() << std::flush;
    return kExitOk;
  }
  const Verb* verb = FindVerb(words[0]);
  if (verb == nullptr) return UnknownVerb(words[0]);
  std::cout << VerbHelp(*verb) << std::flush;
  return kExitOk;
}

int Version() {
  std::cout << "cadre " << CADRE_VERSION << " (protocol " << absl::StrFormat("%016x", SchemaHash())
            << ")" << std::endl;
  return kExitOk;
}

// How many words each verb takes after itself.
struct WordCount {
  size_t least;
  size_t most;
};

WordCount WordsOf(absl::string_view verb) {
  // The graph stands in the place of the spec.
  if (verb == "plan" && IsGiven("placement")) return {0, 0};
  if (verb == "local" || verb == "run" || verb == "stop" || verb == "wait" || verb == "trace" ||
      verb == "plan" || verb == "measure-epochs" || verb == "probe") {
    return {1, 1};
  }
  if (verb == "formula") return {0, 32};
  if (verb == "status" || verb == "watch" || verb == "help") return {0, 1};
  return {0, 0};
}

// The first of these flags that was given; empty: none.
std::string GivenOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!gflags::GetCommandLineFlagInfoOrDie(name).is_default) return name;
  }
  return "";
}

// Empty, or the flag that was given although only `cadre local` has a use for it.
std::string GivenForLocalAlone() { return GivenOf({"threads", "dir", "restart", "lease_ms"}); }

// As above, for `cadre trace`. One letter more and --group would mean something to other verbs.
std::string GivenForTraceAlone() { return GivenOf({"group", "steps", "output", "O"}); }

// As above, for `cadre plan`.
std::string GivenForPlanAlone() {
  return GivenOf({"workers", "batch", "alpha", "bandwidth", "gamma", "flops", "bucket_elements",
                  "memory", "profile", "strategy", "compare", "epochs", "samples", "sensitivity",
                  "placement", "solver_seconds"});
}

// As above, for `cadre measure-epochs`.
std::string GivenForMeasureAlone() { return GivenOf({"target", "max_epochs", "rate"}); }

// As above, for `cadre probe`.
std::string GivenForProbeAlone() {
  return GivenOf({"peers", "rank", "meet_timeout", "cache", "fresh"});
}

// The first flag of this file that was given and is neither of every verb nor among these.
std::string GivenBeside(std::initializer_list<absl::string_view> names) {
  std::vector<absl::string_view> fine = {"coordinator", "o", "timeout", "quiet", "color"};
  fine.insert(fine.end(), names.begin(), names.end());
  for (const std::string& name : OwnFlags().Names()) {
    if (name == "help" || name == "version") continue;
    if (std::find(fine.begin(), fine.end(), name) == fine.end() && IsGiven(name.c_str()))
      return name;
  }
  return "";
}

// Flags that `cadre local` and `cadre run` change the spec by, and that do not change a plan.
std::string GivenForRunsAlone() {
  return GivenOf(
      {"ranks", "aggregators", "overlap", "device", "precision", "from", "checkpoint", "detach"});
}

template <typename T>
std::optional<T> FlagIfGiven(const char* flag, T value) {
  if (!IsGiven(flag)) return std::nullopt;
  return value;
}

absl::StatusOr<PlacementOptions> PlacementFromFlags() {
  if (const std::string flag = GivenBeside({"placement", "solver_seconds"}); !flag.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag.size() == 1 ? "-" : "--", flag, " changes no placement"));
  }
  PlacementOptions options{.graph = FLAGS_placement, .solver_seconds = FLAGS_solver_seconds};
  CADRE_RETURN_IF_ERROR(CheckPlacementOptions(options));
  return options;
}

absl::StatusOr<PlanOptions> PlanFromFlags(const std::string& spec) {
  if (IsGiven("solver_seconds")) {
    return absl::InvalidArgumentError("--solver_seconds needs --placement beside it");
  }
  if (!IsGiven("workers")) {
    return absl::InvalidArgumentError("--workers is missing: how many workers has the group?");
  }
  if (const std::string flag = GivenForLocalAlone(); !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " is of 'cadre local' alone"));
  }
  if (const std::string flag = GivenForRunsAlone(); !flag.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " changes no plan",
                     flag == "ranks" ? "; --workers says how many workers there are" : ""));
  }
  PlanOptions options{.spec = spec};
  if (!absl::SimpleAtoi(FLAGS_workers, &options.workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers takes a number of workers, not '", FLAGS_workers, "'"));
  }
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFromFlags());
  options.groups = options.flags.groups;
  options.flags.groups.reset();
  options.batch = FlagIfGiven("batch", FLAGS_batch);
  options.alpha = FlagIfGiven("alpha", FLAGS_alpha);
  options.bandwidth = FlagIfGiven("bandwidth", FLAGS_bandwidth);
  options.gamma = FlagIfGiven("gamma", FLAGS_gamma);
  options.flops = FlagIfGiven("flops", FLAGS_flops);
  options.bucket_elements = FlagIfGiven("bucket_elements", FLAGS_bucket_elements);
  options.memory = FlagIfGiven("memory", FLAGS_memory);
  options.profile = FlagIfGiven("profile", FLAGS_profile);
  options.epochs = FlagIfGiven("epochs", FLAGS_epochs);
  options.samples = FlagIfGiven("samples", FLAGS_samples);
  options.sensitivity = FlagIfGiven("sensitivity", FLAGS_sensitivity);
  if (IsGiven("strategy")) {
    CADRE_ASSIGN_OR_RETURN(options.strategy, ParseStrategy(FLAGS_strategy));
  }
  if (IsGiven("compare")) {
    CADRE_ASSIGN_OR_RETURN(options.compare, ParseStrategies(FLAGS_compare));
  }
  CADRE_RETURN_IF_ERROR(CheckPlanOptions(options));
  return options;
}

absl::StatusOr<TraceOptions> TraceFromFlags(const std::string& run) {
  if (FLAGS_group < 0) return absl::InvalidArgumentError("--group must be at least 0");
  if (FLAGS_steps < 1 || FLAGS_steps > 100) {
    return absl::InvalidArgumentError("--steps must be 1 to 100");
  }
  CADRE_ASSIGN_OR_RETURN(std::string output, OutputFromFlags());
  return TraceOptions{.run = run,
                      .group = static_cast<uint32_t>(FLAGS_group),
                      .steps = static_cast<uint32_t>(FLAGS_steps),
                      .output = std::move(output)};
}

absl::StatusOr<MeasureOptions> MeasureFromFlags(const std::string& spec) {
  if (!IsGiven("target")) {
    return absl::InvalidArgumentError("--target is missing: which test accuracy is good enough?");
  }
  if (!(FLAGS_target > 0 && FLAGS_target <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--target is a share of the test samples, in (0, 1], not ", FLAGS_target));
  }
  if (!IsGiven("workers")) {
    return absl::InvalidArgumentError(
        "--workers is missing: which numbers of workers, as 1,2,4,8?");
  }
  for (const char* flag : {"batch", "max_epochs", "threads"}) {
    if (IsGiven(flag) && gflags::GetCommandLineFlagInfoOrDie(flag).current_value == "0") {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be at least 1"));
    }
  }
  if (const std::string flag = GivenBeside(
          {"target", "workers", "batch", "max_epochs", "rate", "output", "O", "threads"});
      !flag.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag.size() == 1 ? "-" : "--", flag, " is not of 'cadre measure-epochs'"));
  }
  const std::optional<RateRule> rate = RateRuleFromName(FLAGS_rate);
  if (!rate) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate takes linear, sqrt or none, not '", FLAGS_rate, "'"));
  }
  MeasureOptions options{.spec = spec, .target = FLAGS_target, .rate = *rate};
  CADRE_ASSIGN_OR_RETURN(options.workers, ParseWorkers(FLAGS_workers));
  options.batch = FlagIfGiven("batch", FLAGS_batch);
  options.max_epochs = FlagIfGiven("max_epochs", FLAGS_max_epochs);
  CADRE_ASSIGN_OR_RETURN(options.output, OutputFromFlags());
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  options.threads = FLAGS_threads;
  return options;
}

// Where people's programs keep what can be made again; empty: nowhere.
std::string UserCache() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return absl::StrCat(cache, "/cadre");
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? absl::StrCat(home, "/.cache/cadre") : "";
}

absl::StatusOr<ProbeOptions> ProbeFromFlags(const std::string& spec) {
  if (const std::string flag =
          GivenBeside({"workers", "batch", "threads", "peers", "rank", "meet_timeout", "cache",
                       "fresh", "output", "O", "mesh", "layer", "model_ranks", "space_ranks"});
      !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " is not of 'cadre probe'"));
  }
  ProbeOptions options{.spec = spec, .threads = FLAGS_threads, .rank = FLAGS_rank};
  if (IsGiven("workers") && !absl::SimpleAtoi(FLAGS_workers, &options.workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers takes a number of workers, not '", FLAGS_workers, "'"));
  }
  CADRE_ASSIGN_OR_RETURN(options.flags, SpecFromFlags());
  options.flags.batch = FlagIfGiven("batch", FLAGS_batch);
  if (!FLAGS_peers.empty()) options.peers = absl::StrSplit(FLAGS_peers, ',');
  CADRE_ASSIGN_OR_RETURN(const double meet_seconds, ParseSeconds(FLAGS_meet_timeout));
  options.meet_timeout = absl::Seconds(meet_seconds);
  CADRE_ASSIGN_OR_RETURN(options.output, OutputFromFlags());
  CADRE_ASSIGN_OR_RETURN(options.programs, ProgramsFolder());
  options.cache = IsGiven("cache") ? FLAGS_cache : UserCache();
  options.fresh = FLAGS_fresh;
  CADRE_RETURN_IF_ERROR(CheckProbeOptions(options));
  return options;
}

int Dispatch(const Verb& verb, const std::vector<std::string>& words) {
  const WordCount count = WordsOf(verb.name);
  if (words.size() < count.least) return UsageError("a word is missing", &verb);
  if (words.size() > count.most) {
    return UsageError(absl::StrCat("what is '", words[count.most], "' for?"), &verb);
  }
  if (verb.name == "help") return Help(words);
  if (verb.name == "version") return Version();

  const absl::StatusOr<GlobalOptions> global = GlobalsFromFlags();
  if (!global.ok()) return UsageError(global.status().message(), &verb);
  const Console console = MakeConsole();
  const std::string word = words.empty() ? std::string() : words[0];
  if (const std::string flag = GivenForTraceAlone(); !flag.empty() && verb.name != "trace" &&
                                                     verb.name != "measure-epochs" &&
                                                     verb.name != "probe") {
    return UsageError(
        absl::StrCat(flag.size() == 1 ? "-" : "--", flag, " is of 'cadre trace' alone"), &verb);
  }
  if (const std::string flag = GivenForPlanAlone(); !flag.empty() && verb.name != "plan" &&
                                                    verb.name != "measure-epochs" &&
                                                    verb.name != "probe") {
    return UsageError(absl::StrCat("--", flag, " is of 'cadre plan' alone"), &verb);
  }
  if (const std::string flag = GivenForMeasureAlone();
      !flag.empty() && verb.name != "measure-epochs") {
    return UsageError(absl::StrCat("--", flag, " is of 'cadre measure-epochs' alone"), &verb);
  }
  if (const std::string flag = GivenForProbeAlone(); !flag.empty() && verb.name != "probe") {
    return UsageError(absl::StrCat("--", flag, " is of 'cadre probe' alone"), &verb);
  }
  if (verb.name == "local") {
    const absl::StatusOr<LocalOptions> local = LocalFromFlags(word);
    if (!local.ok()) return UsageError(local.status().message(), &verb);
    return RunLocal(*global, *local, console);
  }
  if (verb.name == "measure-epochs") {
    const absl::StatusOr<MeasureOptions> measure = MeasureFromFlags(word);
    if (!measure.ok()) return UsageError(measure.status().message(), &verb);
    return MeasureEpochs(*global, *measure, console);
  }
  if (verb.name == "probe") {
    const absl::StatusOr<ProbeOptions> probe = ProbeFromFlags(word);
    if (!probe.ok()) return UsageError(probe.status().message(), &verb);
    return ProbeCluster(*global, *probe, console);
  }
  ExitOnInterrupt();
  if (verb.name == "run") {
    const absl::StatusOr<SpecFlags> flags = SpecFromFlags();
    if (!flags.ok()) return UsageError(flags.status().message(), &verb);
    if (NamesOneGpu()) {
      return UsageError(
          absl::StrCat("--device ", FLAGS_device, " is of 'cadre local' alone: each worker of a ",
                       "cluster was told its GPU when it was started; give --device cuda"),
          &verb);
    }
    if (const std::string flag = GivenForLocalAlone(); !flag.empty()) {
      return UsageError(absl::StrCat("--", flag, " is of 'cadre local' alone: the cluster that ",
                                     "takes this run is there already"),
                        &verb);
    }
    return SubmitRun(*global, word, *flags, FLAGS_detach, console);
  }
  if (verb.name == "plan" && IsGiven("placement")) {
    const absl::StatusOr<PlacementOptions> placement = PlacementFromFlags();
    if (!placement.ok()) return UsageError(placement.status().message(), &verb);
    return ShowPlacement(*global, *placement, console);
  }
  if (verb.name == "plan") {
    const absl::StatusOr<PlanOptions> plan = PlanFromFlags(word);
    if (!plan.ok()) return UsageError(plan.status().message(), &verb);
    return ShowPlan(*global, *plan, console);
  }
  if (verb.name == "formula") return ShowFormula(*global, words, console);
  if (verb.name == "runs") return ListRuns(*global, console);
  if (verb.name == "status") return ShowStatus(*global, word, console);
  if (verb.name == "watch") return WatchRuns(*global, word, console);
  if (verb.name == "members") return ShowMembers(*global, console);
  if (verb.name == "stop") return StopRun(*global, word, console);
  if (verb.name == "trace") {
    const absl::StatusOr<TraceOptions> trace = TraceFromFlags(word);
    if (!trace.ok()) return UsageError(trace.status().message(), &verb);
    return TraceRun(*global, *trace, console);
  }
  return WaitForRun(*global, word, console);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  OwnFlags flags;
  absl::StatusOr<std::vector<std::string>> words = ParseArguments(arguments, flags);
  const Verb* verb = words.ok() && !words->empty() ? FindVerb(words->front()) : nullptr;
  if (!words.ok()) return UsageError(words.status().message(), nullptr);
  if (flags.help()) return Help(*words);
  if (flags.version()) return Version();
  if (words->empty()) {
    std::cerr << GeneralHelp() << std::flush;
    return kExitUsage;
  }
  if (verb == nullptr) return UnknownVerb(words->front());
  words->erase(words->begin());
  return Dispatch(*verb, *words);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  const int code = cadre::Main(argc, argv);
  // What did not reach its reader (a full disk, say) was not said.
  std::cout.flush();
  if (!std::cout && code == 0) {
    std::cerr << "cadre: cannot write to stdout" << std::endl;
    return 1;
  }
  return code;
}
