// Runs one target (targets.h) on every file of a corpus and then on mutations of them.
//
//   cadre-fuzz tar --corpus=tests/fuzz/corpus/tar --seconds=60
//   cadre-fuzz tar crash-tar                 replays the given files
//
// The target runs in a child process. If it crashes, hangs or uses too much memory, the input is
// written to <crashes>/crash-<target> and the exit code is 1.
#include <gflags/gflags.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/file.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/targets.h"

DEFINE_string(corpus, "", "Folder of well-formed inputs, which are replayed and then mutated.");
DEFINE_double(seconds, 3, "Duration of the mutations.");
DEFINE_uint64(iterations, 0, "Maximum number of mutated inputs; 0: no limit.");
DEFINE_uint64(seed, 1, "Equal seeds give equal inputs.");
DEFINE_string(crashes, ".", "Folder that receives a failing input.");
DEFINE_double(input_seconds, 20, "Time limit of one input.");

namespace cadre::fuzz {
namespace {

constexpr size_t kMaxInputBytes = 1 << 20;
// Limit of the resident memory of the whole run, including that of sanitizers.
constexpr int64_t kMaxMemoryMb = 1024;

// Shared by parent and child: the current input.
struct Shared {
  std::atomic<uint64_t> inputs{0};
  std::atomic<uint64_t> size{0};
  uint8_t bytes[kMaxInputBytes];
};

Shared* MakeShared() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Shared;
}

std::vector<std::string> ReadAll(const std::vector<std::string>& paths) {
  std::vector<std::string> inputs;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> bytes = ReadFile(path);
    if (!bytes.ok()) {
      std::fprintf(stderr, "%s\n", std::string(bytes.status().message()).c_str());
      std::exit(2);
    }
    inputs.push_back(bytes->substr(0, kMaxInputBytes));
  }
  return inputs;
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  if (error) std::fprintf(stderr, "%s: %s\n", folder.c_str(), error.message().c_str());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void RunOne(Target target, Shared& shared, const std::string& input) {
  std::memcpy(shared.bytes, input.data(), input.size());
  shared.size = input.size();
  // A copy on the heap of exactly this size, so that AddressSanitizer detects reads beyond it.
  const std::vector<uint8_t> copy(input.begin(), input.end());
  target(copy);
  ++shared.inputs;
}

void RunChild(Target target, Shared& shared, const std::vector<std::string>& corpus, bool mutate) {
  for (const std::string& input : corpus) RunOne(target, shared, input);
  if (!mutate) return;
  Mutator mutator(corpus, FLAGS_seed, kMaxInputBytes);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(FLAGS_seconds);
  for (uint64_t i = 0; FLAGS_iterations == 0 || i < FLAGS_iterations; ++i) {
    if (std::chrono::steady_clock::now() >= end) return;
    RunOne(target, shared, mutator.Next());
  }
}

// Waits until the child closes its end of the pipe. Returns false if one input takes too long.
bool AwaitEnd(const Shared& shared, int pipe) {
  using Clock = std::chrono::steady_clock;
  uint64_t inputs = 0;
  Clock::time_point since = Clock::now();
  pollfd end{.fd = pipe, .events = POLLIN, .revents = 0};
  while (poll(&end, 1, 250) <= 0) {
    if (shared.inputs != inputs) {
      inputs = shared.inputs;
      since = Clock::now();
    }
    if (Clock::now() - since > std::chrono::duration<double>(FLAGS_input_seconds)) return false;
  }
  return true;
}

int Fail(const Shared& shared, const std::string& name, const std::string& reason) {
  const std::string path = FLAGS_crashes + "/crash-" + name;
  const absl::string_view input(reinterpret_cast<const char*>(shared.bytes), shared.size);
  const absl::Status written = WriteFileAtomically(path, input);
  absl::FPrintF(stderr, "%s: %s at input %d of seed %d, %d bytes; %s\n", name, reason,
                shared.inputs.load(), FLAGS_seed, input.size(),
                written.ok() ? "it is in " + path : written.ToString());
  return 1;
}

int Run(const std::string& name, Target target, const std::vector<std::string>& files) {
  const std::vector<std::string> corpus = ReadAll(files.empty() ? FilesIn(FLAGS_corpus) : files);
  if (corpus.empty()) {
    absl::FPrintF(stderr, "%s: no inputs in '%s'\n", name, FLAGS_corpus);
    return 2;
  }
  Shared* shared = MakeShared();
  int ends[2];
  if (shared == nullptr || pipe(ends) != 0) return 2;
  const pid_t child = fork();
  if (child < 0) return 2;
  if (child == 0) {
    close(ends[0]);
    RunChild(target, *shared, corpus, files.empty());
    std::exit(0);  // runs LeakSanitizer, unlike _exit
  }
  close(ends[1]);
  const bool in_time = AwaitEnd(*shared, ends[0]);
  if (!in_time) kill(child, SIGKILL);
  int state = 0;
  rusage usage{};
  wait4(child, &state, 0, &usage);
  const int64_t memory_mb = usage.ru_maxrss / 1024;
  if (!in_time) return Fail(*shared, name, "hung");
  if (WIFSIGNALED(state)) return Fail(*shared, name, strsignal(WTERMSIG(state)));
  if (WEXITSTATUS(state) != 0) return Fail(*shared, name, "exited");
  if (memory_mb > kMaxMemoryMb) return Fail(*shared, name, "used too much memory");
  absl::PrintF("%s: %d inputs, of which %d are the corpus; %d MiB of memory\n", name,
               shared->inputs.load(), corpus.size(), memory_mb);
  return 0;
}

}  // namespace
}  // namespace cadre::fuzz

int main(int argc, char** argv) {
  gflags::SetUsageMessage("cadre-fuzz TARGET [FILE...]");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const auto& targets = cadre::fuzz::Targets();
  const auto target = targets.find(argc > 1 ? argv[1] : "");
  if (target == targets.end()) {
    absl::FPrintF(stderr, "usage: cadre-fuzz TARGET [FILE...], with one of the targets");
    for (const auto& [name, function] : targets) absl::FPrintF(stderr, " %s", name);
    absl::FPrintF(stderr, "\n");
    return 2;
  }
  return cadre::fuzz::Run(target->first, target->second, {argv + 2, argv + argc});
}
