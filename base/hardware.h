// The CPUs and memory that this process may use.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre {

// Model name of the CPU, such as "AMD EPYC 7763 64-Core Processor"; "processor" if unknown.
std::string ProcessorName();

// Device name of a process with this number of threads, such as "AMD EPYC 7763 64-Core Processor, 1
// thread". Layer times are stored by this name, so equal devices have equal names.
std::string DeviceName(int threads);

// More than any kernel supports.
inline constexpr int kMaxCpus = 1 << 13;

// The CPUs in the affinity mask of the calling thread, in ascending order; empty: unknown.
std::vector<int> UsableCpus();

// Sets that mask, which threads that the thread starts afterwards inherit. Requires: CPUs below
// kMaxCpus. Errors: InvalidArgument if this process may use none of them.
absl::Status BindToCpus(const std::vector<int>& cpus);

// Number of cores that this process may use, at least 1: those of UsableCpus, or the CPU quota of
// its control group (cgroup), rounded up, if that is lower.
int UsableCores();

// The limit of the cgroup on its memory. 0: none.
uint64_t MemoryLimitBytes();

// Memory of the host, or the limit of the cgroup if that is lower. 0: unknown.
uint64_t UsableMemoryBytes();

}  // namespace cadre
