// Options that several commands share: reads them from a command line, and derives from them what
// commands need.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/credentials.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/progress.h"
#include "cli/spec_file.h"
#include "coordinator/client/coordinator_client.h"

namespace cadre {

GlobalOptions GlobalOptionsOf(const CommandLine& line);

// The credentials of --tls or $CADRE_TLS, or none with --insecure. Errors: UsageError unless one of
// them is given; those of files.
absl::StatusOr<Credentials> CredentialsOf(const GlobalOptions& options);
// A client with these credentials. Errors: those of CredentialsOf.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> MakeClient(const GlobalOptions& options);
// The deadline of a command that starts now.
absl::Time DeadlineOf(const GlobalOptions& options, absl::Time now);
// Progress on stderr, as the console and the flags require.
ProgressOptions ProgressOnErr(const GlobalOptions& options, const Console& console);

// The values of flags that replace values of the run file. Names of axes and layers are not checked
// here, but against the model, by the validation of the run file. Errors: UsageError, naming
// the flag.
absl::StatusOr<SpecFlags> SpecFlagsOf(const CommandLine& line);

// The folder of this program, which contains the other programs as well.
absl::StatusOr<std::string> ProgramsFolder();

}  // namespace cadre
