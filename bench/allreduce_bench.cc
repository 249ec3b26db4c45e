// All-reduce by size, as nccl-tests measures it: one JSON line per size, with all algorithms
// measured in interleaved rounds of the same run. See bench/allreduce/README.md.
//
// All ranks run the same program (SPMD). The first process validates the flags, creates the shared
// board and forks the ranks, so it must not start a thread itself. Ranks exchange addresses, choose
// iterations and report errors over the board (board.h); only the measured fabric (fabric.h)
// transfers data while the clock runs.
#include <gflags/gflags.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hardware.h"
#include "base/status.h"
#include "bench/allreduce/rank.h"
#include "bench/harness.h"

DEFINE_int32(ranks, 2, "Number of ranks. With more ranks than cores the times are not meaningful.");
DEFINE_string(transport, "shm",
              "One or more of shm, tcp, gloo and socket (a plain exchange, which adds nothing), "
              "separated by commas.");
DEFINE_string(algorithm, "auto",
              "One or more of auto, ring, butterfly and halving-doubling. For gloo "
              "auto is the fastest of its five at each size.");
DEFINE_string(min, "1K", "Smallest size, such as 300, 1K or 4M (bytes, powers of 1024).");
DEFINE_string(max, "256M", "Largest size.");
DEFINE_int32(factor, 2, "Ratio of one size to the previous one.");
DEFINE_string(dtype, "float32", "float32, bf16 or fp16.");
DEFINE_string(
    in_place, "true",
    "true, false or both. Out of place, Cadre and the classes of Gloo copy the input first.");
DEFINE_int32(repeat, 11, "Rounds; the median is reported.");
DEFINE_double(budget, 2, "Seconds per algorithm and size after which no new round begins.");
DEFINE_string(compare, "",
              "gloo, socket or both: measured in the same rounds and reported in every line as "
              "ratio_to_gloo and share_of_socket.");
DEFINE_int32(lanes, 0,
             "TCP connections of a pair of ranks; 0: as many as a training group chooses.");
DEFINE_double(timeout, 120, "Seconds without progress after which the run fails.");
DEFINE_bool(profile, false, "With auto: print the measured links on stderr.");

namespace cadre::bench {
namespace {

constexpr char kUsage[] =
    "bench_allreduce --ranks 2 --transport shm --algorithm auto --min 1K --max 256M\n"
    "\n"
    "All-reduce by size; one JSON line per size on stdout. algbw is bytes / seconds and busbw is\n"
    "algbw * 2 (p - 1) / p, both in GB/s (10^9 bytes per second), as in nccl-tests. Ranks are\n"
    "processes. Exit code 1: a sum was wrong.";

absl::StatusOr<DType> DTypeFromFlag(const std::string& name) {
  if (name == "float32" || name == "fp32") return DType::kFloat32;
  if (name == "bf16" || name == "bfloat16") return DType::kBFloat16;
  if (name == "fp16" || name == "float16") return DType::kFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown --dtype '", name, "'; known: float32, bf16, fp16"));
}

std::vector<std::string> Names(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

absl::StatusOr<Settings> SettingsFromFlags() {
  if (FLAGS_repeat < 1) return absl::InvalidArgumentError("--repeat must be at least 1");
  if (!(FLAGS_budget > 0)) return absl::InvalidArgumentError("--budget must be positive");
  if (!(FLAGS_timeout > 0)) return absl::InvalidArgumentError("--timeout must be positive");
  Settings settings{.effort = {.rounds = FLAGS_repeat, .seconds = FLAGS_budget},
                    .connections = FLAGS_lanes,
                    .profile = FLAGS_profile};
  settings.comparison.ranks = FLAGS_ranks;
  settings.comparison.transports = Names(FLAGS_transport);
  settings.comparison.algorithms = Names(FLAGS_algorithm);
  settings.comparison.compare = Names(FLAGS_compare);
  CADRE_ASSIGN_OR_RETURN(settings.comparison.dtype, DTypeFromFlag(FLAGS_dtype));
  if (FLAGS_in_place == "true" || FLAGS_in_place == "both") settings.in_place.push_back(true);
  if (FLAGS_in_place == "false" || FLAGS_in_place == "both") settings.in_place.push_back(false);
  if (settings.in_place.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown --in-place '", FLAGS_in_place, "'; known: true, false, both"));
  }
  CADRE_ASSIGN_OR_RETURN(const int64_t min, ParseBytes(FLAGS_min));
  CADRE_ASSIGN_OR_RETURN(const int64_t max, ParseBytes(FLAGS_max));
  CADRE_ASSIGN_OR_RETURN(settings.sizes,
                         Sizes(min, max, FLAGS_factor, SizeOf(settings.comparison.dtype)));
  return settings;
}

// Starts a process for each rank. The calling process only waits for them.
class Ranks {
 public:
  Ranks(const Settings& settings, const Comparison& comparison, Board& board)
      : settings_(settings),
        comparison_(comparison),
        board_(board),
        gloo_folder_((std::filesystem::temp_directory_path() / "bench_allreduce.XXXXXX").string()) {
  }
  ~Ranks() {
    KillAll();
    std::error_code ignored;
    std::filesystem::remove_all(gloo_folder_, ignored);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Errors: the first error of a rank; the other ranks are then killed.
  absl::Status Run() {
    if (mkdtemp(gloo_folder_.data()) == nullptr) {
      return absl::ResourceExhaustedError("cannot create a temporary folder");
    }
    for (int rank = 0; rank < FLAGS_ranks; ++rank) CADRE_RETURN_IF_ERROR(Fork(rank));
    while (!children_.empty()) CADRE_RETURN_IF_ERROR(WaitForOne());
    return absl::OkStatus();
  }

 private:
  // Errors: ResourceExhausted.
  absl::Status Fork(int rank) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) return absl::ResourceExhaustedError("cannot create a process");
    if (child > 0) {
      children_.insert(child);
      return absl::OkStatus();
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    const absl::Status status =
        RunRank(settings_, comparison_, gloo_folder_, BoardRank(board_, rank));
    // The peers may wait for this rank in a collective.
    if (!status.ok()) board_.Fail(status);
    // Destructors of objects that belong to the parent must not run here.
    _exit(status.ok() ? 0 : 1);
  }

  absl::Status WaitForOne() {
    int state = 0;
    const pid_t ended = waitpid(-1, &state, 0);
    if (ended < 0) return absl::OkStatus();  // interrupted
    children_.erase(ended);
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return absl::OkStatus();
    KillAll();
    const absl::Status failure = board_.failure();
    return failure.ok() ? absl::UnavailableError("a rank ended unexpectedly") : failure;
  }

  void KillAll() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    children_.clear();
  }

  const Settings& settings_;
  const Comparison& comparison_;
  Board& board_;
  std::string gloo_folder_;
  std::set<pid_t> children_;
};

absl::Status Run() {
  CADRE_ASSIGN_OR_RETURN(const Settings settings, SettingsFromFlags());
  CADRE_ASSIGN_OR_RETURN(const Comparison comparison, MakeComparison(settings.comparison));
  if (const int cores = UsableCores(); FLAGS_ranks > cores) {
    std::fprintf(stderr, "%d ranks on %d cores: the times are not meaningful\n", FLAGS_ranks,
                 cores);
  }
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Board> board,
                         Board::Make(FLAGS_ranks, absl::Seconds(FLAGS_timeout)));
  return Ranks(settings, comparison, *board).Run();
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, "bench/allreduce_bench.cc", cadre::bench::kUsage,
                          cadre::bench::Run);
}
