// What a worker computes on: a device, its kernels, and the transport that data of a group travel
// by, made from the words of a flag.
//
// Owns device, kernels and loaded libraries; what ConnectData makes must be gone before it.
// Thread-compatible; one per training run at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/transport/transport.h"

namespace cadre {

struct ComputeOptions {
  // "cpu", "cuda" (the first one) or "cuda:N".
  std::string device = "cpu";
  // Of the CPU. Compute threads, >= 1; plain loops instead of oneDNN: slow, for checking.
  int threads = 1;
  bool reference_kernels = false;
  // Of a CUDA device. Most of its memory that is taken, in bytes; 0: all that is free but a
  // reserve. Folders that are looked into first for cuBLAS, cuDNN and NCCL.
  int64_t memory_limit = 0;
  std::vector<std::string> libraries;
};

class Compute {
 public:
  virtual ~Compute() = default;
  virtual Backend& kernels() = 0;
  // For people and for records of what was measured, with what tells such computers apart.
  virtual std::string name() const = 0;
  // Most memory that a group's tensors may take here: of a CUDA device what this process may take
  // of it, else the host's, which its other workers share.
  virtual int64_t memory_bytes() const = 0;
  // Of the ranks that `control` connects; all of them call it. Null: data lie in the host's memory
  // and travel by `control` itself.
  virtual std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)>
  connect_data() = 0;
};

// Errors: InvalidArgument for another word; FailedPrecondition where this build, this machine or
// its driver has no such device, saying what to do; NotFound for a number that is not there;
// Unavailable for a device that does not answer.
absl::StatusOr<std::unique_ptr<Compute>> MakeCompute(const ComputeOptions& options);

// The part of it for CUDA devices; another file where the build has none.
absl::StatusOr<std::unique_ptr<Compute>> MakeCudaCompute(int ordinal,
                                                         const ComputeOptions& options);

}  // namespace cadre
