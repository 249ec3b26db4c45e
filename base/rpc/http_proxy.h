// The HTTP proxy of outgoing gRPC connections, which has to permit CONNECT to the servers' ports:
//
//   CADRE_PROXY=http://[USER:PASSWORD@]HOST:PORT
//
// Without it channels connect directly. The variables http_proxy, https_proxy and grpc_proxy, which
// gRPC reads, are ignored: they are meant for downloads, and a proxy for these rarely permits
// connections to the nodes of a cluster. Servers on loopback, and those that no_proxy or
// no_grpc_proxy lists, are never reached through the proxy.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace cadre {

// Errors: InvalidArgument, which names CADRE_PROXY, if its value has another form.
absl::Status CheckHttpProxy();

// The value of CADRE_PROXY if the server at `address` is reached through it; otherwise an empty
// string. Requires: CheckHttpProxy() is OK.
std::string HttpProxyOf(const std::string& address);

// For errors: " through the proxy HOST:PORT of CADRE_PROXY", without user and password; empty if no
// proxy is used.
std::string ThroughHttpProxy(const std::string& address);

}  // namespace cadre
