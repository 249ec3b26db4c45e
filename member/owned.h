// What a rank owns of the model: intervals of the parameter order (all elements of all parameters
// in one fixed order), with their values in host memory unless stated otherwise.
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "plan/ownership.h"
#include "tensor/interval.h"

namespace cadre {

struct Owned {
  // values[i] belongs to position positions.begin + i.
  Interval positions;
  std::span<float> values;
};

// Positions whose optimizer states have made so many updates since they were zero.
struct UpdateCount {
  Interval positions;
  int64_t updates = 0;

  friend bool operator==(const UpdateCount&, const UpdateCount&) = default;
};

// A state of the averaging between groups (model/averaging_state.h), as one rank has it.
struct AveragingState {
  std::string name;
  std::vector<Owned> values;
};

// Appends what this rank owns of a bucket, whose slice [slice_begin(), slice_end()) of weights or
// state is `slice`.
inline void AppendOwned(const BucketOwnership& bucket, std::span<float> slice,
                        std::vector<Owned>* owned) {
  CHECK_EQ(std::ssize(slice), bucket.slice_end() - bucket.slice_begin());
  for (const OwnedInterval& part : bucket.owned) {
    owned->push_back(
        {part.positions, slice.subspan(part.offset - bucket.slice_begin(), part.positions.size())});
  }
}

// The parts of `owned` whose positions are in `range`, in the same order.
inline std::vector<Owned> PartsIn(Interval range, std::span<const Owned> owned) {
  std::vector<Owned> parts;
  for (const Owned& whole : owned) {
    const Interval part = Intersect(whole.positions, range);
    if (part.empty()) continue;
    parts.push_back({part, whole.values.subspan(part.begin - whole.positions.begin, part.size())});
  }
  return parts;
}

}  // namespace cadre
