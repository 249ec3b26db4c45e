// Reads one version of one shard from its file and checks every block.
//
// Owns the open file, so a version that is removed meanwhile stays readable. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/block_file.h"
#include "tensor/interval.h"

namespace cadre {

class VersionReader {
 public:
  VersionReader(std::unique_ptr<BlockFile> file, Interval span);

  Interval span() const { return span_; }
  // Reads the values at positions first, first + 1, ... in the host's byte order. Requires: data
  // has room for whole values, all inside span().
  absl::Status Read(int64_t first, std::span<char> data);

 private:
  absl::Status Load(uint64_t block);

  const std::unique_ptr<BlockFile> file_;
  const Interval span_;
  // The last block read.
  std::vector<char> block_;
  uint64_t block_index_ = 0;
};

}  // namespace cadre
