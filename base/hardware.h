// The CPUs and memory that this process may use.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace cadre {

// Model name of the CPU, such as "AMD EPYC 7763 64-Core Processor"; "processor" if unknown.
std::string ProcessorName();

// Device name of a process with this number of threads, such as "AMD EPYC 7763 64-Core Processor, 1
// thread". Layer times are stored by this name, so equal devices have equal names.
std::string DeviceName(int threads);

// Number of cores that this process may use, at least 1: the cores of its affinity mask, or the CPU
// quota of its control group (cgroup), rounded up, if that is lower.
int UsableCores();

// Memory of the host, or the limit of the cgroup if that is lower. 0: unknown.
uint64_t UsableMemoryBytes();

}  // namespace cadre
