// Plans of cuDNN. A plan is one operation with its extents, types and strides, and the kernels that
// the library chose for it. NVIDIA's cudnn-frontend lists plans by cuDNN's heuristics (mode A, then
// the fallback list); the first one that fits the workspace, is deterministic, and has at least the
// required precision is built.
//
// A plan borrows the tables of its CudnnTarget. Thread-compatible. Errors: Unimplemented if the
// library has no plan; otherwise Internal, ResourceExhausted or the status of the CUDA runtime's
// error. Messages name the operation and its extents and quote the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "kernels/cuda/vendor_api.h"
#include "kernels/cuda/vendor_layout.h"
#include "tensor/dtype.h"

namespace cadre {

// The libraries and the device that plans are made for. Borrows the tables.
struct CudnnTarget {
  const CudnnApi* cudnn = nullptr;
  const CudaApi* cuda = nullptr;
  int ordinal = 0;
  // Null: plans are made for the device that `description` describes, and cannot be run.
  cudnnHandle_t handle = nullptr;
  // JSON in the format of cuDNN's device properties; used without a handle.
  std::string description;
  // Maximum workspace of a plan.
  int64_t workspace_limit = int64_t{1} << 30;
};

// Tensors of a plan.
enum CudnnTensor : int64_t {
  kImage = 1,
  kWeights,
  kOutputs,
  kQuery,
  kKey,
  kValue,
  kContext,
  kStatistics,
  kContextGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
};

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual size_t workspace() const = 0;
  // The library's name for the plan: an engine and its settings.
  virtual std::string name() const = 0;
  // Enqueues the operation on the stream of the handle.
  virtual absl::Status Execute(std::span<const std::pair<CudnnTensor, void*>> tensors,
                               std::byte* workspace) = 0;
};

enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardWeights };

struct ConvolutionKey {
  ConvolutionDims dims;
  ConvolutionPass pass = ConvolutionPass::kForward;
  // Type of all three tensors.
  DType type = DType::kFloat32;
  bool tf32 = false;
  // Alignment in bytes of all three tensors.
  int64_t alignment = 16;
  friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
};

// Tensors: kImage (x or dx, channels last), kWeights (w or dw, [out, taps, channels]), kOutputs (y
// or dy). Requires: !ShapeOf(key.dims).windows_miss_image.
absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeConvolutionPlan(const CudnnTarget& target,
                                                               const ConvolutionKey& key);

// Tensors are bf16, and query, key and value are views of qkv (dense_math.h); the statistics are
// fp32 [batch, heads, tokens].
absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeAttentionPlan(const CudnnTarget& target,
                                                             const AttentionDims& dims,
                                                             bool backward);

}  // namespace cadre
