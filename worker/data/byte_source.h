// Bytes that can be read at any offset: a file, or memory where a test or a fuzz target has them.
//
// Thread-safe: reading changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // For messages: the path.
  virtual const std::string& name() const = 0;
  virtual int64_t size() const = 0;
  // Fills `bytes` from `offset` on.
  // Errors: DataLoss, naming source, offset and size, where it ends before; errno's otherwise.
  virtual absl::Status ReadAt(int64_t offset, std::span<std::byte> bytes) const = 0;
};

// Holds the file open. Errors: NotFound, PermissionDenied, ..., with the path; InvalidArgument for
// what is no regular file.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path);

// Borrows the bytes.
class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::string name, std::span<const std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  int64_t size() const override { return bytes_.size(); }
  absl::Status ReadAt(int64_t offset, std::span<std::byte> bytes) const override;

 private:
  const std::string name_;
  const std::span<const std::byte> bytes_;
};

// The whole of a file of at most `max_bytes`. Errors as OpenByteSource; InvalidArgument for a
// larger one.
absl::Status ReadBytes(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes);

}  // namespace cadre
