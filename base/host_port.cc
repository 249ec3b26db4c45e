#include "base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre {

absl::StatusOr<HostPort> SplitHostPort(absl::string_view text, absl::string_view what) {
  const size_t colon = text.rfind(':');
  HostPort result;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &result.port) || result.port < 0 ||
      result.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(what, " '", text, "' is not host:port"));
  }
  result.host = std::string(text.substr(0, colon));
  return result;
}

// All of 127.0.0.0/8 is local.
bool IsLoopback(const std::string& host) {
  in_addr address;
  return host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &address) == 1 &&
          ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET);
}

}  // namespace cadre
