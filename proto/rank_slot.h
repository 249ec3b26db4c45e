// Compares RankSlot messages. Each identifies a rank in one generation of a group.
//
// Thread-safe (pure function).
#pragma once

#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

inline bool SamePlace(const v1::RankSlot& a, const v1::RankSlot& b) {
  return a.run() == b.run() && a.group() == b.group() && a.generation() == b.generation() &&
         a.rank() == b.rank();
}

}  // namespace cadre
