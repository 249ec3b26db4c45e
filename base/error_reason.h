// Reasons of errors that a program must distinguish although their codes are equal. The reason is a
// payload of the status, which copies and Annotate keep; a status made of its message has none.
//
// Thread-safe (pure functions).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace cadre {

// This machine has no NVIDIA driver, or no GPU.
inline constexpr absl::string_view kReasonNoGpu = "no GPU";
// A library has no plan for an operation of these extents and types.
inline constexpr absl::string_view kReasonNoPlan = "no plan";

inline constexpr absl::string_view kReasonPayload = "cadre/reason";

// Requires: !error.ok().
inline absl::Status WithReason(absl::Status error, absl::string_view reason) {
  error.SetPayload(kReasonPayload, absl::Cord(reason));
  return error;
}

inline bool HasReason(const absl::Status& error, absl::string_view reason) {
  const auto payload = error.GetPayload(kReasonPayload);
  return payload.has_value() && *payload == reason;
}

}  // namespace cadre
