// X.509 certificates with P-256 keys, as PEM text: a small certificate authority for development
// and tests, and the check of the files that a program is given.
//
//   CADRE_ASSIGN_OR_RETURN(const KeyPair authority, MakeAuthority({.common_name = "cadre", ...}));
//   CADRE_ASSIGN_OR_RETURN(const KeyPair pair, IssueCertificate(authority, {.uri = ..., ...}));
//
// Thread-safe (pure functions, except that keys and serial numbers are random).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

struct KeyPair {
  std::string key;
  std::string certificate;
};

struct CertificateRequest {
  std::string common_name;
  // Subject alternative names.
  std::string uri;
  std::vector<std::string> dns;
  std::vector<std::string> ips;
  // The certificate is valid from `begin` to `end`.
  absl::Time begin;
  absl::Time end;
};

struct CertificateInfo {
  // URIs among the subject alternative names.
  std::vector<std::string> uris;
  absl::Time end;
};

// The first certificate of the text, unchecked. Errors: InvalidArgument, which begins with
// `source`.
absl::StatusOr<CertificateInfo> ReadCertificate(absl::string_view pem, absl::string_view source);

// A self-signed certificate that may sign others. Errors: InvalidArgument; Internal.
absl::StatusOr<KeyPair> MakeAuthority(const CertificateRequest& request);

// A certificate for a client or server (both uses are permitted), signed by the authority.
// Errors: InvalidArgument for a key or certificate of the authority that cannot be read, or for a
// name that is not valid.
absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority,
                                         const CertificateRequest& request);

// Paths or descriptions of the three texts, for errors.
struct CertificateSources {
  std::string key;
  std::string certificate;
  std::string authority;
};

// Checks that the key is that of the first certificate in `pair.certificate`, and that this
// certificate is valid at `now` and signed by one of `authorities`, possibly through further
// certificates in `pair.certificate`.
// Errors: InvalidArgument, which begins with the source at fault and does not quote its contents.
absl::StatusOr<CertificateInfo> CheckCertificate(const KeyPair& pair, absl::string_view authorities,
                                                 const CertificateSources& sources, absl::Time now);

}  // namespace cadre
