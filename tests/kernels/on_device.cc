#include <algorithm>
#include <cmath>
#include <cstring>

#include "glog/logging.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

// To the nearest, ties to even.
uint16_t NarrowToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float Widen(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

Floats Bf16Rounded(Floats values) {
  for (float& value : values) value = Widen(NarrowToBf16(value));
  return values;
}

OnDevice::OnDevice(Device& device, const Floats& values, DType type, int64_t shift)
    : device_(device),
      type_(type),
      size_(values.size()),
      shift_(static_cast<size_t>(shift)),
      memory_(device, (values.size() + static_cast<size_t>(shift)) * SizeOf(type), "test") {
  if (values.empty()) return;
  if (type == DType::kFloat32) {
    device.CopyIn(values.data(), this->values().data(), values.size() * sizeof(float));
    return;
  }
  CHECK(type == DType::kBFloat16);
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) narrow[i] = NarrowToBf16(values[i]);
  device.CopyIn(narrow.data(), this->values().data(), narrow.size() * sizeof(uint16_t));
}

Values OnDevice::values() const {
  if (size_ == 0) return {nullptr, 0, type_};
  return {memory_.data() + shift_ * SizeOf(type_), size_, type_};
}

Floats OnDevice::Get() const {
  Floats found(size_);
  if (size_ == 0) return found;
  if (type_ == DType::kFloat32) {
    EXPECT_TRUE(device_.CopyOut(values().data(), found.data(), size_ * sizeof(float)).ok());
    return found;
  }
  std::vector<uint16_t> narrow(size_);
  EXPECT_TRUE(device_.CopyOut(values().data(), narrow.data(), size_ * sizeof(uint16_t)).ok());
  for (size_t i = 0; i < size_; ++i) found[i] = Widen(narrow[i]);
  return found;
}

void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const SliceUpdate& update,
                       std::span<const SliceSegment> segments, std::span<const float> g,
                       std::span<float> w, std::span<float> m, std::span<float> v) {
  if (update.loss != nullptr && !std::isfinite(*update.loss)) return;
  float scale = 1;
  if (update.squares != nullptr) {
    scale =
        static_cast<float>(std::min(1.0, update.clip_norm / (std::sqrt(*update.squares) + 1e-6)));
  }
  const auto number = static_cast<double>(updates);
  for (const SliceSegment& segment : segments) {
    const auto part = [&segment](auto span) {
      return span.subspan(segment.begin, segment.end - segment.begin);
    };
    if (segment.statistic) {
      host.optimizer().DrawTowards(segment.momentum, part(g), part(w));
    } else if (update.rule == SliceUpdate::Rule::kAdamW) {
      AdamWStep step = update.adamw;
      step.rate = rate;
      step.gradient_scale = scale;
      if (!segment.decays) step.weight_decay = 0;
      step.correction1 = 1 - std::pow(static_cast<double>(step.beta1), number);
      step.correction2 = 1 - std::pow(static_cast<double>(step.beta2), number);
      host.optimizer().AdamW(step, part(g), part(w), part(m), part(v));
    } else {
      SgdStep step = update.sgd;
      step.rate = rate;
      step.gradient_scale = scale;
      if (!segment.decays) step.weight_decay = 0;
      host.optimizer().Sgd(step, part(g), part(w), part(v));
    }
  }
}

}  // namespace cadre
