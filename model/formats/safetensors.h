// Files of named tensors in the safetensors format: random access reading, sequential writing.
//
//   CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   const StoredTensor* tensor = file.Find("conv1/weight");
//   CADRE_RETURN_IF_ERROR(file.Read(*tensor, 0, values));
//
// The header is validated against the size of the file before use. Every error names the file and,
// if applicable, the tensor. Codes: NotFound, PermissionDenied, ... if a file cannot be opened or
// read; InvalidArgument for invalid or truncated files; DataLoss for files that shrank after
// opening.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/atomic_file.h"
#include "base/rooted_files.h"
#include "model/formats/safetensors_header.h"

namespace cadre {

// Movable; thread-compatible.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(
      const std::string& path, const RootedFiles& files = RootedFiles::Unrestricted());
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  // The path.
  const std::string& name() const;
  // Whether Read converts the type.
  static bool CanRead(absl::string_view type);

  // In the order of the data.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Null if there is none.
  const StoredTensor* Find(absl::string_view name) const;

  // Elements [first, first + values.size()) of a tensor, as fp32; F16, BF16 and F64 are converted.
  // Requires: `tensor` is of this file; the elements are within it.
  // Errors: InvalidArgument for other types.
  absl::Status Read(const StoredTensor& tensor, int64_t first, std::span<float> values);

 private:
  class File;
  explicit SafetensorsFile(std::unique_ptr<File> file);
  absl::Status ReadHeader();

  std::unique_ptr<File> file_;
  SafetensorsHeader header_;
  // Offset of the data in the file.
  int64_t data_ = 0;
  // By name, the position in header_.tensors.
  absl::flat_hash_map<std::string, size_t> by_name_;
};

// The metadata of a file for PyTorch, without which some programs refuse it.
std::map<std::string, std::string> TorchMetadata();

// Writes tensors of one type sequentially to an AtomicFile, which Finish commits. Movable;
// thread-compatible.
class SafetensorsWriter {
 public:
  // Errors: as AtomicFile; InvalidArgument for repeated or reserved names.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<NamedShape>& tensors,
      const std::map<std::string, std::string>& metadata, FloatType type = FloatType::kF32);

  // Appends any number of elements, in the order of the tensors, row-major, also across tensors;
  // other types than fp32 are rounded to nearest, ties to even. Requires: no more than the tensors
  // have. Errors: OutOfRange, naming the element, if it is finite and its rounded value is not.
  absl::Status Append(std::span<const float> values);
  // Requires: every element was appended.
  absl::Status Finish();

 private:
  SafetensorsWriter(AtomicFile file, std::vector<NamedShape> tensors, int64_t elements,
                    FloatType type)
      : file_(std::move(file)),
        tensors_(std::move(tensors)),
        type_(type),
        elements_(elements),
        missing_(elements) {}

  absl::Status AppendRounded(std::span<const float> values);
  // `position`: of the element in the file.
  absl::Status TooLarge(int64_t position, float value) const;

  AtomicFile file_;
  std::vector<NamedShape> tensors_;
  FloatType type_;
  int64_t elements_;
  // Number of elements that are still to be appended.
  int64_t missing_;
};

// Writes a whole file: `values` are those of the tensors, one after another. Errors: as
// SafetensorsWriter. Requires: as many values as the tensors have elements.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedShape>& tensors,
                              std::span<const float> values,
                              const std::map<std::string, std::string>& metadata = {},
                              FloatType type = FloatType::kF32);

}  // namespace cadre
