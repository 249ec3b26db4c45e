#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

constexpr int64_t kDefaultTokenBytes = 2;
// Tokens travel as fp32, which counts exactly up to here.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

// Sample i is tokens [i L, i L + L] of the file, the last being only a label.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(std::unique_ptr<ByteSource> file, int64_t size, int64_t token_bytes,
               const DatasetNeeds& needs)
      : file_(std::move(file)),
        size_(size),
        token_bytes_(token_bytes),
        shape_(needs.sample_shape),
        vocabulary_(std::min(needs.vocabulary, kMaxVocabulary)),
        classes_(needs.classes) {}

  int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return shape_; }
  int64_t labels_per_sample() const override { return length(); }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    return Get(samples, {}, labels);
  }

 private:
  int64_t length() const { return shape_[0]; }
  // Tokens from number `first` on.
  absl::Status Read(int64_t first, std::vector<std::byte>& bytes, std::span<int64_t> tokens) const;
  // Errors unless `token`, which is number `place` of the file, is below `bound`.
  absl::Status Check(int64_t place, int64_t token, int64_t bound) const;

  const std::unique_ptr<ByteSource> file_;
  const int64_t size_;
  const int64_t token_bytes_;
  const Shape shape_;
  const int64_t vocabulary_;
  const int64_t classes_;
};

absl::Status TokenDataset::Read(int64_t first, std::vector<std::byte>& bytes,
                                std::span<int64_t> tokens) const {
  const auto width = static_cast<size_t>(token_bytes_);
  bytes.resize(tokens.size() * width);
  CADRE_RETURN_IF_ERROR(file_->ReadAt(first * token_bytes_, bytes));
  for (size_t i = 0; i < tokens.size(); ++i) {
    int64_t token = 0;
    for (size_t b = width; b-- > 0;) {
      token = token << 8 | std::to_integer<int64_t>(bytes[i * width + b]);
    }
    tokens[i] = token;
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::Check(int64_t place, int64_t token, int64_t bound) const {
  if (token < bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file_->name(), ": token number ", place,
                                                 ", at offset ", place * token_bytes_, ", is ",
                                                 token, "; the model knows tokens below ", bound));
}

absl::Status TokenDataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                               std::span<int32_t> labels) const {
  const auto width = static_cast<size_t>(length());
  std::vector<int64_t> tokens(width + 1);
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckSample(samples[i].index, size_));
    const int64_t first = samples[i].index * length();
    CADRE_RETURN_IF_ERROR(Read(first, bytes, tokens));
    for (size_t t = 0; t <= width; ++t) {
      const int64_t place = first + static_cast<int64_t>(t);
      if (t < width && !inputs.empty()) {
        CADRE_RETURN_IF_ERROR(Check(place, tokens[t], vocabulary_));
        inputs[i * width + t] = static_cast<float>(tokens[t]);
      }
      if (t > 0 && !labels.empty()) {
        CADRE_RETURN_IF_ERROR(Check(place, tokens[t], classes_));
        labels[i * width + t - 1] = static_cast<int32_t>(tokens[t]);
      }
    }
  }
  return absl::OkStatus();
}

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
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenByteSource(path));
  const int64_t bytes = file->size();
  if (bytes % token_bytes != 0) {
    return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes; tokens are ",
                                            token_bytes, " bytes each; it seems cut short"));
  }
  const int64_t length = needs.sample_shape[0];
  const int64_t tokens = bytes / token_bytes;
  if (tokens <= length) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": holds ", tokens, " tokens; one sample and its labels are ", length + 1));
  }
  const int64_t size = (tokens - 1) / length;
  return std::make_unique<TokenDataset>(std::move(file), size, token_bytes, needs);
}

}  // namespace cadre
