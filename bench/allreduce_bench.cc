// All-reduce by size, as nccl-tests measures it: one JSON line per size, with all algorithms
// measured in interleaved rounds of the same run. See bench/allreduce/README.md.
//
// All ranks run the same program (SPMD). The first process validates the flags, creates the shared
// board and forks the ranks, so it must not start a thread itself. Ranks exchange addresses, choose
// iterations and report errors over the board (board.h); only the measured fabric (algorithm.h)
// transfers data while the clock runs.
#include <gflags/gflags.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hardware.h"
#include "base/status.h"
#include "bench/allreduce/board.h"
#include "bench/allreduce/comparison.h"
#include "bench/allreduce/fabrics.h"
#include "bench/allreduce/runner.h"
#include "bench/harness.h"
#include "worker/transport/thread_transport.h"

DEFINE_int32(ranks, 2, "Number of ranks. With more ranks than cores the times are not meaningful.");
DEFINE_string(
    transport, "shm",
    "One or more of shm, tcp, threads, gloo and socket (a plain copy), separated by commas.");
DEFINE_string(algorithm, "auto",
              "One or more of auto, ring, butterfly, halving-doubling and hierarchical. For gloo "
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
    "processes, except for the transport threads. Exit code 1: a sum was wrong.";

struct Settings {
  ComparisonOptions comparison;
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
      absl::StrCat("unknown --in-place '", name, "'; known: true, false, both"));
}

std::vector<std::string> Names(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

absl::StatusOr<Settings> SettingsFromFlags() {
  if (FLAGS_repeat < 1) return absl::InvalidArgumentError("--repeat must be at least 1");
  if (!(FLAGS_budget > 0)) return absl::InvalidArgumentError("--budget must be positive");
  if (!(FLAGS_timeout > 0)) return absl::InvalidArgumentError("--timeout must be positive");
  Settings settings;
  settings.comparison.ranks = FLAGS_ranks;
  settings.comparison.transports = Names(FLAGS_transport);
  settings.comparison.algorithms = Names(FLAGS_algorithm);
  settings.comparison.compare = Names(FLAGS_compare);
  CADRE_ASSIGN_OR_RETURN(settings.comparison.dtype, DTypeFromFlag(FLAGS_dtype));
  CADRE_ASSIGN_OR_RETURN(settings.in_place, PlacesFromFlag(FLAGS_in_place));
  CADRE_ASSIGN_OR_RETURN(const int64_t min, ParseBytes(FLAGS_min));
  CADRE_ASSIGN_OR_RETURN(const int64_t max, ParseBytes(FLAGS_max));
  CADRE_ASSIGN_OR_RETURN(settings.sizes,
                         Sizes(min, max, FLAGS_factor, SizeOf(settings.comparison.dtype)));
  return settings;
}

// A folder that is removed with this object.
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

bool OverThreads(const Variant& variant) { return variant.fabric == "threads"; }

// What one rank does. Rank 0 of the first group prints the lines.
class Rank {
 public:
  // `transport` is null for a rank that is a process.
  Rank(const Settings& settings, const Comparison& comparison, std::string gloo_folder,
       const Member& member, std::unique_ptr<Transport> transport)
      : settings_(settings),
        comparison_(comparison),
        gloo_folder_(std::move(gloo_folder)),
        member_(member),
        threads_(transport != nullptr),
        transport_(std::move(transport)) {}

  // Errors: those of connecting and measuring; DataLoss on the printing rank if a sum was wrong.
  absl::Status Run() {
    CADRE_ASSIGN_OR_RETURN(std::vector<Runner::Entry> entries, Connect());
    Runner runner(member_, std::move(entries),
                  {.dtype = settings_.comparison.dtype,
                   .max_bytes = settings_.sizes.back(),
                   .out_of_place = !settings_.in_place.back(),
                   .profile = FLAGS_profile,
                   .effort = {.rounds = FLAGS_repeat, .seconds = FLAGS_budget}});
    const bool prints = member_.group() == 0 && member_.rank() == 0;
    bool correct = true;
    for (const int64_t bytes : settings_.sizes) {
      for (const bool in_place : settings_.in_place) {
        CADRE_ASSIGN_OR_RETURN(const std::vector<Measurement> measured,
                               runner.Measure(bytes, in_place));
        for (const Row& row : comparison_.rows) {
          if (!prints) continue;
          const nlohmann::ordered_json line =
              Line(comparison_, row, measured, settings_.comparison.ranks,
                   settings_.comparison.dtype, bytes, in_place);
          correct = correct && line.at("errors") == 0;
          PrintLine(line);
        }
      }
    }
    return correct ? absl::OkStatus() : absl::DataLossError("some sums are wrong");
  }

 private:
  // The groups connect one after the other, because "auto" measures the links when it is created.
  absl::StatusOr<std::vector<Runner::Entry>> Connect() {
    std::vector<Runner::Entry> entries;
    for (const Variant& variant : comparison_.variants) {
      CADRE_RETURN_IF_ERROR(member_.BarrierOfAll());
      entries.push_back({.variant = variant});
      if (OverThreads(variant) != threads_) continue;
      std::unique_ptr<Fabric>& fabric = fabrics_[variant.fabric];
      if (fabric == nullptr) {
        CADRE_ASSIGN_OR_RETURN(fabric, MakeFabric(variant.fabric));
      }
      CADRE_ASSIGN_OR_RETURN(entries.back().algorithm, fabric->Make(variant.algorithm));
    }
    return entries;
  }

  absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(const std::string& name) {
    if (threads_) return MakeCadreFabric(std::move(transport_));
    if (name == "gloo") return ConnectGloo(member_, gloo_folder_);
    if (name == "socket") return ConnectSocket(member_);
    return ConnectCadre(member_, /*tcp=*/name == "tcp", FLAGS_lanes);
  }

  const Settings& settings_;
  const Comparison& comparison_;
  const std::string gloo_folder_;
  Member member_;
  const bool threads_;
  std::unique_ptr<Transport> transport_;
  std::map<std::string, std::unique_ptr<Fabric>> fabrics_;
};

// Starts all ranks: one process for each rank of the group of processes, and one process whose
// threads are the ranks of the group of threads. The calling process only waits for them.
class Ranks {
 public:
  Ranks(const Settings& settings, const Comparison& comparison, Board& board)
      : settings_(settings), comparison_(comparison), board_(board) {}
  ~Ranks() { KillAll(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Errors: the first error of a rank; the other ranks are then killed.
  absl::Status Run() {
    int group = 0;
    if (!std::all_of(comparison_.variants.begin(), comparison_.variants.end(), OverThreads)) {
      for (int rank = 0; rank < FLAGS_ranks; ++rank) {
        CADRE_RETURN_IF_ERROR(Fork([&] { RunRank(Member(board_, 0, rank), nullptr); }));
      }
      ++group;
    }
    if (std::any_of(comparison_.variants.begin(), comparison_.variants.end(), OverThreads)) {
      CADRE_RETURN_IF_ERROR(Fork([&] { RunThreads(group); }));
    }
    while (!children_.empty()) CADRE_RETURN_IF_ERROR(WaitForOne());
    return absl::OkStatus();
  }

 private:
  // Ends the process on an error, because its peers may wait for it in a collective.
  void RunRank(const Member& member, std::unique_ptr<Transport> transport) {
    const absl::Status status =
        Rank(settings_, comparison_, folder_.path(), member, std::move(transport)).Run();
    if (status.ok()) return;
    board_.Fail(status);
    _exit(1);
  }

  void RunThreads(int group) {
    std::vector<std::unique_ptr<Transport>> transports =
        MakeThreadTransports(FLAGS_ranks, absl::Seconds(FLAGS_timeout));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < FLAGS_ranks; ++rank) {
      ranks.emplace_back(
          [&, rank] { RunRank(Member(board_, group, rank), std::move(transports[rank])); });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  // Errors: ResourceExhausted.
  absl::Status Fork(const std::function<void()>& run) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) return absl::ResourceExhaustedError("cannot create a process");
    if (child > 0) {
      children_.insert(child);
      return absl::OkStatus();
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) run();
    // Destructors of objects that belong to the parent must not run here.
    _exit(0);
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
  const TemporaryFolder folder_;
  std::set<pid_t> children_;
};

absl::Status Run() {
  CADRE_ASSIGN_OR_RETURN(const Settings settings, SettingsFromFlags());
  CADRE_ASSIGN_OR_RETURN(const Comparison comparison, MakeComparison(settings.comparison));
  if (const int cores = UsableCores(); FLAGS_ranks > cores) {
    std::fprintf(stderr, "%d ranks on %d cores: the times are not meaningful\n", FLAGS_ranks,
                 cores);
  }
  const auto threads =
      std::count_if(comparison.variants.begin(), comparison.variants.end(), OverThreads);
  const bool both = threads > 0 && threads < std::ssize(comparison.variants);
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Board> board,
                         Board::Make(both ? 2 : 1, FLAGS_ranks, absl::Seconds(FLAGS_timeout)));
  return Ranks(settings, comparison, *board).Run();
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, "bench/allreduce_bench.cc", cadre::bench::kUsage,
                          cadre::bench::Run);
}
