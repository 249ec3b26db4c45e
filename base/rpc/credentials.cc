// gRPC 1.51 has TLS credentials with reloading under an experimental interface. What it leaves to
// its user:
//
// - If a file is missing or does not match, the server listens all the same and every handshake
//   fails. FromFolder therefore reads and checks the files first.
// - The minimum version of TLS cannot be chosen. All cipher suites of TLS 1.3 are permitted in any
//   case; the list of suites that can be chosen concerns older versions only. A list of one suite
//   for pre-shared keys, which no side has, therefore excludes these versions.
// - The chain of the peer's certificate is verified, the identity in it is not: that is the task of
//   a verifier (PeerVerifier).
// - An options object belongs to the credentials made from it, so each of them needs its own; the
//   provider, which watches the files, is shared.
#include "base/rpc/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/certificate.h"
#include "base/file.h"
#include "base/rpc/http_proxy.h"
#include "base/status.h"

namespace cadre {
namespace {

using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned kRefreshSeconds = 1;

// gRPC reads the variable when it makes the first TLS connection.
void RequireTls13() {
  setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305", /*overwrite=*/1);
}

// The only identity in the certificate's names.
absl::StatusOr<Identity> OnlyIdentity(const std::vector<std::string>& uris) {
  if (uris.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate has ", uris.size(), " URIs, not one SPIFFE identity"));
  }
  return ParseSpiffeId(uris[0]);
}

// Accepts a peer of the trust domain, and of the expected role and name if any.
class PeerVerifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  PeerVerifier(std::string trust_domain, std::optional<ServerIdentity> expected)
      : trust_domain_(std::move(trust_domain)), expected_(std::move(expected)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    const grpc::string_ref certificate = request->peer_cert();
    absl::Status status = CheckTime({certificate.data(), certificate.size()});
    status.Update(Check(uris));
    *result = status.ok()
                  ? grpc::Status::OK
                  : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  // TLS does not verify the certificate of a session that is resumed.
  static absl::Status CheckTime(absl::string_view certificate) {
    CADRE_ASSIGN_OR_RETURN(const CertificateInfo peer,
                           ReadCertificate(certificate, "the peer's certificate"));
    if (absl::Now() < peer.end) return absl::OkStatus();
    return absl::UnauthenticatedError("the peer's certificate has expired");
  }

  absl::Status Check(const std::vector<std::string>& uris) const {
    CADRE_ASSIGN_OR_RETURN(const Identity peer, OnlyIdentity(uris));
    if (peer.trust_domain != trust_domain_) {
      return absl::UnauthenticatedError(absl::StrCat(
          "the peer is of trust domain '", peer.trust_domain, "', not '", trust_domain_, "'"));
    }
    if (!expected_) return absl::OkStatus();
    if (peer.role != expected_->role ||
        (!expected_->name.empty() && peer.name != expected_->name)) {
      return absl::UnauthenticatedError(
          absl::StrCat("the server is ", RoleName(peer.role), " '", peer.name, "', not ",
                       RoleName(expected_->role), expected_->name.empty() ? "" : " '",
                       expected_->name, expected_->name.empty() ? "" : "'"));
    }
    return absl::OkStatus();
  }

  const std::string trust_domain_;
  const std::optional<ServerIdentity> expected_;
};

}  // namespace

struct Credentials::Tls {
  Identity identity;
  std::string certificate_path;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider;

  // Options common to servers and channels.
  void Fill(std::optional<ServerIdentity> expected,
            grpc::experimental::TlsCredentialsOptions& options) const {
    options.set_certificate_provider(provider);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_check_call_host(false);
    options.set_certificate_verifier(
        grpc::experimental::ExternalCertificateVerifier::Create<PeerVerifier>(identity.trust_domain,
                                                                              std::move(expected)));
  }
};

absl::StatusOr<Credentials> Credentials::FromFolder(const std::string& folder) {
  const CertificateSources paths = {.key = folder + "/tls.key",
                                    .certificate = folder + "/tls.crt",
                                    .authority = folder + "/ca.crt"};
  KeyPair pair;
  CADRE_ASSIGN_OR_RETURN(const std::string authorities, ReadFile(paths.authority));
  CADRE_ASSIGN_OR_RETURN(pair.certificate, ReadFile(paths.certificate));
  CADRE_ASSIGN_OR_RETURN(pair.key, ReadFile(paths.key));
  CADRE_ASSIGN_OR_RETURN(const CertificateInfo own,
                         CheckCertificate(pair, authorities, paths, absl::Now()));
  const absl::StatusOr<Identity> identity = OnlyIdentity(own.uris);
  if (!identity.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(paths.certificate, ": ", identity.status().message()));
  }
  RequireTls13();
  auto tls = std::make_shared<Tls>();
  tls->identity = *identity;
  tls->certificate_path = paths.certificate;
  tls->provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      paths.key, paths.certificate, paths.authority, kRefreshSeconds);
  return Credentials(std::move(tls));
}

absl::StatusOr<Credentials> Credentials::FromFlags(const std::string& tls, bool insecure,
                                                   std::optional<Role> role) {
  if (tls.empty() == !insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        tls.empty() ? "neither --tls nor --insecure is given"
                    : "both --tls and --insecure are given",
        "; use --tls=DIR, a folder with ca.crt, tls.crt and tls.key (see 'cadre help certs'), or "
        "--insecure where every process that reaches the port is trusted"));
  }
  CADRE_RETURN_IF_ERROR(CheckHttpProxy());
  if (insecure) return Insecure();
  CADRE_ASSIGN_OR_RETURN(Credentials loaded, FromFolder(tls));
  if (role && loaded.identity().role != *role) {
    return absl::InvalidArgumentError(absl::StrCat(tls, "/tls.crt: the certificate is for role ",
                                                   RoleName(loaded.identity().role), ", not ",
                                                   RoleName(*role)));
  }
  return loaded;
}

const Identity& Credentials::identity() const { return tls_->identity; }

std::optional<uint64_t> Credentials::SecondsLeft() const {
  if (!secure()) return std::nullopt;
  const absl::StatusOr<std::string> pem = ReadFile(tls_->certificate_path);
  if (!pem.ok()) return std::nullopt;
  const absl::StatusOr<CertificateInfo> own = ReadCertificate(*pem, tls_->certificate_path);
  if (!own.ok()) return std::nullopt;
  return std::max<int64_t>(0, absl::ToInt64Seconds(own->end - absl::Now()));
}

std::shared_ptr<grpc::ServerCredentials> Credentials::server(
    std::shared_ptr<grpc::AuthMetadataProcessor> processor) const {
  if (!secure()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(tls_->provider);
  tls_->Fill(std::nullopt, options);
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> made = grpc::experimental::TlsServerCredentials(options);
  if (processor != nullptr) made->SetAuthMetadataProcessor(std::move(processor));
  return made;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::channel(
    const ServerIdentity& expected) const {
  if (!secure()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  tls_->Fill(expected, options);
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace cadre
