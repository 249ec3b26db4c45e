// Measures kernels one after the other relative to the ceilings of a GPU, and prints a JSON line
// for each when its time is known. Also has memory for the tensors of the kernels, which is
// allocated once, so that no allocation happens between kernels.
//
// Borrows device, kernels and timer. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/gpu/gpu_bench.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "kernels/backend.h"
#include "nlohmann/json.hpp"

namespace cadre {

struct KernelBenchOptions {
  // Elements of the tensors that are copied for the ceiling of memory; should exceed the caches.
  int64_t elements = int64_t{1} << 26;
  // Side of the matrices whose product is the ceiling of arithmetic.
  int64_t side = 4096;
  // Memory for tensors.
  size_t memory = size_t{1} << 30;
  // Only kernels with one of these words in their names; empty: all kernels.
  std::vector<std::string> only;
  // Measured rounds of each kernel, of which the median counts.
  int rounds = 7;
};

class KernelBench {
 public:
  // Errors: the device's.
  KernelBench(CudaDevice& device, Backend& kernels, EventTimer& timer,
              const KernelBenchOptions& options);

  CudaDevice& device() { return device_; }
  Backend& kernels() { return kernels_; }

  // Measures the rates against which kernels are compared, and returns them for an output line.
  absl::StatusOr<nlohmann::ordered_json> MeasureCeilings();
  // The precision of the following kernels, which is appended to their names.
  absl::Status SetPrecision(Precision precision);

  // Frees all tensors. New tensors contain numbers in [-1, 1), because GPUs multiply zeros faster;
  // the bits are valid both as fp32 and as bf16, which is the upper half of an fp32.
  void Clear();
  size_t used() const { return used_; }
  // A tensor of activations, or of another type. Requires: there is enough memory.
  Values Tensor(int64_t elements) { return Take(elements, kernels_.activation_type()); }
  std::span<float> Floats(int64_t elements) { return Span<float>(elements); }
  template <typename T>
  std::span<T> Span(int64_t elements) {
    const Values bytes = Take(elements * static_cast<int64_t>(sizeof(T)), DType::kBytes);
    return {static_cast<T*>(bytes.data()), static_cast<size_t>(elements)};
  }

  // Times a kernel that must move `bytes` at least, or compute `flop`. Kernels that are not
  // selected, or that follow one that failed, are not run.
  void TimeBytes(absl::string_view kernel, double bytes, const std::function<void()>& work);
  void TimeFlop(absl::string_view kernel, double flop, const std::function<void()>& work);
  // The error of the kernel that failed: the device's.
  const absl::Status& status() const { return status_; }

 private:
  Values Take(int64_t elements, DType type);
  void Time(absl::string_view kernel, double amount, double ceiling, double unit, const char* field,
            const std::function<void()>& work);
  // Floating-point operations per second of one large matrix product.
  absl::StatusOr<double> ProductRate(Precision precision);

  CudaDevice& device_;
  Backend& kernels_;
  EventTimer& timer_;
  const KernelBenchOptions options_;
  // The contents of new tensors, repeatedly.
  DeviceArray<std::byte> numbers_;
  DeviceArray<std::byte> memory_;
  size_t used_ = 0;
  std::string suffix_;
  absl::Status status_;
  // Ceilings per second; `products_` is the ceiling of products in the current precision.
  double copy_ = 1, bf16_ = 1, tf32_ = 1, products_ = 1;
};

}  // namespace cadre
