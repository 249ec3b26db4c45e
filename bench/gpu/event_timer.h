// How long work on a device takes, by the device's own clock: events before and after it on the
// stream for computing.
//
// The host enqueues faster than the device works only where pieces are not too small, so work is
// repeated until it is long enough, and a stretch of copies goes before it, during which the host
// enqueues: what is timed is the device's work without gaps.
//
// Borrows the device. Thread-compatible. Requires: nothing else is under way.
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

  // Seconds that `work` takes: the median over `rounds`, in each of which it is done often enough
  // to last some milliseconds. It is done once before. Errors: the device's.
  absl::StatusOr<double> Seconds(const std::function<void()>& work, int rounds = 7);

  // Seconds from the beginning of what `work` enqueues, on whatever streams, to its end, when all
  // of it was enqueued before it began. `enqueuing`: how long that may take the host.
  absl::StatusOr<double> SecondsWithoutGaps(double enqueuing,
                                            const std::function<absl::Status()>& work);

 private:
  explicit EventTimer(CudaDevice& device) : device_(device) {}
  // Keeps the stream for computing busy for about so long.
  void Occupy(double seconds);
  absl::Status Measure(const std::function<void()>& work, double* seconds);

  CudaDevice& device_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t ends_[kDeviceStreams] = {};
  DeviceArray<std::byte> from_, to_;
  // That one copy between these takes.
  double copy_seconds_ = 0;
};

}  // namespace cadre
