// Lists of addresses such as "a:7000,b:7000", of servers of which one serves at a time. Thread-safe
// (pure functions).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Errors: InvalidArgument for an empty address; the message begins with `what`.
absl::Status CheckAddresses(absl::string_view what, absl::string_view list);

// The addresses of the list. Empty ones are left out, unless there is no other.
std::vector<std::string> SplitAddresses(absl::string_view list);

}  // namespace cadre
