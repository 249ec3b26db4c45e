// The values of a pull, chunk by chunk.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/block_file.h"
#include "server/ledger_values.h"

namespace cadre {

// Begins a pull of a frame: the elements of the whole frame, and what its round has exchanged.
struct FrameHead {
  int64_t elements = 0;
  uint32_t fragment = 0;
};

class VersionPull {
 public:
  // Passes errors of the reader through `on_error`.
  using OnError = std::function<absl::Status(const absl::Status&)>;
  // `reader`: null for zeros.
  VersionPull(PullGrant grant, std::unique_ptr<VersionReader> reader, OnError on_error,
              const FrameHead& frame = {});

  const FrameHead& frame() const { return frame_; }
  // Remaining elements.
  int64_t left() const { return left_; }
  // Reads the next values, as many as fit; returns the number of elements.
  absl::StatusOr<int64_t> Next(std::span<char> data);

 private:
  const PullGrant grant_;
  const std::unique_ptr<VersionReader> reader_;
  const OnError on_error_;
  const FrameHead frame_;
  size_t span_ = 0;
  // Elements of the span that have been read.
  int64_t read_ = 0;
  int64_t left_;
};

}  // namespace cadre
