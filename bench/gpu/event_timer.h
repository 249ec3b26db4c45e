// Times work on a device by the clock of the device: events before and after it on the stream for
// computation.
//
// The host enqueues faster than the device works only if operations are not too small. Work is
// therefore repeated for some milliseconds, and copies precede it that keep the device busy while
// the host enqueues, so that the work runs without gaps.
//
// Borrows the device. Thread-compatible. Requires: no other work is in progress on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"

namespace cadre {

class EventTimer {
 public:
  // Errors: the device's.
  static absl::StatusOr<EventTimer> Make(CudaDevice& device);
  EventTimer(EventTimer&& other) noexcept;
  EventTimer& operator=(EventTimer&&) = delete;
  ~EventTimer();

  // Median seconds of one call of `work`. Errors: the device's.
  absl::StatusOr<double> Seconds(const std::function<void()>& work);

  // Seconds from the beginning to the end of all operations that `work` enqueues, on any stream, if
  // all of them are enqueued before the first begins. `enqueuing`: the time that the host may take
  // for that.
  absl::StatusOr<double> SecondsWithoutGaps(double enqueuing,
                                            const std::function<absl::Status()>& work);

 private:
  explicit EventTimer(CudaDevice& device) : device_(device) {}
  // Keeps the stream for computation busy for about `seconds`.
  void Occupy(double seconds);
  absl::Status Measure(const std::function<void()>& work, double* seconds);

  CudaDevice& device_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t ends_[kDeviceStreams] = {};
  DeviceArray<std::byte> from_, to_;
  // Seconds of one copy between the two arrays.
  double copy_seconds_ = 0;
};

}  // namespace cadre
