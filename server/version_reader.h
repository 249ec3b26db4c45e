// Reads one version of one shard from its file, every block checked.
//
// Owns the open file, so a version that is removed meanwhile can still be read to the end.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/block_file.h"
#include "server/client/shard_span.h"

namespace cadre {

class VersionReader {
 public:
  VersionReader(std::unique_ptr<BlockFile> file, FlatSpan span);

  FlatSpan span() const { return span_; }
  // The values at positions first, first + 1, ... as they lie in memory.
  // Requires: data holds whole values inside span().
  absl::Status Read(uint64_t first, std::span<char> data);

 private:
  absl::Status Load(uint64_t block);

  const std::unique_ptr<BlockFile> file_;
  const FlatSpan span_;
  // The block read last.
  std::vector<char> block_;
  uint64_t block_index_ = 0;
};

}  // namespace cadre
