#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cublas_math.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/cudnn_math.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/library_workspace.h"

namespace cadre {
namespace {

class LibraryMath : public DenseMath {
 public:
  explicit LibraryMath(CudaDevice& device) : workspace_(device) {}

  absl::Status Start(CudaDevice& device, const LibrarySearch& search,
                     const LibraryMathOptions& options) {
    CADRE_ASSIGN_OR_RETURN(const CublasLtApi cublas, LoadCublasLt(search));
    CADRE_ASSIGN_OR_RETURN(const CudnnApi cudnn, LoadCudnn(search));
    versions_ = absl::StrCat(CublasLtVersion(cublas), ", ", CudnnVersion(cudnn));
    // Handles are of the device that the thread uses.
    if (!device.Check(device.api().set_device(device.ordinal()), "choice of the device")) {
      return device.status();
    }
    CADRE_ASSIGN_OR_RETURN(products_, CublasMath::Make(cublas, device, workspace_));
    CADRE_ASSIGN_OR_RETURN(cudnn_, CudnnMath::Make(cudnn, device, workspace_, options));
    return absl::OkStatus();
  }

  void set_tf32(bool allowed) override { tf32_ = allowed; }

  void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b,
                     std::span<const float> bias, Values c) override {
    products_->Multiply(dims, tf32_, a, b, bias, c);
  }

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                          Values y) override {
    cudnn_->Forward(dims, tf32_, x, w, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                               Values dx) override {
    cudnn_->BackwardData(dims, tf32_, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  std::span<float> dw) override {
    cudnn_->BackwardWeights(dims, tf32_, x, dy, dw);
  }

  bool HasFusedAttention(const AttentionDims& dims, DType type) override {
    return cudnn_->HasAttention(dims, type);
  }
  void FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                             std::span<float> statistics) override {
    cudnn_->AttentionForward(dims, qkv, context, statistics);
  }
  void FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                              ConstValues dcontext, std::span<const float> statistics,
                              Values dqkv) override {
    cudnn_->AttentionBackward(dims, qkv, context, dcontext, statistics, dqkv);
  }

  std::string versions() const override { return versions_; }

 private:
  LibraryWorkspace workspace_;
  std::string versions_;
  bool tf32_ = false;
  std::unique_ptr<CublasMath> products_;
  std::unique_ptr<CudnnMath> cudnn_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DenseMath>> MakeLibraryMath(CudaDevice& device,
                                                           const LibrarySearch& search,
                                                           const LibraryMathOptions& options) {
  auto math = std::make_unique<LibraryMath>(device);
  CADRE_RETURN_IF_ERROR(math->Start(device, search, options));
  return math;
}

}  // namespace cadre
