// Token files: little-endian integers of 1, 2 or 4 bytes without a header. Files may be larger than
// memory, so each sample is read when it is requested; the operating system caches them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_format.h"
#include "base/status.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

constexpr int64_t kDefaultTokenBytes = 2;

// Any bytes are tokens, so files of other formats would be read without an error.
absl::Status CheckFormat(const ByteSource& file, int64_t token_bytes) {
  CADRE_ASSIGN_OR_RETURN(
      const std::string first,
      file.ReadText({0, std::min<int64_t>(file.size(), static_cast<int64_t>(kFormatBytes))}));
  const FileFormat* format = FormatOtherThanNumbers(first, static_cast<uint64_t>(token_bytes));
  if (format == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      file.name(), ": is not a file of tokens, which has no header", FormatNote(first)));
}

// Sample i consists of tokens i L to i L + L of the file, both included; the last one is only a
// label.
class TokenDataset final : public SequenceDataset {
 public:
  TokenDataset(std::unique_ptr<ByteSource> file, int64_t size, int64_t token_bytes,
               const DatasetNeeds& needs)
      : SequenceDataset(size, needs), file_(std::move(file)), token_bytes_(token_bytes) {}

 private:
  absl::Status ReadTokens(int64_t index, std::span<int64_t> tokens) const override {
    std::vector<std::byte> bytes(tokens.size() * token_bytes_);
    CADRE_RETURN_IF_ERROR(file_->ReadAt(index * length() * token_bytes_, bytes));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = 0;
      for (int64_t b = token_bytes_; b-- > 0;) {
        tokens[i] = tokens[i] << 8 | std::to_integer<int64_t>(bytes[i * token_bytes_ + b]);
      }
    }
    return absl::OkStatus();
  }
  std::string TokenName(int64_t index, int64_t t) const override {
    const int64_t number = index * length() + t;
    return absl::StrCat(file_->name(), ": token number ", number, ", at offset ",
                        number * token_bytes_);
  }

  const std::unique_ptr<ByteSource> file_;
  const int64_t token_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokenFiles(const v1::TokenFiles& data, Split split,
                                                        const DatasetNeeds& needs) {
  const int64_t token_bytes =
      data.bytes_per_token() == 0 ? kDefaultTokenBytes : data.bytes_per_token();
  if (token_bytes != 1 && token_bytes != 2 && token_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrCat("data.token_files.bytes_per_token is ",
                                                   token_bytes, "; it must be 1, 2 or 4"));
  }
  const std::string& path = split == Split::kTrain ? data.train() : data.test();
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenByteSource(path, needs.files));
  CADRE_RETURN_IF_ERROR(CheckFormat(*file, token_bytes));
  const int64_t bytes = file->size();
  if (bytes % token_bytes != 0) {
    return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes, but tokens have ",
                                            token_bytes, " bytes each; the file seems truncated"));
  }
  const int64_t length = needs.sample_shape[0];
  const int64_t tokens = bytes / token_bytes;
  if (tokens <= length) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": holds ", tokens, " tokens, but one sample with its labels needs ", length + 1));
  }
  const int64_t size = (tokens - 1) / length;
  return std::make_unique<TokenDataset>(std::move(file), size, token_bytes, needs);
}

}  // namespace cadre
