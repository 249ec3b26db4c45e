#include "base/rpc/identity.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace cadre {
namespace {

// Limit of the SPIFFE standard for a whole identity; a longer text is not quoted in an error.
constexpr size_t kMaxUriBytes = 2048;
constexpr size_t kMaxTrustDomainBytes = 255;
constexpr size_t kMaxNameBytes = 63;

constexpr std::array kRoles = {Role::kOperator, Role::kViewer, Role::kWorker, Role::kAggregator,
                               Role::kCoordinator};

bool IsName(absl::string_view text, size_t max_bytes) {
  return !text.empty() && text.size() <= max_bytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' ||
                  c == '-';
         });
}

}  // namespace

std::optional<Role> ParseRole(absl::string_view name) {
  for (const Role role : kRoles) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kAggregator:
      return "aggregator";
    case Role::kCoordinator:
      return "coordinator";
  }
  return "";
}

absl::StatusOr<Identity> ParseSpiffeId(absl::string_view uri) {
  if (uri.size() > kMaxUriBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the identity has ", uri.size(), " bytes, more than ", kMaxUriBytes));
  }
  const auto error = [uri](absl::string_view reason) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity '", absl::CHexEscape(uri), "': ", reason,
                     "; expected spiffe://TRUST_DOMAIN/cadre/ROLE/NAME"));
  };
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, "spiffe://")) return error("the scheme is not spiffe");
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() != 4) return error("the path does not have three parts");
  if (!IsName(parts[0], kMaxTrustDomainBytes)) return error("the trust domain is not valid");
  if (parts[1] != "cadre") return error("the path does not begin with /cadre");
  const std::optional<Role> role = ParseRole(parts[2]);
  if (!role) return error("the role is unknown");
  if (!IsName(parts[3], kMaxNameBytes)) {
    return error("the name is not 1 to 63 of the characters a-z, 0-9, '.', '_' and '-'");
  }
  return Identity{*role, std::string(parts[3]), std::string(parts[0])};
}

absl::StatusOr<Identity> PeerIdentity(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> uris =
      context.FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  if (uris.size() != 1) {
    return absl::UnauthenticatedError(
        absl::StrCat("the peer's certificate has ", uris.size(), " SPIFFE identities, not one"));
  }
  absl::StatusOr<Identity> identity = ParseSpiffeId({uris[0].data(), uris[0].size()});
  if (!identity.ok()) return absl::UnauthenticatedError(identity.status().message());
  return identity;
}

absl::StatusOr<std::optional<Identity>> CallerIdentity(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> security =
      context.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (security.size() == 1 && security[0] == "insecure") return std::nullopt;
  absl::StatusOr<Identity> identity = PeerIdentity(context);
  if (!identity.ok()) return identity.status();
  return *std::move(identity);
}

std::string PeerName(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (const auto identity = PeerIdentity(*auth); auth->IsPeerAuthenticated() && identity.ok()) {
    return absl::StrCat(RoleName(identity->role), "/", identity->name);
  }
  // Such as "ipv4:10.0.0.1:4711".
  const std::string peer = context.peer();
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace cadre
