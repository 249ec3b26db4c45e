// The format of a file by its first bytes, for messages of readers that expect another format: a
// pointer of Git LFS in place of a file of weights, a compressed archive, a page of HTML.
//
//   return InvalidArgumentError(StrCat(path, ": is not an IDX file", FormatNote(first_bytes)));
//
// Readers accept a file by their own rules alone. Messages name the format only and do not quote
// the file, because the reader of a message may not have the permission to read it.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Number of bytes from the beginning of a file that RecognizeFormat uses.
inline constexpr size_t kFormatBytes = 512;

// Names of formats that have readers.
inline constexpr absl::string_view kTarFormat = "a tar archive";
inline constexpr absl::string_view kSafetensorsFormat = "a safetensors file";
inline constexpr absl::string_view kIdxFormat = "an IDX file";
inline constexpr absl::string_view kOnnxFormat = "an ONNX model";
inline constexpr absl::string_view kJpegFormat = "a JPEG image";
inline constexpr absl::string_view kTextFormat = "text";

struct FileFormat {
  // Completes "it is ...": "a Git LFS pointer", "compressed (gzip)".
  absl::string_view name;
  // What the user can do; may be empty.
  absl::string_view remedy;
  // The bytes identify the format even in a file of plain numbers, such as tokens.
  bool certain = true;
  // Text without zeros, which files of numbers of several bytes do not look like.
  bool text = false;
};

// Null if the format is unknown. `first` are the first bytes of a file; kFormatBytes of them
// suffice, and fewer are allowed.
const FileFormat* RecognizeFormat(absl::string_view first);

// The format of a file that cannot have numbers of so many bytes each; null if it may have them.
const FileFormat* FormatOtherThanNumbers(absl::string_view first, uint64_t bytes_per_number);

// ": it is compressed (gzip); decompress it, for example with 'gzip -d'"; empty if the format is
// unknown or `expected`, that of the reader. The note names a remedy only if it helps the reader.
std::string FormatNote(absl::string_view first, absl::string_view expected = "");

}  // namespace cadre
