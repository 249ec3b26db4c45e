// Addresses of servers: host:port. Thread-safe (pure functions).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

struct HostPort {
  // A name, an IPv4 address, or an IPv6 address in brackets.
  std::string host;
  int port = 0;
};

// `what` names the address in the error: InvalidArgument for a text that is not host:port.
absl::StatusOr<HostPort> SplitHostPort(absl::string_view text, absl::string_view what);

// Whether the host is localhost or a loopback address. A whole address is parsed, so
// 127.0.0.1.example.com is not a loopback address.
bool IsLoopback(const std::string& host);

}  // namespace cadre
