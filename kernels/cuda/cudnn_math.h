// Convolutions and fused attention by cuDNN. See dense_math.h.
//
// Weights that cuDNN wants in another order are brought into it beside the library's workspace, and
// the gradients of weights, which it gives in the activations' type, are brought back from there
// into fp32.
//
// Borrows device and workspace; owns the library's handle and its plans, one for every extent, type
// and alignment. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/library_workspace.h"
#include "tensor/values.h"

namespace cadre {

class CudnnMath {
 public:
  // Errors: those of a library that does not start.
  static absl::StatusOr<std::unique_ptr<CudnnMath>> Make(const CudnnApi& api, CudaDevice& device,
                                                         LibraryWorkspace& workspace,
                                                         const LibraryMathOptions& options);
  ~CudnnMath();

  // As DenseMath's.
  void Forward(const ConvolutionDims& dims, bool tf32, ConstValues x, ConstValues w, Values y);
  void BackwardData(const ConvolutionDims& dims, bool tf32, ConstValues dy, ConstValues w,
                    Values dx);
  void BackwardWeights(const ConvolutionDims& dims, bool tf32, ConstValues x, ConstValues dy,
                       std::span<float> dw);
  bool HasAttention(const AttentionDims& dims, DType type);
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                        std::span<float> statistics);
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                         ConstValues dcontext, std::span<const float> statistics, Values dqkv);

 private:
  using Tensors = std::span<const std::pair<CudnnTensor, void*>>;
  // Null where the library has none.
  struct AttentionPlans {
    std::unique_ptr<CudnnPlan> forward, backward;
  };

  CudnnMath(const CudnnApi& api, CudaDevice& device, LibraryWorkspace& workspace);
  // Null after an error, or where a recording would have to wait for one.
  CudnnPlan* PlanOf(const ConvolutionKey& key);
  AttentionPlans& AttentionPlansOf(const AttentionDims& dims);
  // The weights as the plan wants them, in `scratch` where that is another order.
  void* OrderedWeights(const ConvolutionDims& dims, ConstValues w, std::byte* scratch);
  void Run(CudnnPlan& plan, Tensors tensors, std::byte* workspace);
  void Fail(const absl::Status& error);

  const CudnnApi api_;
  CudaDevice& device_;
  LibraryWorkspace& workspace_;
  CudnnMachine machine_;
  // What the handle was told last.
  cudaStream_t stream_ = nullptr;
  std::map<ConvolutionKey, std::unique_ptr<CudnnPlan>> convolutions_;
  std::map<AttentionDims, AttentionPlans> attentions_;
};

}  // namespace cadre
