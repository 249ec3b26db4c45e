// Text that other processes choose: names, addresses, reasons of failures. It is stored, sent on,
// and printed in logs and on terminals, so its length and its characters are checked when it is
// received.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

inline constexpr size_t kMaxName = 63;
// Addresses, hosts, devices, versions, identifiers.
inline constexpr size_t kMaxPeerLine = 300;
inline constexpr size_t kMaxReason = 1 << 10;

// Errors: InvalidArgument unless `name` is [a-z0-9._-]{1,63}; the message begins with `what`.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// Errors: InvalidArgument for more than kMaxPeerLine bytes, and for text that Escaped would change.
// May be empty.
absl::Status CheckPeerLine(absl::string_view what, absl::string_view line);

enum class LineBreaks { kEscape, kKeep };

// The text with "\n", "\x1b" and the like in place of everything on which a terminal or a reader of
// a log would act instead of showing it: control characters, marks that change the direction of
// text, and bytes that are not UTF-8. Other characters are unchanged.
std::string Escaped(absl::string_view text, LineBreaks line_breaks = LineBreaks::kEscape);

// The escaped text, of at most kMaxReason bytes: "... (N bytes)", where N is the length of
// `reason`, replaces the end of a longer one.
std::string ShortReason(absl::string_view reason);

}  // namespace cadre
