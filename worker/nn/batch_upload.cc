#include "worker/nn/batch_upload.h"

#include "glog/logging.h"

namespace cadre {
namespace {

// Makes room, giving back what was there first. True: there was something.
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
  for (Place& place : places_) {
    Grow(device, place.inputs, inputs);
    Grow(device, place.labels, labels);
    if (place.arrived == nullptr) place.arrived = device.MakeEvent();
    if (place.taken == nullptr) place.taken = device.MakeEvent();
  }
  const bool inputs_moved = Grow(device, inputs_, inputs * SizeOf(type_));
  const bool labels_moved = Grow(device, labels_, labels);
  return inputs_moved || labels_moved;
}

void BatchUpload::Upload(std::span<const float> inputs, std::span<const int32_t> labels) {
  Device& device = kernels_.device();
  Place& place = places_[next_];
  next_ = (next_ + 1) % places_.size();
  CHECK(inputs.size() <= place.inputs.size() && labels.size() <= place.labels.size());
  {
    const OnLane copies(device, Lane::kCopies);
    device.WaitFor(*place.taken);
    device.CopyIn(inputs.data(), place.inputs.data(), inputs.size_bytes());
    device.CopyIn(labels.data(), place.labels.data(), labels.size_bytes());
    device.Record(*place.arrived);
  }
  device.WaitFor(*place.arrived);
  inputs_here_ = inputs.size();
  labels_here_ = labels.size();
  kernels_.Copy(place.inputs.span().first(inputs_here_),
                Values(inputs_.data(), inputs_here_, type_));
  device.Copy(place.labels.data(), labels_.data(), labels.size_bytes());
  device.Record(*place.taken);
}

int64_t BatchUpload::bytes() const {
  size_t bytes = inputs_.size() + labels_.size() * sizeof(int32_t);
  for (const Place& place : places_) {
    bytes += place.inputs.size() * sizeof(float) + place.labels.size() * sizeof(int32_t);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace cadre
