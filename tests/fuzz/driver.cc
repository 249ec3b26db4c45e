// Runs a fuzz target without libFuzzer, under any compiler: every file of the corpus, then
// mutations of them.
//
//   tar_fuzz --corpus=tests/fuzz/corpus/tar --seconds=60
//   tar_fuzz crash-tar_fuzz            replays the files named
//
// The target runs in a child process. Where it dies, stands still or takes too much memory, the
// input that did it is written to <crashes>/crash-<program> and the exit code is 1.
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

#include "base/file.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/target.h"

DEFINE_string(corpus, "", "Folder of well-formed inputs, replayed and then mutated.");
DEFINE_double(seconds, 3, "How long to mutate.");
DEFINE_uint64(iterations, 0, "Mutated inputs to stop after; 0: only time ends it.");
DEFINE_uint64(seed, 1, "Equal seeds try equal inputs in equal order.");
DEFINE_string(crashes, ".", "Folder into which a failing input is written.");
DEFINE_double(input_seconds, 20, "An input that takes longer is a failure.");
DEFINE_uint64(memory_mb, 1024, "Most resident memory of the whole run, sanitizers included.");

namespace cadre::fuzz {
namespace {

constexpr size_t kMaxInputBytes = 1 << 20;

// Memory that parent and child share: what the child is at.
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

void RunOne(Shared& shared, const std::string& input) {
  std::memcpy(shared.bytes, input.data(), input.size());
  shared.size = input.size();
  // A copy on the heap of exactly this size, so that AddressSanitizer sees a byte too many.
  const std::vector<uint8_t> copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  ++shared.inputs;
}

void RunChild(Shared& shared, const std::vector<std::string>& corpus, bool mutate) {
  for (const std::string& input : corpus) RunOne(shared, input);
  if (!mutate) return;
  Mutator mutator(corpus, FLAGS_seed, kMaxInputBytes);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(FLAGS_seconds);
  for (uint64_t i = 0; FLAGS_iterations == 0 || i < FLAGS_iterations; ++i) {
    if (std::chrono::steady_clock::now() >= end) return;
    RunOne(shared, mutator.Next());
  }
}

// Waits for the child to close its end of the pipe. False: one input took too long.
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

int Fail(const Shared& shared, const std::string& program, const std::string& why) {
  const std::string path = FLAGS_crashes + "/crash-" + program;
  const absl::string_view input(reinterpret_cast<const char*>(shared.bytes), shared.size);
  const absl::Status written = WriteFileAtomically(path, input);
  std::fprintf(stderr, "%s: %s at input %llu of seed %llu, %zu bytes; %s\n", program.c_str(),
               why.c_str(), static_cast<unsigned long long>(shared.inputs),
               static_cast<unsigned long long>(FLAGS_seed), input.size(),
               written.ok() ? ("it is in " + path).c_str() : written.ToString().c_str());
  return 1;
}

int Run(const std::string& program, const std::vector<std::string>& files) {
  const std::vector<std::string> corpus = ReadAll(files.empty() ? FilesIn(FLAGS_corpus) : files);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no inputs to begin with in '%s'\n", program.c_str(),
                 FLAGS_corpus.c_str());
    return 2;
  }
  Shared* shared = MakeShared();
  int ends[2];
  if (shared == nullptr || pipe(ends) != 0) return 2;
  const pid_t child = fork();
  if (child < 0) return 2;
  if (child == 0) {
    close(ends[0]);
    RunChild(*shared, corpus, files.empty());
    std::exit(0);  // so that LeakSanitizer looks
  }
  close(ends[1]);
  const bool in_time = AwaitEnd(*shared, ends[0]);
  if (!in_time) kill(child, SIGKILL);
  int state = 0;
  rusage usage{};
  wait4(child, &state, 0, &usage);
  const auto memory_mb = static_cast<uint64_t>(usage.ru_maxrss) / 1024;
  if (!in_time) return Fail(*shared, program, "stood still");
  if (WIFSIGNALED(state)) return Fail(*shared, program, strsignal(WTERMSIG(state)));
  if (WEXITSTATUS(state) != 0) return Fail(*shared, program, "exited by itself");
  if (memory_mb > FLAGS_memory_mb) return Fail(*shared, program, "took too much memory");
  std::printf("%s: %llu inputs, %zu of them as they were; at most %llu MiB of memory\n",
              program.c_str(), static_cast<unsigned long long>(shared->inputs), corpus.size(),
              static_cast<unsigned long long>(memory_mb));
  return 0;
}

}  // namespace
}  // namespace cadre::fuzz

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  return cadre::fuzz::Run(program, {argv + 1, argv + argc});
}
