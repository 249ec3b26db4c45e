// The name of a worker that was given none.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/rpc/credentials.h"

namespace cadre {

// CERTIFICATE-HOST-SUFFIX, in at most kMaxName characters; in the host, "-" replaces those that
// names cannot have. The coordinator requires that the name begins with that of the certificate
// (empty without TLS), and the suffix makes it unique on the host, so the host is shortened first.
// If the suffix does not fit either, the name is that of the certificate.
std::string DefaultWorkerName(absl::string_view certificate, absl::string_view host,
                              absl::string_view suffix);
// With the name in the certificate of `credentials` and that of this host.
std::string DefaultWorkerName(const Credentials& credentials, absl::string_view suffix);

}  // namespace cadre
