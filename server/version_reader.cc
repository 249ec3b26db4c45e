// A pull may read ranges in any order, but usually they ascend and are much smaller than a block.
// The last block is therefore kept, so that each block is usually read and checked once per pull.
#include "server/version_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace cadre {

VersionReader::VersionReader(std::unique_ptr<BlockFile> file, Interval span)
    : file_(std::move(file)), span_(span) {}

absl::Status VersionReader::Load(uint64_t block) {
  if (!block_.empty() && block == block_index_) return absl::OkStatus();
  block_.resize(file_->head().BytesOf(block));
  block_index_ = block;
  const absl::Status status = file_->ReadBlock(block, block_);
  if (!status.ok()) block_.clear();
  return status;
}

absl::Status VersionReader::Read(int64_t first, std::span<char> data) {
  uint64_t at = (first - span_.begin) * sizeof(float);
  while (!data.empty()) {
    CADRE_RETURN_IF_ERROR(Load(at / file_->head().block_bytes));
    const uint64_t inside = at % file_->head().block_bytes;
    const size_t n = std::min<uint64_t>(data.size(), block_.size() - inside);
    std::memcpy(data.data(), block_.data() + inside, n);
    data = data.subspan(n);
    at += n;
  }
  return absl::OkStatus();
}

}  // namespace cadre
