// The error of a client that could not connect. Thread-safe (pure functions).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Unavailable: "no coordinator answered at ADDRESS: REASON; REMEDY", for the server `what`.
// `reason` is the transport's; the remedy is added if its cause is known. `secure`: the client uses
// TLS.
absl::Status NoAnswer(absl::string_view what, const std::string& address, bool secure,
                      absl::string_view reason);

}  // namespace cadre
