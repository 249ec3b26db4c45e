// Shared by the benchmarks on a GPU: the device with its kernels, and a timer that uses the
// device's clock: events before and after the work on the stream for computation.
//
// For small operations the host may enqueue more slowly than the device works. Work is therefore
// repeated for some milliseconds, and preceded by copies that keep the device busy while the host
// enqueues, so that the work runs without gaps.
//
// Thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "nlohmann/json.hpp"
#include "worker/compute.h"

namespace cadre {

struct BenchGpu {
  std::unique_ptr<Compute> compute;
  // Owned by `compute`.
  CudaDevice* device = nullptr;
};

// `device`: "cuda" or "cuda:N". `libraries`: folders separated by commas. Errors: MakeCompute's.
absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device, const std::string& libraries);

// Fields of an output line: the device, its driver, and the libraries that compute on it.
nlohmann::ordered_json GpuFields(const BenchGpu& gpu);

// BenchMain for a benchmark on a GPU. Exit codes: 3 if this machine has no GPU or no driver, which
// is neither a success nor a failure; 4 if a library has no plan for an operation; 2 and 1 as
// BenchMain.
int GpuBenchMain(int argc, char** argv, const char* source, const char* usage,
                 const std::function<absl::Status()>& run);

// Borrows the device. Requires: no other work is in progress on it.
class EventTimer {
 public:
  // Allocates memory for copies that keep the device busy. Errors: the device's.
  static absl::StatusOr<EventTimer> Make(CudaDevice& device);
  EventTimer(EventTimer&& other) noexcept;
  EventTimer& operator=(EventTimer&&) = delete;
  ~EventTimer();

  // Seconds of one call of `work`, the median of `rounds`. Errors: the device's.
  absl::StatusOr<double> Seconds(const std::function<void()>& work, int rounds);

  // Seconds from the beginning to the end of all operations that `work` enqueues, on any stream.
  // All of them are enqueued before the first begins, if the host needs at most `enqueuing` seconds
  // for that.
  absl::StatusOr<double> SecondsWithoutGaps(double enqueuing,
                                            const std::function<absl::Status()>& work);

 private:
  explicit EventTimer(CudaDevice& device) : device_(device) {}
  // Keeps the stream for computation busy for about `seconds`.
  void Occupy(double seconds);
  void Copy() { device_.Copy(from_.data(), to_.data(), from_.size()); }

  CudaDevice& device_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t ends_[kDeviceStreams] = {};
  DeviceArray<std::byte> from_, to_;
  // Seconds of one copy between the two arrays.
  double copy_seconds_ = 0;
};

}  // namespace cadre
