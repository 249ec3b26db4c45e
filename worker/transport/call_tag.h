// What a message is a part of: one call of one collective. Every message carries it, and the
// receiver compares it with its own: ranks that disagree get an error that names both sides.
//
// A value; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/collective.h"
#include "tensor/dtype.h"

namespace cadre {

struct CallTag {
  Collective collective = Collective::kNone;
  Algorithm algorithm = Algorithm::kNone;
  DType dtype = DType::kBytes;
  // Members that take part, and a hash of who they are.
  uint16_t members = 0;
  uint32_t group = 0;
  // Calls of these members before this one.
  uint32_t sequence = 0;
  // Of the whole call; 0 where ranks may differ (all-to-all).
  uint64_t elements = 0;

  friend bool operator==(const CallTag&, const CallTag&) = default;
  // "all-reduce by ring, number 12, of 400 float32 among 4 (group 9f3a21)".
  std::string ToString() const;
};

}  // namespace cadre
