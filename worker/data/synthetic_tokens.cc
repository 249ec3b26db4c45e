#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// Share of tokens that follow no rule, where the spec says nothing.
constexpr float kDefaultNoise = 0.1F;

// Parts of the stream of random numbers.
enum Substream : uint64_t { kRule = 0, kFirstSample = 1 };

class SyntheticTokens final : public Dataset {
 public:
  SyntheticTokens(const v1::SyntheticData& data, Split split, const DatasetNeeds& needs)
      : seed_(needs.seed),
        split_(split == Split::kTest ? 1 : 0),
        size_(split == Split::kTest ? data.test_samples() : data.train_samples()),
        shape_(needs.sample_shape),
        classes_(data.classes()),
        noise_(data.has_noise() ? data.noise() : kDefaultNoise) {}

  int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return shape_; }
  int64_t labels_per_sample() const override { return shape_[0]; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    return Get(samples, {}, labels);
  }

 private:
  void Draw(int64_t index, std::span<uint64_t> tokens) const;

  const uint64_t seed_;
  // Tells the splits' samples apart.
  const uint64_t split_;
  const int64_t size_;
  const Shape shape_;
  const uint64_t classes_;
  const float noise_;
};

// A token is a function of the two before it, the same in both splits, or, now and then, any token.
void SyntheticTokens::Draw(int64_t index, std::span<uint64_t> tokens) const {
  const uint64_t sample = kFirstSample + 2 * static_cast<uint64_t>(index) + split_;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const bool free =
        t < 2 || RandomUniform(seed_, RandomStream::kSyntheticTokens, sample, 2 * t) < noise_;
    const uint64_t bits = free
                              ? RandomBits(seed_, RandomStream::kSyntheticTokens, sample, 2 * t + 1)
                              : RandomBits(seed_, RandomStream::kSyntheticTokens, kRule,
                                           tokens[t - 2] * classes_ + tokens[t - 1]);
    tokens[t] = bits % classes_;
  }
}

absl::Status SyntheticTokens::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                                  std::span<int32_t> labels) const {
  const auto width = static_cast<size_t>(shape_[0]);
  std::vector<uint64_t> tokens(width + 1);
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckSample(samples[i].index, size_));
    Draw(samples[i].index, tokens);
    for (size_t t = 0; t < width; ++t) {
      if (!inputs.empty()) inputs[i * width + t] = static_cast<float>(tokens[t]);
      if (!labels.empty()) labels[i * width + t] = static_cast<int32_t>(tokens[t + 1]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticTokens(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs) {
  if (!(data.noise() >= 0.0F && data.noise() <= 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.synthetic.noise is ", data.noise(),
                     "; for tokens it is the share of random ones, 0 to 1"));
  }
  if (data.classes() > needs.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("data.synthetic.classes is ", data.classes(),
                                                   "; the model knows ", needs.vocabulary,
                                                   " tokens"));
  }
  return std::make_unique<SyntheticTokens>(data, split, needs);
}

}  // namespace cadre
