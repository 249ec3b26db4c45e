// The command line of a daemon: gflags, with the same help and the same exit codes in every
// program.
//
// Called from main only, before any thread starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cadre {

inline constexpr int kExitBadFlags = 2;

// Parses the flags and removes them from argv; flags may be written with dashes or underscores.
// Returns the exit code if the program has to end now: 0 after --help or --version,
// kExitBadFlags after a one-line error message about an unknown flag or a positional argument.
// `source` is the file, such as "worker/main.cc", whose flags --help lists, with those of
// base/daemon.
std::optional<int> ParseProgramFlags(const char* usage, const char* version, const char* source,
                                     int* argc, char*** argv);

// All values of a string flag of the program that may be repeated, in order, those in flag files
// (--flagfile) included. gflags keeps the last one only. `name` has underscores.
std::vector<std::string> AllValues(const std::string& name);

}  // namespace cadre
