// Logs as JSON lines on stderr, instead of glog's text, for collectors of logs:
//
//   {"time":"2026-01-31T12:00:00.123456Z","severity":"info","file":"loop.cc","line":12,
//    "message":"..."}
#pragma once

#include <string>

#include "absl/status/status.h"

namespace cadre {

// Sets up logging by the flag --log-format: "text" or "json". Call once, after InitGoogleLogging.
// Errors: InvalidArgument.
absl::Status SetLogFormat(const std::string& format);

}  // namespace cadre
