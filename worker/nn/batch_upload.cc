// Two stages: host -> slot on the copy stream, slot -> fixed memory on the current stream. The
// first stage overlaps with the previous step; the second is short, because it stays on the device.
// A captured step reads only the fixed memory, whose address never changes.
//
// Two slots suffice: a slot is overwritten when the batch before the previous one has been taken
// from it. `arrived` and `taken` order the two streams around each slot.
#include "worker/nn/batch_upload.h"

#include "glog/logging.h"

namespace cadre {
namespace {

// Frees the old array before it allocates, to keep the peak low. Returns whether there was one.
template <typename T>
bool Grow(Device& device, DeviceArray<T>& array, size_t size) {
  if (array.size() >= size) return false;
  const bool moved = array.size() > 0;
  array = DeviceArray<T>();
  array = DeviceArray<T>(device, size, "batches");
  return moved;
}

}  // namespace

bool BatchUpload::Reserve(size_t inputs, size_t labels) {
  Device& device = kernels_.device();
  if (device.is_host()) {
    return type_ != DType::kFloat32 && Grow(device, inputs_, inputs * SizeOf(type_));
  }
  for (Slot& slot : slots_) {
    Grow(device, slot.inputs, inputs);
    Grow(device, slot.labels, labels);
    if (slot.arrived == nullptr) slot.arrived = device.MakeEvent();
    if (slot.taken == nullptr) slot.taken = device.MakeEvent();
  }
  const bool inputs_moved = Grow(device, inputs_, inputs * SizeOf(type_));
  const bool labels_moved = Grow(device, labels_, labels);
  return inputs_moved || labels_moved;
}

void BatchUpload::Upload(std::span<const float> inputs, std::span<const int32_t> labels) {
  Device& device = kernels_.device();
  if (device.is_host()) {
    loaded_inputs_ = type_ == DType::kFloat32 ? ConstValues(inputs) : Converted(inputs);
    loaded_labels_ = labels;
    return;
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  CHECK(inputs.size() <= slot.inputs.size() && labels.size() <= slot.labels.size());
  {
    const OnStream copies(device, Stream::kCopies);
    device.WaitFor(*slot.taken);
    device.CopyIn(inputs.data(), slot.inputs.data(), inputs.size_bytes());
    device.CopyIn(labels.data(), slot.labels.data(), labels.size_bytes());
    device.Record(*slot.arrived);
  }
  device.WaitFor(*slot.arrived);
  const ConstValues fixed = Converted(slot.inputs.span().first(inputs.size()));
  device.Copy(slot.labels.data(), labels_.data(), labels.size_bytes());
  device.Record(*slot.taken);
  loaded_inputs_ = fixed;
  loaded_labels_ = labels_.span().first(labels.size());
}

Values BatchUpload::Converted(std::span<const float> inputs) {
  const Values fixed(inputs_.data(), inputs.size(), type_);
  kernels_.memory().Copy(inputs, fixed);
  return fixed;
}

int64_t BatchUpload::bytes() const {
  size_t bytes = inputs_.size() + labels_.size() * sizeof(int32_t);
  for (const Slot& slot : slots_) {
    bytes += slot.inputs.size() * sizeof(float) + slot.labels.size() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace cadre
