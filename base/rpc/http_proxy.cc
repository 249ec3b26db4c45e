#include "base/rpc/http_proxy.h"

#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr char kVariable[] = "CADRE_PROXY";
constexpr absl::string_view kScheme = "http://";

absl::string_view Value() {
  const char* const value = std::getenv(kVariable);
  return value == nullptr ? absl::string_view() : value;
}

// The value without scheme, user and password.
absl::string_view ServerOf(absl::string_view value) {
  value = absl::StripPrefix(value, kScheme);
  return value.substr(value.rfind('@') + 1);
}

}  // namespace

absl::Status CheckHttpProxy() {
  const absl::string_view value = Value();
  if (value.empty()) return absl::OkStatus();
  // The value may contain a password, so the error does not quote it.
  const absl::StatusOr<HostPort> server = SplitHostPort(ServerOf(value), "the proxy");
  if (!absl::StartsWith(value, kScheme) || !server.ok() || server->port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment variable ", kVariable,
                     " is not of the form http://[USER:PASSWORD@]HOST:PORT"));
  }
  return absl::OkStatus();
}

std::string HttpProxyOf(const std::string& address) {
  const absl::StatusOr<HostPort> server = SplitHostPort(address, "the address");
  if (server.ok() && IsLoopback(server->host)) return "";
  return std::string(Value());
}

std::string ThroughHttpProxy(const std::string& address) {
  const std::string proxy = HttpProxyOf(address);
  if (proxy.empty()) return "";
  return absl::StrCat(" through the proxy ", ServerOf(proxy), " of ", kVariable,
                      std::getenv("no_proxy") != nullptr ? " (unless no_proxy lists it)" : "");
}

}  // namespace cadre
