// The device that a worker computes on, its kernels, and the transport between the devices of a
// group.
//
// Owns device, kernels and loaded libraries; transports that ConnectData made must be destroyed
// first. Thread-compatible; used by one training generation at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"
#include "kernels/backend.h"

namespace cadre {

class Compute {
 public:
  virtual ~Compute() = default;
  virtual Backend& kernels() = 0;
  // The name of the hardware, for display and as part of the key of measurements.
  virtual std::string name() const = 0;
  // Names and versions of the vendor's libraries that compute; empty on the CPU.
  virtual std::string libraries() const { return ""; }
  // Maximum memory that a group's tensors may use: what this process may use of a CUDA device;
  // otherwise the host's memory, which its other workers share.
  virtual int64_t memory_bytes() const = 0;
  // Makes the transport between the devices of the ranks that `control` connects; all these ranks
  // call it. Null: tensors are in host memory and use `control`.
  virtual std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)>
  connect_data() = 0;
};

struct ComputeOptions {
  // "cpu", "cuda" (the first one) or "cuda:N".
  std::string device = "cpu";
  // CPU: number of compute threads, >= 1, and whether to use plain loops instead of oneDNN, which
  // is slow and meant for verification.
  int threads = 1;
  bool reference_kernels = false;
  // CUDA: maximum device memory in bytes, 0: all free memory except for a reserve; and folders that
  // are searched first for cuBLAS, cuDNN and NCCL.
  int64_t memory_limit = 0;
  std::vector<std::string> libraries;
  // CUDA: the host waits for every operation (CudaDeviceOptions::synchronous).
  bool synchronous = false;
};

// Errors: InvalidArgument for an unknown device; FailedPrecondition, with advice, if the build, the
// host or its driver does not support the device; NotFound for a device number that does not exist;
// Unavailable for a device that does not respond.
absl::StatusOr<std::unique_ptr<Compute>> MakeCompute(const ComputeOptions& options);

// MakeCompute for CUDA devices: compute_cuda.cc, or compute_stub.cc in builds without that back
// end.
absl::StatusOr<std::unique_ptr<Compute>> MakeCudaCompute(int ordinal,
                                                         const ComputeOptions& options);

}  // namespace cadre
