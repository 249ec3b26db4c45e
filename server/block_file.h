// A file of numbered blocks with a CRC32C each, behind a head that says what the file is and how
// much belongs into it. Truncation and damage are found when a block is read, never passed on.
//
//   head    magic, sizes, meta (the user's bytes), CRC32C of all that
//   block   CRC32C, data; all blocks but the last have block_bytes
//
// Blocks may be written in any order; one block is one write at a fixed place, so writing a block
// again with the same data is harmless, also from two writers at once.
//
// Errors: DataLoss names the file and the block; ResourceExhausted a full disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

struct BlockFileHead {
  std::string meta;
  uint32_t block_bytes = 0;
  // Bytes of data in all blocks together once the file is whole.
  uint64_t data_bytes = 0;

  uint64_t blocks() const { return (data_bytes + block_bytes - 1) / block_bytes; }
  // Bytes of data in block `index`.
  uint64_t BytesOf(uint64_t index) const;
};

// Thread-safe, except that Close ends all use.
class BlockFile {
 public:
  // Makes the file, in the place of one that may be there. Requires: head.block_bytes > 0.
  static absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path,
                                                           BlockFileHead head);
  // Opens one that is there, to read or also to write. DataLoss: the head is damaged.
  static absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable);

  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  ~BlockFile();

  const BlockFileHead& head() const { return head_; }
  const std::string& path() const { return path_; }

  // Requires: data has head().BytesOf(index) bytes, crc is its CRC32C.
  absl::Status WriteBlock(uint64_t index, absl::string_view data, uint32_t crc);
  // Replaces the meta. Requires: the same size; nobody else uses the file meanwhile.
  absl::Status RewriteMeta(std::string meta);
  // What was written is on the disk for good.
  absl::Status Sync();

  // Reads a block and checks it. Requires: data has head().BytesOf(index) bytes.
  absl::Status ReadBlock(uint64_t index, std::span<char> data) const;
  // Reads bytes [at, at + data.size()) of the data without checking: for blocks checked before.
  absl::Status ReadUnchecked(uint64_t at, std::span<char> data) const;
  // How many blocks from the first on are there and undamaged.
  absl::StatusOr<uint64_t> CountWholeBlocks() const;
  // OK: all blocks are there and undamaged, and nothing is behind them.
  absl::Status Verify() const;

 private:
  BlockFile(int fd, std::string path, BlockFileHead head);

  uint64_t Position(uint64_t index) const;

  const int fd_;
  const std::string path_;
  BlockFileHead head_;
};

}  // namespace cadre
