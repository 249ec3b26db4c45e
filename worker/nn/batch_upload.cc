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

template <typename T>
void CopyIn(Device& device, std::span<const T> from, DeviceArray<T>& slot) {
  CHECK_LE(from.size(), static_cast<size_t>(slot.size()));
  if (!from.empty()) device.CopyIn(from.data(), slot.data(), from.size_bytes());
}

// Returns the elements of the fixed memory.
template <typename T>
std::span<const T> CopyToFixed(Device& device, const DeviceArray<T>& slot, size_t size,
                               DeviceArray<T>& fixed) {
  if (size > 0) device.Copy(slot.data(), fixed.data(), size * sizeof(T));
  return fixed.span().first(size);
}

}  // namespace

bool BatchUpload::Reserve(size_t inputs, size_t labels, size_t candidates) {
  Device& device = kernels_.device();
  if (device.is_host()) {
    return type_ != DType::kFloat32 && Grow(device, inputs_, inputs * SizeOf(type_));
  }
  for (Slot& slot : slots_) {
    Grow(device, slot.inputs, inputs);
    Grow(device, slot.labels, labels);
    Grow(device, slot.candidates, candidates);
    if (slot.arrived == nullptr) slot.arrived = device.MakeEvent();
    if (slot.taken == nullptr) slot.taken = device.MakeEvent();
  }
  const bool inputs_moved = Grow(device, inputs_, inputs * SizeOf(type_));
  const bool labels_moved = Grow(device, labels_, labels);
  const bool candidates_moved = Grow(device, candidates_, candidates);
  return inputs_moved || labels_moved || candidates_moved;
}

void BatchUpload::Upload(const HostBatch& batch) {
  Device& device = kernels_.device();
  if (device.is_host()) {
    loaded_inputs_ = type_ == DType::kFloat32 ? ConstValues(batch.inputs) : Converted(batch.inputs);
    loaded_labels_ = batch.labels;
    loaded_candidates_ = batch.candidates;
    return;
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  {
    const OnStream copies(device, Stream::kCopies);
    device.WaitFor(*slot.taken);
    CopyIn(device, batch.inputs, slot.inputs);
    CopyIn(device, batch.labels, slot.labels);
    CopyIn(device, batch.candidates, slot.candidates);
    device.Record(*slot.arrived);
  }
  device.WaitFor(*slot.arrived);
  loaded_inputs_ = Converted(slot.inputs.span().first(batch.inputs.size()));
  loaded_labels_ = CopyToFixed(device, slot.labels, batch.labels.size(), labels_);
  loaded_candidates_ = CopyToFixed(device, slot.candidates, batch.candidates.size(), candidates_);
  device.Record(*slot.taken);
}

Values BatchUpload::Converted(std::span<const float> inputs) {
  const Values fixed(inputs_.data(), inputs.size(), type_);
  kernels_.memory().Copy(inputs, fixed);
  return fixed;
}

int64_t BatchUpload::bytes() const {
  size_t numbers = labels_.size() + candidates_.size();
  for (const Slot& slot : slots_) {
    numbers += slot.inputs.size() + slot.labels.size() + slot.candidates.size();
  }
  // Each takes four bytes.
  return inputs_.size() + numbers * sizeof(float);
}

}  // namespace cadre
