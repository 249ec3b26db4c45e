// DenseMath by the vendor's libraries: matrix products by cuBLASLt (cublas_math.h), convolutions
// and fused attention by cuDNN's plans (cudnn_plan.h).
//
// Plans are made at the first use of an extent, type and alignment, and kept. Cadre's own kernels
// (direct_convolution.h) compute a convolution for which cuDNN has no plan, or whose plan fails.
//
// Scratch memory holds first the weights, if cuDNN needs them in another order, then the library's
// workspace. cuDNN writes the gradients of weights to the place of the weights, in the activations'
// type and in its own order, and they are then converted to ours; if type and order are ours, it
// writes them directly, provided that their address is aligned.
#include "kernels/cuda/library_math.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"
#include "kernels/cuda/cublas_math.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/vendor_api.h"
#include "kernels/cuda/vendor_layout.h"
#include "kernels/cuda/weight_order.h"

namespace cadre {
namespace {

// Limits of the library's fused attention, backward included.
constexpr int64_t kMaxHeadFeatures = 128;
constexpr int kMinCapability = 80;

// Few of cuDNN's kernels accept addresses that are not multiples of this number of bytes.
constexpr uintptr_t kFastKernelAlignment = 16;

size_t RoundUpTo256(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Memory for a workspace, aligned as CudaScratch aligns it; null if it has no room.
std::byte* WorkspaceIn(Values scratch, size_t bytes) {
  void* memory = scratch.data();
  size_t room = scratch.bytes();
  return static_cast<std::byte*>(std::align(256, bytes, memory, room));
}

// cuDNN takes all tensors as void*.
void* WithoutConst(const void* memory) { return const_cast<void*>(memory); }

WeightOrderDims OrderOf(const ConvolutionDims& d) {
  return {.out = d.out_channels,
          .channels = d.in_channels / d.groups,
          .taps = d.window.kernel_height * d.window.kernel_width};
}

// Queries (part 0), keys (1) or values (2) of the first token.
const void* PartOf(const AttentionDims& d, ConstValues qkv, int64_t part) {
  return qkv.subspan(part * d.head_features).data();
}

int64_t WorkspaceLimit(const CudaDevice& device) {
  size_t free = 0, total = 0;
  if (device.api().memory_info(&free, &total) != cudaSuccess) total = 0;
  return std::clamp<int64_t>(total / 16, int64_t{64} << 20, int64_t{2} << 30);
}

class LibraryMath final : public DenseMath {
 public:
  LibraryMath(CudaDevice& device, const CudnnApi& cudnn)
      : device_(device), scratch_(device), cudnn_(cudnn) {}
  ~LibraryMath() override;
  // Starts the libraries. Called once, before all other functions. Errors: those of a library that
  // does not start.
  absl::Status Start(const CublasLtApi& cublas);

  void set_tf32(bool allowed) override { tf32_ = allowed; }
  void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b, ConstValues bias,
                     Values c) override {
    products_->Multiply(dims, tf32_, a, b, bias, c);
  }
  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                          Values y) override {
    Convolve(ConvolutionPass::kForward, dims, x, w, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                               Values dx) override {
    Convolve(ConvolutionPass::kBackwardData, dims, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw) override;
  bool HasFusedAttention(const AttentionDims& dims, DType type) override;
  void FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                             FloatSpan statistics) override;
  void FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                              ConstValues dcontext, ConstFloatSpan statistics, Values scratch,
                              Values dqkv) override;
  std::string versions() const override { return versions_; }
  DenseMathCounters counters() const override { return counters_; }

 private:
  using Tensors = std::span<const std::pair<CudnnTensor, void*>>;
  // The plans of fused attention for some extents; null if the library has none.
  struct AttentionPlans {
    std::unique_ptr<CudnnPlan> forward, backward;
  };

  // Forward, or backward of data.
  void Convolve(ConvolutionPass pass, const ConvolutionDims& dims, ConstValues from, ConstValues w,
                Values to);
  // Null after an error, or if the plan would have to be made during a capture. The plan itself is
  // null if Cadre's kernels compute the convolution.
  std::unique_ptr<CudnnPlan>* PlanOf(const ConvolutionKey& key);
  // Whether Cadre's kernels may compute a convolution whose plan fails with `error`; false after an
  // error of the device, or during a capture, which Fail then reports. Logs and counts the key.
  bool FallsBack(const absl::Status& error);
  AttentionPlans& AttentionPlansOf(const AttentionDims& dims);
  // The weights in the order of the plan, converted into `scratch` if that differs from ours.
  void* OrderedWeights(const ConvolutionDims& dims, ConstValues w, std::byte* scratch);
  absl::Status Run(CudnnPlan& plan, Tensors tensors, std::byte* workspace);
  // Runs plans that nothing else can replace.
  void RunOrFail(CudnnPlan& plan, Tensors tensors, std::byte* workspace) {
    const absl::Status status = Run(plan, tensors, workspace);
    if (!status.ok()) Fail(status);
  }
  void Fail(const absl::Status& error);

  CudaDevice& device_;
  CudaScratch scratch_;
  std::string versions_;
  bool tf32_ = false;
  std::unique_ptr<CublasMath> products_;
  const CudnnApi cudnn_;
  CudnnTarget target_;
  // The stream that the handle was last set to.
  cudaStream_t stream_ = nullptr;
  std::map<ConvolutionKey, std::unique_ptr<CudnnPlan>> convolutions_;
  std::map<AttentionDims, AttentionPlans> attentions_;
  DenseMathCounters counters_;
};

absl::Status LibraryMath::Start(const CublasLtApi& cublas) {
  versions_ = absl::StrCat(CublasLtVersion(cublas), ", ", CudnnVersion(cudnn_));
  // Makes the device current, because handles belong to the thread's current device.
  if (!device_.Check(device_.api().set_device(device_.ordinal()), "choice of the device")) {
    return device_.status();
  }
  CADRE_ASSIGN_OR_RETURN(products_, CublasMath::Make(cublas, device_, scratch_));
  target_ = {.cudnn = &cudnn_,
             .cuda = &device_.api(),
             .ordinal = device_.ordinal(),
             .workspace_limit = WorkspaceLimit(device_)};
  const cudnnStatus_t status = cudnn_.create(&target_.handle);
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  target_.handle = nullptr;
  return LibraryError(
      device_, absl::StrCat(CudnnVersion(cudnn_), " does not start"), cudnn_.error_text(status),
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ? LibraryFault::kOutOfMemory
                                                                     : LibraryFault::kOther);
}

LibraryMath::~LibraryMath() {
  convolutions_.clear();
  attentions_.clear();
  if (target_.handle != nullptr) cudnn_.destroy(target_.handle);
}

// If the device failed, its own error explains more than the library's error.
void LibraryMath::Fail(const absl::Status& error) {
  const cudaError_t cause = device_.CauseOfLibraryError();
  if (cause != cudaSuccess) {
    return device_.FailOperation(CudaStatus(device_.api(), cause, error.message()));
  }
  device_.FailOperation(
      absl::IsUnimplemented(error)
          ? WithReason(absl::FailedPreconditionError(error.message()), kReasonNoPlan)
          : error);
}

bool LibraryMath::FallsBack(const absl::Status& error) {
  if (device_.capturing()) {
    Fail(error);
    return false;
  }
  // The search for a plan may leave an error of an engine that was tried; any other error of the
  // runtime is the device's.
  const cudaError_t cause = device_.CauseOfLibraryError();
  if (cause != cudaSuccess && !absl::IsUnimplemented(error)) {
    device_.Fail(CudaStatus(device_.api(), cause, error.message()));
    return false;
  }
  LOG(WARNING) << "Cadre's own, slower kernels compute a convolution: " << error.message();
  ++counters_.fallback_convolutions;
  counters_.convolution_reason = std::string(error.message());
  return true;
}

std::unique_ptr<CudnnPlan>* LibraryMath::PlanOf(const ConvolutionKey& key) {
  const auto found = convolutions_.find(key);
  if (found != convolutions_.end()) return &found->second;
  if (!scratch_.MayPrepare()) return nullptr;
  absl::StatusOr<std::unique_ptr<CudnnPlan>> made = MakeConvolutionPlan(target_, key);
  if (!made.ok()) {
    if (!FallsBack(made.status())) return nullptr;
    return &convolutions_.emplace(key, nullptr).first->second;
  }
  VLOG(1) << "convolution: " << (*made)->name() << ", " << (*made)->workspace() << " bytes";
  return &convolutions_.emplace(key, *std::move(made)).first->second;
}

absl::Status LibraryMath::Run(CudnnPlan& plan, Tensors tensors, std::byte* workspace) {
  if (const cudaStream_t stream = device_.stream(); stream != stream_) {
    const cudnnStatus_t status = cudnn_.set_stream(target_.handle, stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      return absl::InternalError(
          absl::StrCat("cuDNN: change of stream: ", cudnn_.error_text(status)));
    }
    stream_ = stream;
  }
  CADRE_RETURN_IF_ERROR(plan.Execute(tensors, workspace));
  if (device_.synchronous()) device_.Enqueued(cudaSuccess, plan.name().c_str());
  return absl::OkStatus();
}

void* LibraryMath::OrderedWeights(const ConvolutionDims& dims, ConstValues w, std::byte* scratch) {
  if (!ShapeOf(dims).reorders_weights) return WithoutConst(w.data());
  LaunchChannelsToLast(device_, OrderOf(dims), w, Values(scratch, w.size(), w.type()));
  return scratch;
}

void LibraryMath::Convolve(ConvolutionPass pass, const ConvolutionDims& dims, ConstValues from,
                           ConstValues w, Values to) {
  if (device_.failed()) return;
  CHECK(from.type() == w.type() && from.type() == to.type());
  const bool forward = pass == ConvolutionPass::kForward;
  const ConvolutionShape shape = ShapeOf(dims);
  if (shape.windows_miss_image || (shape.cropped && !forward)) device_.Zero(to.data(), to.bytes());
  if (shape.windows_miss_image) return;
  const size_t scratch = shape.reorders_weights ? RoundUpTo256(w.bytes()) : 0;
  std::unique_ptr<CudnnPlan>* const plan = PlanOf(
      {.dims = dims,
       .pass = pass,
       .type = from.type(),
       .tf32 = tf32_ && from.type() == DType::kFloat32,
       .alignment = CommonAlignment(from.data(), scratch > 0 ? nullptr : w.data(), to.data())});
  if (plan == nullptr) return;
  const auto directly = [&] {
    forward ? LaunchDirectForward(device_, dims, from, w, to)
            : LaunchDirectBackwardData(device_, dims, from, w, to);
  };
  if (*plan == nullptr) return directly();
  std::byte* const memory = scratch_.Take(scratch + (*plan)->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {
      {forward ? kImage : kOutputs, WithoutConst(from.data())},
      {kWeights, OrderedWeights(dims, w, memory)},
      {forward ? kOutputs : kImage, to.data()}};
  const absl::Status status = Run(**plan, tensors, memory + scratch);
  if (status.ok() || !FallsBack(status)) return;
  plan->reset();
  directly();
}

void LibraryMath::ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x,
                                             ConstValues dy, FloatSpan dw) {
  if (device_.failed()) return;
  CHECK(x.type() == dy.type());
  const ConvolutionShape shape = ShapeOf(dims);
  if (shape.windows_miss_image) return device_.Zero(dw.data(), dw.size_bytes());
  // Not every version of the library has a kernel from bf16 to fp32.
  const bool direct = !shape.reorders_weights && x.type() == DType::kFloat32 &&
                      reinterpret_cast<uintptr_t>(dw.data()) % kFastKernelAlignment == 0;
  const size_t scratch = direct ? 0 : RoundUpTo256(dw.size() * SizeOf(x.type()));
  std::unique_ptr<CudnnPlan>* const plan =
      PlanOf({.dims = dims,
              .pass = ConvolutionPass::kBackwardWeights,
              .type = x.type(),
              .tf32 = tf32_ && x.type() == DType::kFloat32,
              .alignment = CommonAlignment(x.data(), direct ? dw.data() : nullptr, dy.data())});
  if (plan == nullptr) return;
  if (*plan == nullptr) return LaunchDirectBackwardWeights(device_, dims, x, dy, dw);
  std::byte* const memory = scratch_.Take(scratch + (*plan)->workspace());
  if (memory == nullptr) return;
  const Values gradients = direct ? Values(dw) : Values(memory, dw.size(), x.type());
  const std::pair<CudnnTensor, void*> tensors[] = {{kImage, WithoutConst(x.data())},
                                                   {kWeights, gradients.data()},
                                                   {kOutputs, WithoutConst(dy.data())}};
  const absl::Status status = Run(**plan, tensors, memory + scratch);
  if (!status.ok()) {
    if (!FallsBack(status)) return;
    plan->reset();
    return LaunchDirectBackwardWeights(device_, dims, x, dy, dw);
  }
  if (direct) return;
  const int64_t all = dw.size();
  // With one tap this only converts from bf16 to fp32, or copies.
  LaunchChannelsToFront(device_,
                        shape.reorders_weights
                            ? OrderOf(dims)
                            : WeightOrderDims{.out = 1, .channels = all, .taps = 1},
                        gradients, dw);
}

LibraryMath::AttentionPlans& LibraryMath::AttentionPlansOf(const AttentionDims& dims) {
  const auto [found, fresh] = attentions_.try_emplace(dims);
  AttentionPlans& plans = found->second;
  if (!fresh) return plans;
  auto forward = MakeAttentionPlan(target_, dims, /*backward=*/false);
  auto backward = MakeAttentionPlan(target_, dims, /*backward=*/true);
  // Backward of fused attention needs the statistics of the fused forward pass, so both are needed.
  if (!forward.ok() || !backward.ok()) {
    for (const absl::Status& status : {forward.status(), backward.status()}) {
      if (status.ok()) continue;
      counters_.attention_reason = absl::StrCat(status.message(), " (workspaces may have ",
                                                target_.workspace_limit, " bytes)");
      LOG(WARNING) << "attention is not fused, so it is slower: " << counters_.attention_reason;
    }
    ++counters_.unfused_attentions;
    // Clears the error of the search for a plan, so that it is not attributed to later work.
    device_.api().last_error();
    return plans;
  }
  plans = {.forward = std::move(*forward), .backward = std::move(*backward)};
  return plans;
}

bool LibraryMath::HasFusedAttention(const AttentionDims& d, DType type) {
  if (device_.failed() || type != DType::kBFloat16 || device_.capability() < kMinCapability ||
      d.batch < 1 || d.heads < 1 || d.tokens < 2 || d.head_features < 8 ||
      d.head_features % 8 != 0 || d.head_features > kMaxHeadFeatures) {
    return false;
  }
  if (!attentions_.contains(d) && !scratch_.MayPrepare()) return false;
  return AttentionPlansOf(d).forward != nullptr;
}

void LibraryMath::FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                                        FloatSpan statistics) {
  if (device_.failed()) return;
  CudnnPlan* const plan = AttentionPlansOf(dims).forward.get();
  CHECK(plan != nullptr) << "fused attention that is not supported";
  std::byte* const memory = scratch_.Take(plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {{kQuery, WithoutConst(PartOf(dims, qkv, 0))},
                                                   {kKey, WithoutConst(PartOf(dims, qkv, 1))},
                                                   {kValue, WithoutConst(PartOf(dims, qkv, 2))},
                                                   {kContext, context.data()},
                                                   {kStatistics, statistics.data()}};
  RunOrFail(*plan, tensors, memory);
}

void LibraryMath::FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv,
                                         ConstValues context, ConstValues dcontext,
                                         ConstFloatSpan statistics, Values scratch, Values dqkv) {
  if (device_.failed()) return;
  CudnnPlan* const plan = AttentionPlansOf(dims).backward.get();
  CHECK(plan != nullptr) << "fused attention that is not supported";
  std::byte* memory = WorkspaceIn(scratch, plan->workspace());
  if (memory == nullptr) memory = scratch_.Take(plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {
      {kQuery, WithoutConst(PartOf(dims, qkv, 0))},
      {kKey, WithoutConst(PartOf(dims, qkv, 1))},
      {kValue, WithoutConst(PartOf(dims, qkv, 2))},
      {kContext, WithoutConst(context.data())},
      {kContextGradient, WithoutConst(dcontext.data())},
      {kStatistics, WithoutConst(statistics.data())},
      {kQueryGradient, WithoutConst(PartOf(dims, dqkv, 0))},
      {kKeyGradient, WithoutConst(PartOf(dims, dqkv, 1))},
      {kValueGradient, WithoutConst(PartOf(dims, dqkv, 2))}};
  RunOrFail(*plan, tensors, memory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseMath>> MakeLibraryMath(CudaDevice& device,
                                                           const CublasLtApi& cublas,
                                                           const CudnnApi& cudnn) {
  auto math = std::make_unique<LibraryMath>(device, cudnn);
  CADRE_RETURN_IF_ERROR(math->Start(cublas));
  return math;
}

absl::StatusOr<std::unique_ptr<DenseMath>> MakeLibraryMath(CudaDevice& device,
                                                           const LibrarySearch& search) {
  CADRE_ASSIGN_OR_RETURN(const CublasLtApi cublas, LoadCublasLt(search));
  CADRE_ASSIGN_OR_RETURN(const CudnnApi cudnn, LoadCudnn(search));
  return MakeLibraryMath(device, cublas, cudnn);
}

}  // namespace cadre
