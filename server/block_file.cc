// Layout, in little-endian integers:
//
//   offset 0    magic (8), data bytes (8), block bytes (4), meta bytes (4), CRC32C (4), unused (4)
//   offset 32   meta
//   then        for each block: CRC32C (4), data (block bytes; the last block may be shorter)
//
// The magic ends with the two digits of the format's number. Later formats keep the header, so a
// damaged number is not mistaken for one of them.
//
// The positions of all blocks follow from the header, so blocks can be written in any order and
// read directly. The CRC precedes its block because both are written by one call: a torn write
// leaves a block whose CRC does not match. Nothing marks a file as complete; Verify checks that
// every block is undamaged and that the file ends after the last one.
//
// CRC32C detects all errors of up to 32 consecutive bits and all but 2^-32 of the others.
//
// Threads that read or write a file together cut it where their work requires it and not at its
// blocks. The CRC of a block is the XOR of the shares of its parts (base/crc32c.h), so each part is
// checked when it is in the cache of its thread anyway, and no thread waits for another. A scan
// therefore knows only at its end whether what it has read is undamaged.
#include "server/block_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "server/file_format.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold little-endian integers");

constexpr absl::string_view kMagic = "CDRBLK";
// The two digits after it.
constexpr uint32_t kBlockFormat = 1;
// Larger than the header of any contribution.
constexpr uint32_t kMaxMetaBytes = 16 << 20;

// The part of the header before the meta.
struct FixedHead {
  char magic[8] = {'C', 'D', 'R', 'B', 'L', 'K', '0', '0' + kBlockFormat};
  uint64_t data_bytes = 0;
  uint32_t block_bytes = 0;
  uint32_t meta_bytes = 0;
  // CRC of the fields above and the meta.
  uint32_t crc = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(FixedHead) == 32);

absl::string_view Bytes(const FixedHead& fixed) {
  return {reinterpret_cast<const char*>(&fixed), sizeof(fixed)};
}

uint32_t HeadCrc(const FixedHead& fixed, absl::string_view meta) {
  return Crc32c(absl::StrCat(Bytes(fixed).substr(0, offsetof(FixedHead, crc)), meta));
}

std::string Encode(const BlockFileHead& head) {
  FixedHead fixed;
  fixed.data_bytes = head.data_bytes;
  fixed.block_bytes = head.block_bytes;
  fixed.meta_bytes = static_cast<uint32_t>(head.meta.size());
  fixed.crc = HeadCrc(fixed, head.meta);
  return absl::StrCat(Bytes(fixed), head.meta);
}

absl::string_view AsText(const uint32_t& number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

// Calls use(index, inside, part) with the parts of `data` that lie in one block each.
template <typename Data, typename Use>
absl::Status ForEachPart(uint64_t block_bytes, uint64_t offset, Data data, const Use& use) {
  while (!data.empty()) {
    const uint64_t inside = offset % block_bytes;
    const Data part(data.data(), std::min<uint64_t>(data.size(), block_bytes - inside));
    CADRE_RETURN_IF_ERROR(use(offset / block_bytes, inside, part));
    data = Data(data.data() + part.size(), data.size() - part.size());
    offset += part.size();
  }
  return absl::OkStatus();
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<BlockFileHead> ReadHead(const File& file, const std::string& path) {
  FixedHead fixed;
  CADRE_ASSIGN_OR_RETURN(size_t n,
                         file.ReadAt(0, {reinterpret_cast<char*>(&fixed), sizeof(fixed)}, {}));
  uint32_t format = 0;
  absl::string_view magic(fixed.magic, sizeof(fixed.magic));
  if (n != sizeof(fixed) || !absl::ConsumePrefix(&magic, kMagic) ||
      !absl::SimpleAtoi(magic, &format) || fixed.meta_bytes > kMaxMetaBytes ||
      fixed.block_bytes == 0) {
    return Damaged(path, "the header is damaged");
  }
  BlockFileHead head;
  head.data_bytes = fixed.data_bytes;
  head.block_bytes = fixed.block_bytes;
  head.meta.resize(fixed.meta_bytes);
  CADRE_ASSIGN_OR_RETURN(n, file.ReadAt(sizeof(fixed), head.meta, {}));
  if (n != head.meta.size() || HeadCrc(fixed, head.meta) != fixed.crc) {
    return Damaged(path, "the header is damaged");
  }
  CADRE_RETURN_IF_ERROR(CheckFormat(path, format, kBlockFormat));
  return head;
}

}  // namespace

uint64_t BlockFileHead::BytesOf(uint64_t index) const {
  return std::min<uint64_t>(block_bytes, data_bytes - index * block_bytes);
}

BlockFile::BlockFile(FileSystem& files, std::unique_ptr<File> file, std::string path,
                     BlockFileHead head)
    : files_(files), file_(std::move(file)), path_(std::move(path)), head_(std::move(head)) {}

template <typename Use>
auto BlockFile::WithFile(const Use& use) const -> decltype(use(std::declval<const File&>())) {
  if (file_ != nullptr) return use(*file_);
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(path_, Access::kRead));
  return use(*file);
}

absl::StatusOr<std::unique_ptr<BlockFile>> BlockFile::Create(FileSystem& files,
                                                             const std::string& path,
                                                             BlockFileHead head) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(path));
  if (absl::Status status = file->WriteAt(0, Encode(head), ""); !status.ok()) {
    files.RemoveFile(path).IgnoreError();
    return status;
  }
  return std::unique_ptr<BlockFile>(new BlockFile(files, std::move(file), path, std::move(head)));
}

absl::StatusOr<std::unique_ptr<BlockFile>> BlockFile::Open(FileSystem& files,
                                                           const std::string& path, Access access) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Open(path, access));
  CADRE_ASSIGN_OR_RETURN(BlockFileHead head, ReadHead(*file, path));
  return std::unique_ptr<BlockFile>(new BlockFile(files, std::move(file), path, std::move(head)));
}

uint64_t BlockFile::Position(uint64_t index) const {
  return sizeof(FixedHead) + head_.meta.size() + index * (sizeof(uint32_t) + head_.block_bytes);
}

absl::Status BlockFile::WriteBlock(uint64_t index, std::span<const absl::string_view> parts,
                                   uint32_t crc) {
  std::vector<absl::string_view> block = {AsText(crc)};
  block.insert(block.end(), parts.begin(), parts.end());
  CADRE_RETURN_IF_ERROR(file_->WritePartsAt(Position(index), block));
  file_->BeginSync(Position(index), sizeof(crc) + head_.BytesOf(index));
  return absl::OkStatus();
}

absl::Status BlockFile::WritePart(uint64_t index, uint64_t inside, absl::string_view data) {
  return file_->WriteAt(Position(index) + sizeof(uint32_t) + inside, data, "");
}

absl::Status BlockFile::WriteCrc(uint64_t index, uint32_t crc) {
  CADRE_RETURN_IF_ERROR(file_->WriteAt(Position(index), AsText(crc), ""));
  file_->BeginSync(Position(index), sizeof(crc) + head_.block_bytes);
  return absl::OkStatus();
}

absl::Status BlockFile::RewriteHead(std::string meta, uint64_t data_bytes) {
  head_.meta = std::move(meta);
  head_.data_bytes = data_bytes;
  return file_->WriteAt(0, Encode(head_), "");
}

absl::Status BlockFile::Sync() { return file_->Sync(); }

absl::Status BlockFile::ReadPart(uint64_t index, uint64_t inside, std::span<char> data,
                                 uint32_t* crc) const {
  std::span<char> check;
  uint64_t position = Position(index);
  if (inside == 0) {
    check = {reinterpret_cast<char*>(crc), sizeof(*crc)};
  } else {
    position += sizeof(*crc) + inside;
  }
  CADRE_ASSIGN_OR_RETURN(const size_t n, WithFile([&](const File& file) {
                           return file.ReadAt(position, check, data);
                         }));
  if (n == check.size() + data.size()) return absl::OkStatus();
  return Damaged(path_, absl::StrCat("block ", index, " of ", head_.blocks(), " is truncated"));
}

absl::Status BlockFile::ReadBlock(uint64_t index, std::span<char> data) const {
  uint32_t crc = 0;
  CADRE_RETURN_IF_ERROR(ReadPart(index, 0, data, &crc));
  if (Crc32c({data.data(), data.size()}) == crc) return absl::OkStatus();
  return Damaged(path_, absl::StrCat("block ", index, " of ", head_.blocks(), " is damaged"));
}

absl::Status BlockFile::ReadUnchecked(uint64_t offset, std::span<char> data) const {
  return ForEachPart(head_.block_bytes, offset, data,
                     [&](uint64_t index, uint64_t inside, std::span<char> part) {
                       uint32_t ignored = 0;
                       return ReadPart(index, inside, part, &ignored);
                     });
}

absl::StatusOr<uint64_t> BlockFile::CountWholeBlocks(const OnRead& on_read) const {
  std::vector<char> buffer(std::min<uint64_t>(head_.block_bytes, head_.data_bytes));
  for (uint64_t index = 0; index < head_.blocks(); ++index) {
    const absl::Status status = ReadBlock(index, {buffer.data(), head_.BytesOf(index)});
    if (status.code() == absl::StatusCode::kDataLoss) return index;
    CADRE_RETURN_IF_ERROR(status);
    if (on_read) CADRE_RETURN_IF_ERROR(on_read(head_.BytesOf(index)));
  }
  return head_.blocks();
}

absl::Status BlockFile::Verify(const OnRead& on_read) const {
  std::vector<char> buffer(std::min<uint64_t>(head_.block_bytes, head_.data_bytes));
  for (uint64_t index = 0; index < head_.blocks(); ++index) {
    CADRE_RETURN_IF_ERROR(ReadBlock(index, {buffer.data(), head_.BytesOf(index)}));
    if (on_read) CADRE_RETURN_IF_ERROR(on_read(head_.BytesOf(index)));
  }
  return CheckSize();
}

absl::Status BlockFile::CheckSize() const {
  CADRE_ASSIGN_OR_RETURN(const uint64_t actual,
                         WithFile([](const File& file) { return file.Size(); }));
  const uint64_t size =
      sizeof(FixedHead) + head_.meta.size() + head_.data_bytes + head_.blocks() * sizeof(uint32_t);
  if (actual < size) return Damaged(path_, "is truncated");
  if (actual > size) return Damaged(path_, "has bytes after its end");
  return absl::OkStatus();
}

BlockWriter::BlockWriter(std::unique_ptr<BlockFile> file, uint64_t max_bytes)
    : file_(std::move(file)), blocks_(max_bytes / file_->head().block_bytes + 1) {}

absl::Status BlockWriter::Write(uint64_t offset, absl::string_view data) {
  const uint32_t block_bytes = file_->head().block_bytes;
  return ForEachPart(block_bytes, offset, data,
                     [&](uint64_t index, uint64_t inside, absl::string_view part) -> absl::Status {
                       if (part.size() == block_bytes)
                         return file_->WriteBlock(index, part, Crc32c(part));
                       CADRE_RETURN_IF_ERROR(file_->WritePart(index, inside, part));
                       Block& block = blocks_[index];
                       block.crc ^= CrcShare(Crc32c(part), block_bytes - inside - part.size());
                       const auto size = static_cast<uint32_t>(part.size());
                       if (block.bytes.fetch_add(size) + size != block_bytes)
                         return absl::OkStatus();
                       return file_->WriteCrc(index, block.crc);
                     });
}

absl::Status BlockWriter::Finish(std::string meta, uint64_t data_bytes) {
  CADRE_RETURN_IF_ERROR(file_->RewriteHead(std::move(meta), data_bytes));
  // Where the last block ends was not known when its parts were written.
  const uint64_t last = data_bytes / file_->head().block_bytes;
  if (last < file_->head().blocks()) {
    std::vector<char> data(file_->head().BytesOf(last));
    CADRE_RETURN_IF_ERROR(file_->ReadUnchecked(last * file_->head().block_bytes, data));
    CADRE_RETURN_IF_ERROR(file_->WriteCrc(last, Crc32c({data.data(), data.size()})));
  }
  return file_->Sync();
}

BlockScan::BlockScan(std::unique_ptr<BlockFile> file)
    : file_(std::move(file)), differences_(file_->head().blocks()) {}

absl::Status BlockScan::Read(uint64_t offset, std::span<char> data) {
  return ForEachPart(file_->head().block_bytes, offset, data,
                     [&](uint64_t index, uint64_t inside, std::span<char> part) -> absl::Status {
                       uint32_t crc = 0;
                       CADRE_RETURN_IF_ERROR(file_->ReadPart(index, inside, part, &crc));
                       const uint64_t end = inside + part.size();
                       differences_[index] ^= crc ^ CrcShare(Crc32c({part.data(), part.size()}),
                                                             file_->head().BytesOf(index) - end);
                       return absl::OkStatus();
                     });
}

absl::Status BlockScan::Check() const {
  const auto damaged = std::find_if(differences_.begin(), differences_.end(),
                                    [](const auto& difference) { return difference != 0; });
  if (damaged == differences_.end()) return file_->CheckSize();
  return Damaged(file_->path(), absl::StrCat("block ", damaged - differences_.begin(), " of ",
                                             differences_.size(), " is damaged"));
}

// A pull may read ranges in any order, but usually they ascend and are much smaller than a block.
// The last block is therefore kept, so that each block is usually read and checked once per pull.
absl::Status VersionReader::Load(uint64_t block) {
  if (!block_.empty() && block == block_index_) return absl::OkStatus();
  block_.resize(file_->head().BytesOf(block));
  block_index_ = block;
  const absl::Status status = file_->ReadBlock(block, block_);
  if (!status.ok()) block_.clear();
  return status;
}

absl::Status VersionReader::Read(int64_t first, std::span<char> data) {
  uint64_t offset = (first - span_.begin) * sizeof(float);
  while (!data.empty()) {
    CADRE_RETURN_IF_ERROR(Load(offset / file_->head().block_bytes));
    const uint64_t inside = offset % file_->head().block_bytes;
    const size_t n = std::min<uint64_t>(data.size(), block_.size() - inside);
    std::memcpy(data.data(), block_.data() + inside, n);
    data = data.subspan(n);
    offset += n;
  }
  return absl::OkStatus();
}

}  // namespace cadre
