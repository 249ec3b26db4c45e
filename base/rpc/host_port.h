// Addresses of servers: host:port. Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

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

// The addresses in a list such as "a:7000,b:7000", of servers of which one serves at a time. Empty
// ones are left out, unless there is no other.
std::vector<std::string> SplitAddresses(absl::string_view list);

// Whether the host is localhost or a loopback address. A whole address is parsed, so
// 127.0.0.1.example.com is not a loopback address.
bool IsLoopback(const std::string& host);

}  // namespace cadre
