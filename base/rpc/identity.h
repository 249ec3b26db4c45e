// Who the peer of a call is: the SPIFFE URI in its certificate,
//
//   spiffe://TRUST_DOMAIN/cadre/ROLE/NAME        e.g. spiffe://example.org/cadre/worker/team-a
//
// ROLE is operator, viewer, worker, aggregator or coordinator. TRUST_DOMAIN and NAME consist of
// lower-case letters, digits, '.', '_' and '-'; NAME has at most 63 characters.
//
// Thread-safe (functions without state).
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

enum class Role { kOperator, kViewer, kWorker, kAggregator, kCoordinator };

struct Identity {
  Role role = Role::kViewer;
  std::string name;
  std::string trust_domain;

  bool operator==(const Identity&) const = default;
};

// The role of that name; nullopt for another name.
std::optional<Role> ParseRole(absl::string_view name);
// The name of the role in a SPIFFE URI, such as "worker".
absl::string_view RoleName(Role role);

// Errors: InvalidArgument, which names the part that is wrong.
absl::StatusOr<Identity> ParseSpiffeId(absl::string_view uri);

// The identity in the certificate that the peer has presented. Requires: the credentials of the
// server or channel have verified the certificate.
// Errors: Unauthenticated, without a certificate that has exactly one such URI.
absl::StatusOr<Identity> PeerIdentity(const grpc::AuthContext& context);

// The same for the caller of a server that may run without TLS: nothing if the connection has none.
// Errors: Unauthenticated, with TLS and without such a certificate.
absl::StatusOr<std::optional<Identity>> CallerIdentity(const grpc::AuthContext& context);

// Names the peer of a call for limits and counts: its identity, or its IP address without TLS.
std::string PeerName(const grpc::ServerContextBase& context);

}  // namespace cadre
