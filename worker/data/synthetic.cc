// Synthetic data: functions of (seed, split, index), with the same bits on every machine and
// structure that a model can learn.
//
// Images of a class scatter around the center of the class. A token is a function of the two tokens
// before it, except for a share of random tokens. The centers and that function are the same in
// both splits, so a model that learns them on one split is right on the other.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// Share of random tokens if the spec does not specify it.
constexpr float kDefaultTokenNoise = 0.1F;

// Substreams of the stream of random numbers for tokens.
enum TokenSubstream : uint64_t { kRule = 0, kFirstSample = 1 };

int64_t SamplesOf(const v1::SyntheticData& data, Split split) {
  return split == Split::kTest ? data.test_samples() : data.train_samples();
}

// Samples of the two splits alternate, so that they use different random numbers.
uint64_t SampleNumber(int64_t index, Split split) {
  return 2 * index + (split == Split::kTest ? 1 : 0);
}

// Approximately standard normal: the sum of four uniform 16-bit numbers, centered and scaled to
// variance one; within 3.5 of zero. It needs no logarithm, whose last bits depend on the C library.
float NearNormal(uint64_t bits) {
  constexpr float kMean = 2.0F * 65535.0F;
  // A uniform number in [0, 65535] has variance (65536^2 - 1) / 12; the sum of four has a third of
  // 65536^2.
  constexpr float kScale = 1.7320508F / 65536.0F;
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (sum - kMean) * kScale;
}

// The multiple of 1/8 in [-1, 1] nearest to half of `value`. The half keeps most values inside.
float ToEighths(float value) {
  return std::clamp(std::nearbyint(value * 4.0F), -8.0F, 8.0F) / 8.0F;
}

class SyntheticImages final : public ImageDataset {
 public:
  SyntheticImages(const v1::SyntheticData& data, Split split, const DatasetNeeds& needs)
      : ImageDataset(needs.sample_shape),
        seed_(needs.seed),
        split_(split),
        size_(SamplesOf(data, split)),
        classes_(data.classes()),
        noise_(data.has_noise() ? data.noise() : 1.0F),
        exact_(data.exact()) {
    for (uint64_t label = 0; label < classes_; ++label) {
      for (int64_t i = 0; i < sample_shape().elements(); ++i) {
        centers_.push_back(
            NearNormal(RandomBits(seed_, RandomStream::kSyntheticCentres, label, i)));
      }
    }
  }

  int64_t size() const override { return size_; }

 private:
  int32_t Label(int64_t index) const override {
    return RandomBits(seed_, RandomStream::kSyntheticLabels, 0, SampleNumber(index, split_)) %
           classes_;
  }
  absl::Status ReadImages(std::span<const SampleRef> samples,
                          std::span<float> inputs) const override {
    for (size_t i = 0; i < samples.size(); ++i) Draw(samples[i].index, InputOf(inputs, i));
    return absl::OkStatus();
  }
  void Draw(int64_t index, std::span<float> image) const {
    const float* center = centers_.data() + Label(index) * image.size();
    for (size_t i = 0; i < image.size(); ++i) {
      const uint64_t bits =
          RandomBits(seed_, RandomStream::kSyntheticNoise, SampleNumber(index, split_), i);
      const float value = center[i] + noise_ * NearNormal(bits);
      image[i] = exact_ ? ToEighths(value) : value;
    }
  }

  const uint64_t seed_;
  const Split split_;
  const int64_t size_;
  const uint64_t classes_;
  const float noise_;
  const bool exact_;
  // [class][element].
  std::vector<float> centers_;
};

class SyntheticTokens final : public SequenceDataset {
 public:
  SyntheticTokens(const v1::SyntheticData& data, Split split, const DatasetNeeds& needs)
      : SequenceDataset(SamplesOf(data, split), needs),
        seed_(needs.seed),
        split_(split),
        classes_(data.classes()),
        noise_(data.has_noise() ? data.noise() : kDefaultTokenNoise) {}

 private:
  absl::Status ReadTokens(int64_t index, std::span<int64_t> tokens) const override {
    const uint64_t sample = kFirstSample + SampleNumber(index, split_);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const bool random =
          t < 2 || RandomUniform(seed_, RandomStream::kSyntheticTokens, sample, 2 * t) < noise_;
      const uint64_t bits =
          random ? RandomBits(seed_, RandomStream::kSyntheticTokens, sample, 2 * t + 1)
                 : RandomBits(seed_, RandomStream::kSyntheticTokens, kRule,
                              tokens[t - 2] * classes_ + tokens[t - 1]);
      tokens[t] = bits % classes_;
    }
    return absl::OkStatus();
  }
  std::string TokenName(int64_t index, int64_t t) const override {
    return absl::StrCat("data.synthetic: token ", t, " of sample ", index);
  }

  const uint64_t seed_;
  const Split split_;
  const uint64_t classes_;
  const float noise_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticImages(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs) {
  return std::make_unique<SyntheticImages>(data, split, needs);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticTokens(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs) {
  if (!(data.noise() >= 0.0F && data.noise() <= 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.synthetic.noise is ", data.noise(),
                     "; for tokens it is the share of random ones, between 0 and 1"));
  }
  if (data.classes() > needs.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("data.synthetic.classes is ", data.classes(),
                                                   ", but the model's vocabulary has ",
                                                   needs.vocabulary, " tokens"));
  }
  return std::make_unique<SyntheticTokens>(data, split, needs);
}

}  // namespace cadre
