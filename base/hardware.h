// What this machine computes with, as far as a process may use it.
//
// Thread-safe (asks the system).
#pragma once

#include <cstdint>
#include <string>

namespace cadre {

// As the processor calls itself, such as "AMD EPYC 7763 64-Core Processor"; "processor" if it does
// not say.
std::string ProcessorName();

// Names what a process computes with that has so many threads, such as "AMD EPYC 7763 64-Core
// Processor, 1 thread": times of layers are filed under it, so what computes alike has one name.
std::string DeviceName(int threads);

// Cores that this process may run on, at least 1; where its control group gives it less time, as
// many as that is worth, rounded up.
int UsableCores();

// Of the machine or, if that is less, of the process's control group; 0: not known.
uint64_t UsableMemoryBytes();

}  // namespace cadre
