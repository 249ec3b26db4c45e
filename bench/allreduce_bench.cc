// All-reduce by size, in the manner of nccl-tests: one JSON line per size, competitors measured in
// turn in the same run. See bench/allreduce/README.md.
#include <gflags/gflags.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/allreduce/contest.h"
#include "bench/allreduce/crew.h"
#include "bench/allreduce/referee.h"
#include "bench/allreduce/sizes.h"

DEFINE_int32(ranks, 2, "Ranks. More than the machine has cores: it runs, but times mean little.");
DEFINE_string(transport, "shm",
              "One or more of shm, tcp, threads, gloo and socket (a plain copy).");
DEFINE_string(algorithm, "auto",
              "One or more of auto, ring, butterfly, halving-doubling and hierarchical. For gloo "
              "auto is the fastest of its five at each size.");
DEFINE_string(min, "1K", "Smallest size, such as 300, 1K or 4M (bytes, powers of 1024).");
DEFINE_string(max, "256M", "Largest size.");
DEFINE_int32(factor, 2, "From one size to the next.");
DEFINE_string(dtype, "float32", "float32, bf16 or fp16.");
DEFINE_string(in_place, "true",
              "true, false or both. Out of place is a copy and an all-reduce, for ours and for "
              "gloo's classes.");
DEFINE_int32(repeat, 11, "Rounds; the median counts.");
DEFINE_double(budget, 2, "Seconds for a contestant and size; then no new round is begun.");
DEFINE_string(compare, "",
              "gloo, socket or both: measured in the same rounds and told in every line as "
              "ratio_to_gloo and share_of_socket.");
DEFINE_int32(lanes, 0, "TCP connections of a pair; 0: what a group decides by itself.");
DEFINE_double(timeout, 120, "Seconds without progress after which it gives up.");
DEFINE_bool(profile, false, "With auto: say on stderr what was measured of the links.");

namespace cadre::bench {
namespace {

constexpr char kUsage[] =
    "bench_allreduce --ranks 2 --transport shm --algorithm auto --min 1K --max 256M\n"
    "\n"
    "All-reduce by size; one JSON line per size on stdout. algbw is bytes / seconds and busbw is\n"
    "algbw * 2 (p - 1) / p, both in GB/s (10^9 bytes a second), as nccl-tests count. Ranks are\n"
    "processes, but for the transport threads. Exit code 1: some sum was wrong.";

struct Settings {
  ContestOptions contest;
  std::vector<int64_t> sizes;
  std::vector<bool> in_place;
};

absl::StatusOr<DType> DTypeFromFlag(const std::string& name) {
  if (name == "float32" || name == "fp32") return DType::kFloat32;
  if (name == "bf16" || name == "bfloat16") return DType::kBFloat16;
  if (name == "fp16" || name == "float16") return DType::kFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown --dtype '", name, "'; known: float32, bf16, fp16"));
}

absl::StatusOr<std::vector<bool>> PlacesFromFlag(const std::string& name) {
  if (name == "true") return std::vector<bool>{true};
  if (name == "false") return std::vector<bool>{false};
  if (name == "both") return std::vector<bool>{true, false};
  return absl::InvalidArgumentError(
      absl::StrCat("--in_place '", name, "': known are true, false and both"));
}

std::vector<std::string> Names(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

absl::StatusOr<Settings> SettingsFromFlags() {
  if (FLAGS_repeat < 1) return absl::InvalidArgumentError("--repeat must be at least 1");
  if (!(FLAGS_budget > 0)) return absl::InvalidArgumentError("--budget must be positive");
  if (!(FLAGS_timeout > 0)) return absl::InvalidArgumentError("--timeout must be positive");
  Settings settings;
  settings.contest.ranks = FLAGS_ranks;
  settings.contest.transports = Names(FLAGS_transport);
  settings.contest.algorithms = Names(FLAGS_algorithm);
  settings.contest.compare = Names(FLAGS_compare);
  CADRE_ASSIGN_OR_RETURN(settings.contest.dtype, DTypeFromFlag(FLAGS_dtype));
  CADRE_ASSIGN_OR_RETURN(settings.in_place, PlacesFromFlag(FLAGS_in_place));
  CADRE_ASSIGN_OR_RETURN(const int64_t least, ParseBytes(FLAGS_min));
  CADRE_ASSIGN_OR_RETURN(const int64_t most, ParseBytes(FLAGS_max));
  CADRE_ASSIGN_OR_RETURN(settings.sizes,
                         Sizes(least, most, FLAGS_factor, SizeOf(settings.contest.dtype)));
  return settings;
}

// A folder that goes with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "bench_allreduce.XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Ranks that are processes and ranks that are threads, each if somebody needs them.
class Crews {
 public:
  absl::Status Start(const Contest& contest, const CrewOptions& options) {
    for (const ContestantName& name : contest.contestants) {
      const bool threads = name.network == "threads";
      std::vector<ContestantName>& own = threads ? threads_ : processes_;
      entrants_.push_back({name, nullptr, own.size()});
      own.push_back(name);
    }
    for (const bool threads : {false, true}) {
      const std::vector<ContestantName>& own = threads ? threads_ : processes_;
      if (own.empty()) continue;
      CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Crew> crew, Crew::Start(options, own));
      for (Entrant& entrant : entrants_) {
        if ((entrant.name.network == "threads") == threads) entrant.crew = crew.get();
      }
      crews_.push_back(std::move(crew));
    }
    return absl::OkStatus();
  }
  void Quit() {
    for (const std::unique_ptr<Crew>& crew : crews_) crew->Quit();
  }
  const std::vector<Entrant>& entrants() const { return entrants_; }

 private:
  std::vector<ContestantName> processes_;
  std::vector<ContestantName> threads_;
  std::vector<std::unique_ptr<Crew>> crews_;
  std::vector<Entrant> entrants_;
};

void PrintProfiles(const std::vector<Measurement>& measured, const std::vector<Entrant>& entrants) {
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i].explanation.empty()) continue;
    std::fprintf(stderr, "%s: %s\n", entrants[i].name.network.c_str(),
                 measured[i].explanation.c_str());
  }
}

// Whether every sum was right.
absl::StatusOr<bool> MeasureAll(const Settings& settings, const Contest& contest,
                                const std::vector<Entrant>& entrants) {
  const Effort effort{.rounds = FLAGS_repeat, .seconds = FLAGS_budget};
  bool right = true;
  bool profile = FLAGS_profile;
  for (const int64_t bytes : settings.sizes) {
    for (const bool in_place : settings.in_place) {
      CADRE_ASSIGN_OR_RETURN(const std::vector<Measurement> measured,
                             Measure(entrants, bytes, in_place, effort));
      if (std::exchange(profile, false)) PrintProfiles(measured, entrants);
      for (const Competitor& competitor : contest.competitors) {
        const nlohmann::ordered_json line =
            Line(contest, competitor, measured, settings.contest.ranks, settings.contest.dtype,
                 bytes, in_place);
        right = right && line.at("errors") == 0;
        std::cout << line.dump() << std::endl;
      }
    }
  }
  return right;
}

absl::StatusOr<bool> Run() {
  CADRE_ASSIGN_OR_RETURN(const Settings settings, SettingsFromFlags());
  CADRE_ASSIGN_OR_RETURN(const Contest contest, PlanContest(settings.contest));
  const unsigned cores = std::thread::hardware_concurrency();
  if (static_cast<unsigned>(FLAGS_ranks) > cores) {
    std::fprintf(stderr, "%d ranks on %u cores: it runs, but the times say little\n", FLAGS_ranks,
                 cores);
  }
  const TemporaryFolder folder;
  if (folder.path().empty()) return absl::UnavailableError("no temporary folder could be made");
  Crews crews;
  CADRE_RETURN_IF_ERROR(crews.Start(contest, {.ranks = FLAGS_ranks,
                                              .dtype = settings.contest.dtype,
                                              .max_bytes = settings.sizes.back(),
                                              .out_of_place = settings.in_place.back() == false,
                                              .timeout = absl::Seconds(FLAGS_timeout),
                                              .tcp_connections = FLAGS_lanes,
                                              .gloo_folder = folder.path()}));
  CADRE_ASSIGN_OR_RETURN(const bool right, MeasureAll(settings, contest, crews.entrants()));
  crews.Quit();
  return right;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  if (const auto code = cadre::ParseProgramFlags(cadre::bench::kUsage, CADRE_VERSION,
                                                 "bench/allreduce_bench.cc", &argc, &argv)) {
    return *code;
  }
  const absl::StatusOr<bool> right = cadre::bench::Run();
  if (!right.ok()) {
    std::fprintf(stderr, "bench_allreduce: %s\n", std::string(right.status().message()).c_str());
    return absl::IsInvalidArgument(right.status()) ? cadre::kExitBadFlags : 1;
  }
  if (!*right) std::fprintf(stderr, "bench_allreduce: some sums are wrong\n");
  return *right ? 0 : 1;
}
