// Indices are checked here, before a kind reads anything; labels are read separately from inputs,
// because a rank may need one without the other.
#include "worker/data/dataset_kinds.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Tokens are passed to the network as fp32, which represents integers exactly up to here.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

bool EndsWithOneOf(absl::string_view name, std::initializer_list<absl::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [name](absl::string_view ending) {
    return absl::EndsWithIgnoreCase(name, ending);
  });
}

absl::Status CheckIndex(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("sample ", index, " does not exist; there are ", size));
}

}  // namespace

// Checks all indices before any output is written or any file is read.
absl::Status ImageDataset::GetLabels(std::span<const SampleRef> samples,
                                     std::span<int32_t> labels) const {
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckIndex(samples[i].index, size()));
    if (!labels.empty()) labels[i] = Label(samples[i].index);
  }
  return absl::OkStatus();
}

absl::Status ImageDataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                               std::span<int32_t> labels) const {
  CADRE_RETURN_IF_ERROR(GetLabels(samples, labels));
  return ReadImages(samples, inputs);
}

SequenceDataset::SequenceDataset(int64_t size, const DatasetNeeds& needs)
    : size_(size),
      shape_(needs.sample_shape),
      labels_per_sample_(needs.labels_per_sample),
      vocabulary_(std::min(needs.vocabulary, kMaxVocabulary)),
      classes_(needs.classes) {}

absl::Status SequenceDataset::CheckToken(int64_t index, int64_t t, int64_t token,
                                         int64_t bound) const {
  if (token < bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(TokenName(index, t), ", is ", token,
                                                 "; the model accepts tokens below ", bound));
}

// Only tokens that are used are checked: inputs against the vocabulary, labels against the classes.
absl::Status SequenceDataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                                  std::span<int32_t> labels) const {
  std::vector<int64_t> tokens(length() + 1);
  auto input = inputs.begin();
  auto label = labels.begin();
  for (const SampleRef& sample : samples) {
    CADRE_RETURN_IF_ERROR(CheckIndex(sample.index, size_));
    CADRE_RETURN_IF_ERROR(ReadTokens(sample.index, tokens));
    for (int64_t t = 0; t <= length(); ++t) {
      if (t < length() && !inputs.empty()) {
        CADRE_RETURN_IF_ERROR(CheckToken(sample.index, t, tokens[t], vocabulary_));
        *input++ = tokens[t];
      }
      if (t > length() - labels_per_sample_ && !labels.empty()) {
        CADRE_RETURN_IF_ERROR(CheckToken(sample.index, t, tokens[t], classes_));
        *label++ = tokens[t];
      }
    }
  }
  return absl::OkStatus();
}

bool IsJpegName(absl::string_view name) {
  return EndsWithOneOf(name, {".jpg", ".jpeg", ".jpe", ".jfif"});
}

bool IsOtherImageName(absl::string_view name) {
  return EndsWithOneOf(
      name, {".png", ".apng", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
             ".pnm", ".jp2", ".j2k", ".jxl", ".avif", ".heic", ".heif", ".tga"});
}

std::string EntryKind(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? "without an ending" : std::string(name.substr(dot));
}

}  // namespace cadre
