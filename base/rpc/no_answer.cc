#include "base/rpc/no_answer.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/http_proxy.h"

namespace cadre {
namespace {

struct Cause {
  // A part of the message of gRPC 1.51 or OpenSSL 3.
  const char* message;
  // Only for clients with TLS, or for those without.
  std::optional<bool> secure;
  const char* remedy;
};

constexpr Cause kCauses[] = {
    {"DNS resolution failed", std::nullopt, "check the host name"},
    {"Trying to connect an http1.x server", std::nullopt,
     "the server there speaks HTTP/1; check the port"},
    {"wrong version number", true,
     "the server does not use TLS; connect with --insecure, or start it with --tls"},
    {"WRONG_VERSION_NUMBER", true,
     "the server does not use TLS; connect with --insecure, or start it with --tls"},
    {"certificate verify failed", true,
     "none of the authorities in ca.crt has issued the server's certificate"},
    {"CERTIFICATE_VERIFY_FAILED", true,
     "none of the authorities in ca.crt has issued the server's certificate"},
    {"Socket closed", false, "the server may require TLS; connect with --tls"},
    {"Connection reset by peer", false, "the server may require TLS; connect with --tls"},
};

absl::string_view RemedyOf(absl::string_view reason, const std::string& address, bool secure) {
  if (absl::StrContains(address, "://")) return "the address must be host:port, without a scheme";
  for (const Cause& cause : kCauses) {
    if (cause.secure.value_or(secure) == secure && absl::StrContains(reason, cause.message)) {
      return cause.remedy;
    }
  }
  return "";
}

}  // namespace

absl::Status NoAnswer(absl::string_view what, const std::string& address, bool secure,
                      absl::string_view reason) {
  const absl::string_view remedy = RemedyOf(reason, address, secure);
  return absl::UnavailableError(absl::StrCat("no ", what, " answered at ", address,
                                             ThroughHttpProxy(address), ": ", reason,
                                             remedy.empty() ? "" : "; ", remedy));
}

}  // namespace cadre
