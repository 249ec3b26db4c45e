#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// Close to standard normal: the sum of four uniform 16-bit numbers, centred and scaled to variance
// one; within 3.5 of zero. Unlike a logarithm it has the same bits on every machine, so that equal
// seeds are equal data whatever the C library.
float NearNormal(uint64_t bits) {
  constexpr float kMean = 2.0F * 65535.0F;
  // A uniform number over 0 ... 65535 has variance (65536^2 - 1) / 12; four of them a third.
  constexpr float kScale = 1.7320508F / 65536.0F;
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - kMean) * kScale;
}

// The nearest multiple of 1/8 in [-1, 1] to half of `value`, so that most values are not cut off.
float ToEighths(float value) {
  return std::clamp(std::nearbyint(value * 4.0F), -8.0F, 8.0F) / 8.0F;
}

class SyntheticImages final : public Dataset {
 public:
  SyntheticImages(const v1::SyntheticData& data, Split split, const DatasetNeeds& needs);

  int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override;

 private:
  // Samples of the two splits alternate, so that no number is used twice.
  uint64_t Number(int64_t index) const { return 2 * static_cast<uint64_t>(index) + split_; }
  int32_t Label(uint64_t sample) const;
  void Draw(uint64_t sample, int32_t label, std::span<float> image) const;

  const uint64_t seed_;
  // Tells the splits' samples apart.
  const uint64_t split_;
  const int64_t size_;
  const Shape shape_;
  const uint64_t classes_;
  const float noise_;
  const bool exact_;
  // [class][element]; the same for both splits.
  std::vector<float> centres_;
};

SyntheticImages::SyntheticImages(const v1::SyntheticData& data, Split split,
                                 const DatasetNeeds& needs)
    : seed_(needs.seed),
      split_(split == Split::kTest ? 1 : 0),
      size_(split == Split::kTest ? data.test_samples() : data.train_samples()),
      shape_(needs.sample_shape),
      classes_(data.classes()),
      noise_(data.has_noise() ? data.noise() : 1.0F),
      exact_(data.exact()) {
  const auto elements = static_cast<uint64_t>(shape_.elements());
  centres_.reserve(classes_ * elements);
  for (uint64_t label = 0; label < classes_; ++label) {
    for (uint64_t i = 0; i < elements; ++i) {
      centres_.push_back(NearNormal(RandomBits(seed_, RandomStream::kSyntheticCentres, label, i)));
    }
  }
}

absl::Status SyntheticImages::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                                  std::span<int32_t> labels) const {
  const auto elements = static_cast<size_t>(shape_.elements());
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckSample(samples[i].index, size_));
    const uint64_t sample = Number(samples[i].index);
    const int32_t label = Label(sample);
    if (!labels.empty()) labels[i] = label;
    Draw(sample, label, inputs.subspan(i * elements, elements));
  }
  return absl::OkStatus();
}

absl::Status SyntheticImages::GetLabels(std::span<const SampleRef> samples,
                                        std::span<int32_t> labels) const {
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckSample(samples[i].index, size_));
    labels[i] = Label(Number(samples[i].index));
  }
  return absl::OkStatus();
}

int32_t SyntheticImages::Label(uint64_t sample) const {
  return static_cast<int32_t>(RandomBits(seed_, RandomStream::kSyntheticLabels, 0, sample) %
                              classes_);
}

void SyntheticImages::Draw(uint64_t sample, int32_t label, std::span<float> image) const {
  const float* centre = centres_.data() + static_cast<size_t>(label) * image.size();
  for (size_t i = 0; i < image.size(); ++i) {
    const uint64_t bits = RandomBits(seed_, RandomStream::kSyntheticNoise, sample, i);
    const float value = centre[i] + noise_ * NearNormal(bits);
    image[i] = exact_ ? ToEighths(value) : value;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticImages(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs) {
  return std::make_unique<SyntheticImages>(data, split, needs);
}

}  // namespace cadre
