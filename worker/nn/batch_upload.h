// Copies batches (inputs, labels and the candidates of a sampled softmax) from the host to fixed
// device memory, so that work on them can be captured as a CUDA graph.
//
// A batch is copied on the copy stream, concurrently with earlier work, into one of two staging
// slots in turn. On the current stream it is then copied from the slot to the fixed memory, and
// inputs are converted to the type that layers compute in. On the host, spans of that type are
// passed through without a copy.
//
// Owns the memory; borrows the kernels. Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "kernels/backend.h"
#include "tensor/dtype.h"
#include "tensor/values.h"

namespace cadre {

// A batch in host memory. Empty spans are not copied.
struct HostBatch {
  std::span<const float> inputs;
  std::span<const int32_t> labels;
  // PassContext::candidates, then candidate_offsets.
  std::span<const float> candidates;
};

class BatchUpload {
 public:
  // `type`: of the inputs on the device.
  BatchUpload(Backend& kernels, DType type) : kernels_(kernels), type_(type) {}

  // Allocates room for so many elements. Returns whether existing memory was replaced. Requires: no
  // enqueued work uses that memory.
  bool Reserve(size_t inputs, size_t labels, size_t candidates);
  // On a device the spans have been read when the call returns; on the host they must stay valid
  // until the batch has been played. Requires: there is room.
  void Upload(const HostBatch& batch);

  // The latest batch, for work on the stream on which Upload was called.
  ConstValues inputs() const { return loaded_inputs_; }
  std::span<const int32_t> labels() const { return loaded_labels_; }
  std::span<const float> candidates() const { return loaded_candidates_; }

  int64_t bytes() const;

 private:
  // The inputs in the fixed memory, in type_.
  Values Converted(std::span<const float> inputs);

  struct Slot {
    DeviceArray<float> inputs;
    DeviceArray<int32_t> labels;
    DeviceArray<float> candidates;
    // The batch has been copied into the slot.
    std::unique_ptr<DeviceEvent> arrived;
    // The batch has been copied out of the slot.
    std::unique_ptr<DeviceEvent> taken;
  };

  Backend& kernels_;
  const DType type_;
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
  // The fixed memory; inputs are elements of type_. On the host, only inputs that are converted.
  DeviceArray<std::byte> inputs_;
  DeviceArray<int32_t> labels_;
  DeviceArray<float> candidates_;
  ConstValues loaded_inputs_;
  std::span<const int32_t> loaded_labels_;
  std::span<const float> loaded_candidates_;
};

}  // namespace cadre
