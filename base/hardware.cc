// A container sees its host's cores and memory, so the limits of its control group (cgroup) are
// read, too; a process that ignores them is throttled or killed.
#include "base/hardware.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
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

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int usable = std::thread::hardware_concurrency();
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) usable = CPU_COUNT(&cores);
  const double quota = CgroupCores();
  if (quota > 0) usable = std::min<int>(usable, std::ceil(quota));
  return std::max(1, usable);
}

uint64_t UsableMemoryBytes() {
  // sysconf returns -1 for unknown values.
  const uint64_t pages = std::max(0L, sysconf(_SC_PHYS_PAGES));
  const uint64_t page_bytes = std::max(0L, sysconf(_SC_PAGESIZE));
  uint64_t bytes = pages * page_bytes;
  std::ifstream file(kCgroupMemoryMax);
  uint64_t limit = 0;
  if (file >> limit && limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
  return bytes;
}

}  // namespace cadre
