// Ranges of a transfer that goes on after a broken connection.
//
// Thread-safe (pure function).
#pragma once

#include <algorithm>
#include <cstdint>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/cadre/v1/plan.pb.h"

namespace cadre {

// The ranges without their first `elements` elements.
inline google::protobuf::RepeatedPtrField<v1::Range> SkipElements(
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges, uint64_t elements) {
  google::protobuf::RepeatedPtrField<v1::Range> rest;
  for (const v1::Range& range : ranges) {
    const uint64_t skipped = std::min(elements, range.end() - range.begin());
    elements -= skipped;
    if (skipped == range.end() - range.begin()) continue;
    v1::Range* remaining = rest.Add();
    *remaining = range;
    remaining->set_begin(range.begin() + skipped);
  }
  return rest;
}

}  // namespace cadre
