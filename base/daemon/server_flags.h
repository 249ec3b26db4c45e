// The flags of programs that serve gRPC: --insecure, --health-port, --connection-age and
// --port-file. A file of its own, because only programs that use it have the flags.
//
// Called from main only.
#pragma once

#include <gflags/gflags_declare.h>

#include <string>

#include "absl/status/status.h"
#include "base/rpc/credentials.h"
#include "base/rpc/daemon.h"

DECLARE_bool(insecure);

namespace cadre {

// Errors: InvalidArgument for a value out of its range.
absl::Status CheckServerFlags();

DaemonOptions ServerOptions(const std::string& listen, const Credentials& credentials);

}  // namespace cadre
