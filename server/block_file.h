// A file of numbered blocks with a CRC32C each, after a header with the size of the complete file;
// truncation and damage are detected when a block is read. And, for such files, a writer and a
// scan in pieces, which several threads share, and a reader by position, for the versions of a
// shard.
//
//   header  magic, sizes, meta (bytes that the caller defines), CRC32C of all of these
//   block   CRC32C, data; all blocks but the last have block_bytes
//
// Blocks may be written in any order. A block is one write at a fixed position, so writing it again
// with the same data is harmless, even from two threads at the same time.
//
// Errors: DataLoss names the file and the block; ResourceExhausted for a full disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "tensor/interval.h"

namespace cadre {

struct BlockFileHead {
  std::string meta;
  uint32_t block_bytes = 0;
  // Bytes of data in all blocks of the complete file.
  uint64_t data_bytes = 0;

  uint64_t blocks() const { return (data_bytes + block_bytes - 1) / block_bytes; }
  // Bytes of data in block `index`.
  uint64_t BytesOf(uint64_t index) const;
};

// Thread-safe, except that no call may run concurrently with the destructor.
class BlockFile {
 public:
  // Called with the bytes of each block that was read; an error ends the reading.
  using OnRead = std::function<absl::Status(uint64_t bytes)>;

  // Creates the file; replaces an existing one. Requires: head.block_bytes > 0; `files` outlives
  // the object.
  static absl::StatusOr<std::unique_ptr<BlockFile>> Create(FileSystem& files,
                                                           const std::string& path,
                                                           BlockFileHead head);
  // Opens an existing file. Requires: `files` outlives the object. Errors: DataLoss for a damaged
  // header; those of CheckFormat (file_format.h).
  static absl::StatusOr<std::unique_ptr<BlockFile>> Open(FileSystem& files, const std::string& path,
                                                         Access access);

  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  const BlockFileHead& head() const { return head_; }
  const std::string& path() const { return path_; }

  // Requires: the parts have head().BytesOf(index) bytes, crc is their CRC32C.
  absl::Status WriteBlock(uint64_t index, std::span<const absl::string_view> parts, uint32_t crc);
  absl::Status WriteBlock(uint64_t index, absl::string_view data, uint32_t crc) {
    return WriteBlock(index, {&data, 1}, crc);
  }
  // Replaces the meta and the bytes of data in all blocks. Requires: meta of equal size; no
  // concurrent use of the file.
  absl::Status RewriteHead(std::string meta, uint64_t data_bytes);
  // Makes all writes durable.
  absl::Status Sync();
  // From now on the file is open only while it is read, for callers that read more files than a
  // process may have open. Requires: no writes follow, and no concurrent use of the file.
  void CloseBetweenReads() { file_.reset(); }

  // Reads and checks a block. Requires: data has head().BytesOf(index) bytes.
  absl::Status ReadBlock(uint64_t index, std::span<char> data) const;
  // Reads bytes [offset, offset + data.size()) of the data without a check.
  absl::Status ReadUnchecked(uint64_t offset, std::span<char> data) const;
  // Reads bytes of a block from `inside` on without a check, and, if that is 0, its CRC.
  absl::Status ReadPart(uint64_t index, uint64_t inside, std::span<char> data, uint32_t* crc) const;
  // Writes bytes of a block, and its CRC, which must follow when the block is complete.
  absl::Status WritePart(uint64_t index, uint64_t inside, absl::string_view data);
  absl::Status WriteCrc(uint64_t index, uint32_t crc);
  // Number of leading blocks that are complete and undamaged.
  absl::StatusOr<uint64_t> CountWholeBlocks(const OnRead& on_read = nullptr) const;
  // OK if all blocks are complete and undamaged, and no bytes follow.
  absl::Status Verify(const OnRead& on_read = nullptr) const;
  // OK if no bytes follow the last block, and none are missing.
  absl::Status CheckSize() const;

 private:
  BlockFile(FileSystem& files, std::unique_ptr<File> file, std::string path, BlockFileHead head);

  uint64_t Position(uint64_t index) const;
  // Returns use(file).
  template <typename Use>
  auto WithFile(const Use& use) const -> decltype(use(std::declval<const File&>()));

  FileSystem& files_;
  // Null after CloseBetweenReads.
  std::unique_ptr<File> file_;
  const std::string path_;
  BlockFileHead head_;
};

// Writes a new file from data in pieces of any size and order.
//
// Owns the file. Thread-safe, but Finish must follow all other calls.
class BlockWriter {
 public:
  // Requires: no block of the file has been written; `max_bytes` limits the offsets.
  BlockWriter(std::unique_ptr<BlockFile> file, uint64_t max_bytes);

  // Writes the data at `offset` of that of the file. Requires: no byte is written twice.
  absl::Status Write(uint64_t offset, absl::string_view data);
  // Writes the header and makes the file durable. Requires: the bytes before `data_bytes` are
  // written, and no others; meta has the size of the file's.
  absl::Status Finish(std::string meta, uint64_t data_bytes);

  const std::string& path() const { return file_->path(); }

 private:
  // XOR of the shares (CrcShare) of the parts that are written, and the number of their bytes.
  struct Block {
    std::atomic<uint32_t> crc = 0;
    std::atomic<uint32_t> bytes = 0;
  };

  const std::unique_ptr<BlockFile> file_;
  std::vector<Block> blocks_;
};

// Reads blocks of a file once, in pieces of any size and order, and checks them in the same pass:
// what was read is known to be undamaged once Check has returned OK.
//
// Owns the file. Thread-safe, but Check must follow all other calls.
class BlockScan {
 public:
  explicit BlockScan(std::unique_ptr<BlockFile> file);

  const BlockFile& file() const { return *file_; }
  // As BlockFile.
  void CloseBetweenReads() { file_->CloseBetweenReads(); }

  // Reads the bytes at `offset` of the data. Requires: they are inside.
  absl::Status Read(uint64_t offset, std::span<char> data);
  // Reads bytes again that Read has returned, without an effect on Check.
  absl::Status ReadAgain(uint64_t offset, std::span<char> data) const {
    return file_->ReadUnchecked(offset, data);
  }
  // DataLoss naming the first block whose bytes, as they were read, do not have its CRC. Requires:
  // Read has returned all bytes or none of each block, and none twice.
  absl::Status Check() const;

 private:
  const std::unique_ptr<BlockFile> file_;
  // By block: XOR of its CRC and of the shares (CrcShare) of the parts that were read; 0 for a
  // whole and undamaged block.
  std::vector<std::atomic<uint32_t>> differences_;
};

// Reads parts of one version of one shard from its file and checks every block before its values
// are returned. Also reads other files of elements of 4 bytes, by their number.
//
// Owns the open file, so a version that is removed meanwhile stays readable. Thread-compatible.
class VersionReader {
 public:
  VersionReader(std::unique_ptr<BlockFile> file, Interval span)
      : file_(std::move(file)), span_(span) {}

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
