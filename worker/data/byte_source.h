// Bytes that can be read at any offset: a file, or memory in tests and fuzzers.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "tensor/interval.h"

namespace cadre {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // The name used in messages: the path.
  virtual const std::string& name() const = 0;
  virtual int64_t size() const = 0;
  // Fills `bytes` from `offset` on. Errors: DataLoss, naming source, offset and size, if the source
  // ends before; those of errno.
  absl::Status ReadAt(int64_t offset, std::span<std::byte> bytes) const;
  // The bytes of an interval. Errors: as ReadAt. Requires: the caller has bounded its size.
  absl::StatusOr<std::string> ReadText(Interval range) const;

 private:
  // Returns the number of bytes read, which is lower than requested if the source has become
  // shorter. Requires: the bytes lie within size().
  virtual absl::StatusOr<int64_t> Read(int64_t offset, std::span<std::byte> bytes) const = 0;
};

// Keeps the file open. Errors: NotFound, PermissionDenied and others, with the path;
// InvalidArgument unless it is a regular file.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(
    const std::string& path, const RootedFiles& files = RootedFiles::Unrestricted());

// Borrows the bytes.
class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::string name, std::span<const std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return bytes_.size(); }

 private:
  absl::StatusOr<int64_t> Read(int64_t offset, std::span<std::byte> bytes) const override;

  const std::string name_;
  const std::span<const std::byte> bytes_;
};

}  // namespace cadre
