#include "tests/kernels/on_device.h"

#include "glog/logging.h"

namespace cadre {

OnDevice::OnDevice(Device& device, const Floats& values, DType type, int64_t shift)
    : device_(device),
      type_(type),
      size_(values.size()),
      shift_(shift),
      memory_(device, (values.size() + shift) * SizeOf(type), "test") {
  if (values.empty()) return;
  if (type == DType::kFloat32) {
    device.CopyIn(values.data(), this->values().data(), values.size() * sizeof(float));
    return;
  }
  CHECK(type == DType::kBFloat16);
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) narrow[i] = ToBf16(values[i]);
  device.CopyIn(narrow.data(), this->values().data(), narrow.size() * sizeof(uint16_t));
}

Values OnDevice::values() const {
  if (size_ == 0) return {nullptr, 0, type_};
  return {memory_.data() + shift_ * SizeOf(type_), size_, type_};
}

Floats OnDevice::Get() const {
  Floats floats(size_);
  if (size_ == 0) return floats;
  if (type_ == DType::kFloat32) {
    EXPECT_TRUE(device_.CopyOut(values().data(), floats.data(), size_ * sizeof(float)).ok());
    return floats;
  }
  std::vector<uint16_t> narrow(size_);
  EXPECT_TRUE(device_.CopyOut(values().data(), narrow.data(), size_ * sizeof(uint16_t)).ok());
  for (size_t i = 0; i < size_; ++i) floats[i] = FromBf16(narrow[i]);
  return floats;
}

}  // namespace cadre
