// Credentials of every server and channel, the only file that names gRPC's credentials: mutual TLS,
// at least version 1.3, or nothing at all (insecure).
//
//   CADRE_ASSIGN_OR_RETURN(const Credentials credentials,
//                          Credentials::FromFlags(FLAGS_tls, FLAGS_insecure, Role::kCoordinator));
//   Daemon::Start({.listen = ..., .credentials = credentials}, services);
//   MakeChannel(address, Plane::kControl, credentials, {.role = Role::kCoordinator});
//
// A folder of credentials has the file names of Kubernetes' TLS secrets: ca.crt (the authorities
// whose peers are accepted), tls.crt (the own certificate, then intermediate ones) and tls.key. The
// files are read again every second, so that replaced ones apply to new connections; an existing
// connection keeps its certificates until its server ends it (DaemonOptions::max_connection_age).
//
// Both sides present a certificate with one SPIFFE identity (base/rpc/identity.h) in the same trust
// domain. A channel expects the role of its server, and its name if that is known, instead of a
// host name: members advertise addresses that may be IPs or change.
//
// A cheap value; thread-safe.
#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/identity.h"

namespace cadre {

// The server that a channel expects.
struct ServerIdentity {
  Role role = Role::kCoordinator;
  // Empty: any name.
  std::string name = "";
};

class Credentials {
 public:
  // Insecure: no encryption, and no identity of the peer.
  Credentials() = default;
  static Credentials Insecure() { return Credentials(); }

  // Errors: InvalidArgument, which names the file at fault, if the key is not that of the
  // certificate, if the certificate is not valid now, or if it does not have one SPIFFE identity.
  static absl::StatusOr<Credentials> FromFolder(const std::string& folder);

  // The credentials that the flags --tls and --insecure of a program name; one of them is required.
  // The certificate must be that of `role`, if given. Errors: InvalidArgument, also for a
  // CADRE_PROXY that cannot be used (base/rpc/http_proxy.h).
  static absl::StatusOr<Credentials> FromFlags(const std::string& tls, bool insecure,
                                               std::optional<Role> role = std::nullopt);

  bool secure() const { return tls_ != nullptr; }
  // The own identity. Requires: secure().
  const Identity& identity() const;
  // Seconds for which the own certificate, as the file has it now, is valid; 0 if it has expired.
  // Nothing without TLS, and while the file cannot be read.
  std::optional<uint64_t> SecondsLeft() const;

  // With a processor, every call passes it after the handshake. It needs the identity of the
  // caller, so it is not used without TLS.
  std::shared_ptr<grpc::ServerCredentials> server(
      std::shared_ptr<grpc::AuthMetadataProcessor> processor = nullptr) const;
  std::shared_ptr<grpc::ChannelCredentials> channel(const ServerIdentity& expected) const;

 private:
  struct Tls;
  explicit Credentials(std::shared_ptr<const Tls> tls) : tls_(std::move(tls)) {}

  // Null: insecure.
  std::shared_ptr<const Tls> tls_;
};

}  // namespace cadre
