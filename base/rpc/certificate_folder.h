// Folders with a development authority and with the credentials that it issues, for `cadre certs`,
// `cadre local` and tests.
//
//   CADRE_RETURN_IF_ERROR(WriteAuthority("ca", {.trust_domain = "cadre"}));
//   CADRE_RETURN_IF_ERROR(WriteCredentials("ca", {.role = Role::kWorker, .name = "w1"}, "w1"));
//
// The folder of an authority has the files ca.crt and ca.key; the trust domain is in its
// certificate. A folder of credentials has ca.crt, tls.crt and tls.key (base/rpc/credentials.h).
// Folders have the mode 0700, their files 0600. A folder appears, or is replaced, as a whole, so a
// program that reloads it never sees the key of one certificate and another certificate.
//
// Thread-safe, except that a folder must not have concurrent writers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/rpc/identity.h"

namespace cadre {

inline constexpr char kDefaultTrustDomain[] = "cadre";

// The begin lies in the past because the clocks of hosts differ.
struct Validity {
  absl::Time begin = absl::Now() - absl::Minutes(5);
  absl::Time end = absl::Now() + absl::Hours(24 * 365);
};

struct AuthorityOptions {
  std::string trust_domain = kDefaultTrustDomain;
  Validity validity = {};
  // Whether the folder may replace an existing one.
  bool replace = false;
};

struct CredentialsOptions {
  Role role = Role::kViewer;
  std::string name;
  // Names and addresses of a server for clients that check them; Cadre's do not.
  std::vector<std::string> dns = {};
  std::vector<std::string> ips = {};
  Validity validity = {};
  bool replace = false;
};

// Errors: AlreadyExists if the folder exists and must not be replaced; InvalidArgument for a trust
// domain that is not valid.
absl::Status WriteAuthority(const std::string& folder, const AuthorityOptions& options);

// Errors: as WriteAuthority; NotFound or InvalidArgument for the authority's files.
absl::Status WriteCredentials(const std::string& authority, const CredentialsOptions& options,
                              const std::string& folder);

}  // namespace cadre
