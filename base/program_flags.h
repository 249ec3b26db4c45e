// How the daemons take their command lines: alike, and by the exit codes that their help promises.
//
// Called from main only, before any thread is made.
#pragma once

#include <optional>

namespace cadre {

inline constexpr int kExitBadFlags = 2;

// Parses gflags and removes them from argv. Returns the exit code when the program is to end now:
// 0 after --help or --version (which show the program's own flags, `source` being its main.cc
// without ending, such as "worker/main"), kExitBadFlags after an unknown flag or an argument that
// is no flag, told in one line.
std::optional<int> ParseProgramFlags(const char* usage, const char* version, const char* source,
                                     int* argc, char*** argv);

}  // namespace cadre
