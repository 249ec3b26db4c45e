// Reads the options that several commands share from a command line.
//
// Thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/spec_file.h"

namespace cadre {

GlobalOptions GlobalOptionsOf(const CommandLine& line);

// The values of flags that replace values of the run file. Errors: InvalidArgument, naming the
// flag.
absl::StatusOr<SpecFlags> SpecFlagsOf(const CommandLine& line);

// The folder of this program, which contains the other programs as well.
absl::StatusOr<std::string> ProgramsFolder();

}  // namespace cadre
