// A container sees its host's cores and memory, so the limits of its control group (cgroup) are
// read, too; a process that ignores them is throttled or killed.
#include "base/hardware.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr char kProcessors[] = "/proc/cpuinfo";
// The limits of the cgroup at the root of the cgroup namespace. In a container these are the limits
// of the process itself.
constexpr char kCgroupCpuMax[] = "/sys/fs/cgroup/cpu.max";
constexpr char kCgroupMemoryMax[] = "/sys/fs/cgroup/memory.max";

// cpu_set_t alone has bits for 1024 CPUs.
using CpuMask = std::array<cpu_set_t, kMaxCpus / CPU_SETSIZE>;

// CPU quota in cores; 0: no limit.
double CgroupCores() {
  std::ifstream file(kCgroupCpuMax);
  double quota = 0;
  double period = 0;
  // Without a quota the file contains "max", which is not read as a number.
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

}  // namespace

std::string ProcessorName() {
  std::ifstream file(kProcessors);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (!absl::StartsWith(line, "model name") || colon == std::string::npos) continue;
    const std::string name(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    if (!name.empty()) return name;
  }
  return "processor";
}

std::string DeviceName(int threads) {
  return absl::StrCat(ProcessorName(), ", ", threads, threads == 1 ? " thread" : " threads");
}

std::vector<int> UsableCpus() {
  CpuMask mask{};
  if (sched_getaffinity(0, sizeof mask, mask.data()) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof mask, mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

absl::Status BindToCpus(const std::vector<int>& cpus) {
  CpuMask mask{};
  for (const int cpu : cpus) CPU_SET_S(cpu, sizeof mask, mask.data());
  if (sched_setaffinity(0, sizeof mask, mask.data()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot bind to CPUs");
}

int UsableCores() {
  const int cpus = std::ssize(UsableCpus());
  int usable = cpus > 0 ? cpus : std::thread::hardware_concurrency();
  const double quota = CgroupCores();
  if (quota > 0) usable = std::min<int>(usable, std::ceil(quota));
  return std::max(1, usable);
}

uint64_t MemoryLimitBytes() {
  // The file contains "max" if there is no limit.
  std::ifstream file(kCgroupMemoryMax);
  uint64_t limit = 0;
  return file >> limit ? limit : 0;
}

uint64_t UsableMemoryBytes() {
  // sysconf returns -1 for unknown values.
  const uint64_t pages = std::max(0L, sysconf(_SC_PHYS_PAGES));
  const uint64_t page_bytes = std::max(0L, sysconf(_SC_PAGESIZE));
  uint64_t bytes = pages * page_bytes;
  const uint64_t limit = MemoryLimitBytes();
  return limit > 0 && (bytes == 0 || limit < bytes) ? limit : bytes;
}

}  // namespace cadre
