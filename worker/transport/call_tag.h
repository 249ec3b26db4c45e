// Identifies one call of one collective. Every message carries the tag of its call, and the
// receiver compares it with the tag of its own call. If they differ, the error names both.
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
  // Number of members, and a hash of the list of their ranks.
  uint16_t members = 0;
  uint32_t group = 0;
  // Number of earlier calls of these members.
  uint32_t sequence = 0;
  // Elements of the whole call; 0 if ranks may differ (all-to-all).
  uint64_t elements = 0;

  friend bool operator==(const CallTag&, const CallTag&) = default;
  // "all-reduce by ring, number 12, of 400 float32 among 4 (group 9f3a21)".
  std::string ToString() const;
};

}  // namespace cadre
