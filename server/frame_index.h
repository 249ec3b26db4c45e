// Where in a frame (model/frame.h) the codes of the stretches of a shard begin, so that
// threads decode it from several of them at the same time: the length of a code is known only once
// it has been decoded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "server/block_file.h"
#include "server/stretches.h"
#include "tensor/interval.h"

namespace cadre {

// A value. 16 bytes for each stretch, which has 256 KiB of values.
class FrameIndex {
 public:
  // Decodes the whole frame of the units of `spans` in a file, and checks it. `shard`: the
  // positions that are divided into stretches by the rule. Requires: the spans are in the shard, in
  // order, and consist of whole units. Errors: InvalidArgument naming the positions for a frame
  // that is malformed; those of the file, whose CRCs are not checked.
  static absl::StatusOr<FrameIndex> Scan(const BlockFile& file, const Codec& codec,
                                         const StretchRule& rule, std::span<const Interval> spans,
                                         Interval shard);

  // The bytes of the frame for these positions. Requires: they are the positions that a stretch
  // and one of the spans have in common.
  Interval BytesOf(Interval positions) const;

 private:
  struct Entry {
    int64_t position = 0;
    int64_t offset = 0;
  };

  // The first unit of each stretch and of each span, in order.
  std::vector<Entry> entries_;
  int64_t bytes_ = 0;
};

}  // namespace cadre
