// The version of the protocol between processes.
//
// A build understands its own version and the one before, so the members of a cluster can be
// upgraded one after another. Changes of the messages that processes send to each other raise it:
//
//   by 0  fields that a receiver may ignore, such as fields of the status
//   by 1  changes without which this build can work, too: it handles members of the version before
//   by 2  all other changes: members of the version before are refused
//
// The rules hold for released numbers. None is released yet: 2 is that of version 0.1.0, which is
// in development, so its messages may still change in any way without a new number.
//
// A test compares the messages with a digest (tests/base/rpc/protocol_test.cc), so that no change
// is overlooked.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

inline constexpr uint32_t kProtocol = 2;

// Whether builds of the two versions can work together. A newer build accepts the version before
// its own, so the older one does not need to know it.
constexpr bool AreCompatible(uint32_t a, uint32_t b) { return a <= b ? b - a <= 1 : a - b <= 1; }

}  // namespace cadre
