// Batches on their way from the host to a device: inputs and labels, always to the same place, so
// that work on them can be recorded.
//
// What is uploaded travels on the lane for copies, beside what was enqueued before, into one of two
// places in turn; on the current lane it is then brought to where it stays until the next one, the
// inputs as the type that they are computed in. On the host there is nothing to do, and it is not
// used.
//
// Owns the memory; borrows the kernels. Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"
#include "tensor/values.h"

namespace cadre {

class BatchUpload {
 public:
  // Inputs are to be of `type` on the device. Requires: it is no host device, or nothing is called.
  BatchUpload(Kernels& kernels, DType type) : kernels_(kernels), type_(type) {}

  // Room for so many elements. True: memory had to move. Requires: nothing is under way.
  bool Reserve(size_t inputs, size_t labels);
  // Requires: there is room. The spans have been read when the call returns.
  void Upload(std::span<const float> inputs, std::span<const int32_t> labels);

  // What was uploaded last, for work on the lane that Upload was called on.
  ConstValues inputs() const { return {inputs_.data(), inputs_here_, type_}; }
  std::span<const int32_t> labels() const { return labels_.span().first(labels_here_); }

  int64_t bytes() const;

 private:
  struct Place {
    DeviceArray<float> inputs;
    DeviceArray<int32_t> labels;
    // The host's bytes are here; they have been taken from here.
    std::unique_ptr<DeviceEvent> arrived;
    std::unique_ptr<DeviceEvent> taken;
  };

  Kernels& kernels_;
  const DType type_;
  std::array<Place, 2> places_;
  size_t next_ = 0;
  // Of type_.
  DeviceArray<std::byte> inputs_;
  DeviceArray<int32_t> labels_;
  size_t inputs_here_ = 0;
  size_t labels_here_ = 0;
};

}  // namespace cadre
