// Limits of the text in the messages of members, applied where they enter the coordinator: what it
// stores, sends to other members and shows is then of bounded length and can be printed.
//
// Thread-safe (pure function).
#pragma once

#include "absl/status/status.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Escapes and shortens reasons and errors (ShortReason in base/peer_text.h), which the member could
// not correct. Errors: InvalidArgument, naming the field, for the name, address, program ... of a
// Hello that CheckName or CheckPeerLine refuses, and for any other text of more than 4 KiB.
absl::Status LimitText(v1::MemberMessage& message);

}  // namespace cadre
