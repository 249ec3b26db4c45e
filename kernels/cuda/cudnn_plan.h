// Plans of cuDNN: one operation with its extents, types and strides, and the kernels that the
// library chose for it. Built by NVIDIA's cudnn-frontend from cuDNN's own heuristics (mode A, then
// the fallback list): the first plan that fits the workspace, is deterministic where that is asked
// for, and computes no more coarsely than allowed.
//
// A plan borrows the tables of its CudnnMachine. Thread-compatible. Errors: Unimplemented where the
// library has no plan; Internal, ResourceExhausted and what the CUDA runtime says otherwise. They
// name the operation, its extents and the library's own words.
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
#include "kernels/cuda/convolution_shape.h"
#include "kernels/cuda/cudnn_library.h"
#include "tensor/dtype.h"

namespace cadre {

// What plans are made with and for. Borrows the tables.
struct CudnnMachine {
  const CudnnApi* cudnn = nullptr;
  const CudaApi* cuda = nullptr;
  int ordinal = 0;
  // Null: plans for the device that `description` tells of, which cannot be run.
  cudnnHandle_t handle = nullptr;
  // JSON, as cuDNN writes its device properties.
  std::string description;
  // No plan asks for more.
  int64_t workspace_limit = int64_t{1} << 30;
  // Only plans that give the same bits every time.
  bool deterministic = true;
};

// Tensors of a plan, as Execute's numbers.
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
  // The library's name of it: an engine and its settings.
  virtual std::string name() const = 0;
  // Enqueues it on the stream that the handle was given.
  virtual absl::Status Execute(std::span<const std::pair<CudnnTensor, void*>> tensors,
                               std::byte* workspace) = 0;
};

enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardWeights };

struct ConvolutionKey {
  ConvolutionDims dims;
  ConvolutionPass pass = ConvolutionPass::kForward;
  // Of all three tensors.
  DType type = DType::kFloat32;
  bool tf32 = false;
  // Of all three tensors.
  int64_t alignment = 16;
  friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
};

// Tensors: kImage (x or dx, channels last), kWeights (w or dw, [out, taps, channels]), kOutputs (y
// or dy). Requires: !ShapeOf(key.dims).blind.
absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeConvolutionPlan(const CudnnMachine& machine,
                                                               const ConvolutionKey& key);

// bf16. Query, key and value lie in qkv as dense_math.h has it; statistics: fp32 [batch, heads,
// tokens].
absl::StatusOr<std::unique_ptr<CudnnPlan>> MakeAttentionPlan(const CudnnMachine& machine,
                                                             const AttentionDims& dims,
                                                             bool backward);

}  // namespace cadre
