#include "kernels/cuda/cudnn_math.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "kernels/cuda/convolution_shape.h"
#include "kernels/cuda/library_error.h"
#include "kernels/cuda/weight_order.h"

namespace cadre {
namespace {

// What the library's fused attention takes, backward included.
constexpr int64_t kMaxHeadFeatures = 128;
constexpr int kMinCapability = 80;

constexpr uintptr_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

void* Plain(const void* memory) { return const_cast<void*>(memory); }

WeightOrderDims OrderOf(const ConvolutionDims& d) {
  return {.out = d.out_channels,
          .channels = d.in_channels / d.groups,
          .taps = d.window.kernel_height * d.window.kernel_width};
}

// The third of qkv that begins `part` times head_features after its beginning.
void* PartOf(const AttentionDims& d, const void* qkv, int64_t part) {
  return static_cast<std::byte*>(Plain(qkv)) +
         part * d.head_features * static_cast<int64_t>(SizeOf(DType::kBFloat16));
}

int64_t WorkspaceLimit(const CudaDevice& device, const LibraryMathOptions& options) {
  if (options.workspace_limit > 0) return options.workspace_limit;
  size_t free = 0, total = 0;
  if (device.api().memory_info(&free, &total) != cudaSuccess) total = 0;
  return std::clamp<int64_t>(static_cast<int64_t>(total / 16), int64_t{64} << 20, int64_t{2} << 30);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudnnMath>> CudnnMath::Make(const CudnnApi& api, CudaDevice& device,
                                                           LibraryWorkspace& workspace,
                                                           const LibraryMathOptions& options) {
  std::unique_ptr<CudnnMath> math(new CudnnMath(api, device, workspace));
  const cudnnStatus_t status = api.create(&math->machine_.handle);
  if (status != CUDNN_STATUS_SUCCESS) {
    math->machine_.handle = nullptr;
    return LibraryError(device, absl::StrCat(CudnnVersion(api), " does not start"),
                        api.error_text(status),
                        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
  }
  math->machine_.workspace_limit = WorkspaceLimit(device, options);
  math->machine_.deterministic = options.deterministic;
  return math;
}

CudnnMath::CudnnMath(const CudnnApi& api, CudaDevice& device, LibraryWorkspace& workspace)
    : api_(api), device_(device), workspace_(workspace) {
  machine_.cudnn = &api_;
  machine_.cuda = &device.api();
  machine_.ordinal = device.ordinal();
}

CudnnMath::~CudnnMath() {
  convolutions_.clear();
  attentions_.clear();
  if (machine_.handle != nullptr) api_.destroy(machine_.handle);
}

// A library that fails because the device did tells less than the device.
void CudnnMath::Fail(const absl::Status& error) {
  const cudaError_t cause = device_.api().last_error();
  if (cause != cudaSuccess) {
    return device_.Fail(CudaStatus(device_.api(), cause, error.message()));
  }
  device_.Fail(absl::IsUnimplemented(error) ? absl::FailedPreconditionError(error.message())
                                            : error);
}

CudnnPlan* CudnnMath::PlanOf(const ConvolutionKey& key) {
  const auto found = convolutions_.find(key);
  if (found != convolutions_.end()) return found->second.get();
  if (!workspace_.MayPrepare()) return nullptr;
  absl::StatusOr<std::unique_ptr<CudnnPlan>> made = MakeConvolutionPlan(machine_, key);
  if (!made.ok()) {
    Fail(made.status());
    return nullptr;
  }
  VLOG(1) << "convolution: " << (*made)->name() << ", " << (*made)->workspace() << " bytes";
  return convolutions_.emplace(key, *std::move(made)).first->second.get();
}

void CudnnMath::Run(CudnnPlan& plan, Tensors tensors, std::byte* workspace) {
  if (const cudaStream_t stream = device_.stream(); stream != stream_) {
    const cudnnStatus_t status = api_.set_stream(machine_.handle, stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      return Fail(
          absl::InternalError(absl::StrCat("cuDNN: change of stream: ", api_.error_text(status))));
    }
    stream_ = stream;
  }
  const absl::Status status = plan.Execute(tensors, workspace);
  if (!status.ok()) Fail(status);
}

void* CudnnMath::OrderedWeights(const ConvolutionDims& dims, ConstValues w, std::byte* scratch) {
  if (!ShapeOf(dims).reorders_weights) return Plain(w.data());
  LaunchChannelsToLast(device_, OrderOf(dims), w, Values(scratch, w.size(), w.type()));
  return scratch;
}

void CudnnMath::Forward(const ConvolutionDims& dims, bool tf32, ConstValues x, ConstValues w,
                        Values y) {
  if (device_.failed()) return;
  CHECK(x.type() == w.type() && x.type() == y.type());
  const ConvolutionShape shape = ShapeOf(dims);
  if (shape.blind) return device_.Zero(y.data(), y.bytes());
  const size_t scratch = shape.reorders_weights ? Aligned(w.bytes()) : 0;
  CudnnPlan* const plan =
      PlanOf({.dims = dims,
              .pass = ConvolutionPass::kForward,
              .type = x.type(),
              .tf32 = tf32 && x.type() == DType::kFloat32,
              .alignment = CommonAlignment(x.data(), scratch > 0 ? nullptr : w.data(), y.data())});
  if (plan == nullptr) return;
  std::byte* const memory = workspace_.Get(scratch + plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {
      {kImage, Plain(x.data())}, {kWeights, OrderedWeights(dims, w, memory)}, {kOutputs, y.data()}};
  Run(*plan, tensors, memory + scratch);
}

void CudnnMath::BackwardData(const ConvolutionDims& dims, bool tf32, ConstValues dy, ConstValues w,
                             Values dx) {
  if (device_.failed()) return;
  CHECK(dy.type() == w.type() && dy.type() == dx.type());
  const ConvolutionShape shape = ShapeOf(dims);
  if (shape.blind || shape.cropped) device_.Zero(dx.data(), dx.bytes());
  if (shape.blind) return;
  const size_t scratch = shape.reorders_weights ? Aligned(w.bytes()) : 0;
  CudnnPlan* const plan = PlanOf(
      {.dims = dims,
       .pass = ConvolutionPass::kBackwardData,
       .type = dy.type(),
       .tf32 = tf32 && dy.type() == DType::kFloat32,
       .alignment = CommonAlignment(dy.data(), scratch > 0 ? nullptr : w.data(), dx.data())});
  if (plan == nullptr) return;
  std::byte* const memory = workspace_.Get(scratch + plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {{kImage, dx.data()},
                                                   {kWeights, OrderedWeights(dims, w, memory)},
                                                   {kOutputs, Plain(dy.data())}};
  Run(*plan, tensors, memory + scratch);
}

void CudnnMath::BackwardWeights(const ConvolutionDims& dims, bool tf32, ConstValues x,
                                ConstValues dy, std::span<float> dw) {
  if (device_.failed()) return;
  CHECK(x.type() == dy.type());
  const ConvolutionShape shape = ShapeOf(dims);
  if (shape.blind) return device_.Zero(dw.data(), dw.size_bytes());
  // The library gives fp32 of bf16 by no kernel that is there everywhere, and few where 16 bytes do
  // not divide the address.
  const bool direct = !shape.reorders_weights && x.type() == DType::kFloat32 &&
                      reinterpret_cast<uintptr_t>(dw.data()) % kAlignment == 0;
  const size_t scratch = direct ? 0 : Aligned(dw.size() * SizeOf(x.type()));
  CudnnPlan* const plan =
      PlanOf({.dims = dims,
              .pass = ConvolutionPass::kBackwardWeights,
              .type = x.type(),
              .tf32 = tf32 && x.type() == DType::kFloat32,
              .alignment = CommonAlignment(x.data(), direct ? dw.data() : nullptr, dy.data())});
  if (plan == nullptr) return;
  std::byte* const memory = workspace_.Get(scratch + plan->workspace());
  if (memory == nullptr) return;
  const Values made(direct ? static_cast<void*>(dw.data()) : memory, dw.size(), x.type());
  const std::pair<CudnnTensor, void*> tensors[] = {
      {kImage, Plain(x.data())}, {kWeights, made.data()}, {kOutputs, Plain(dy.data())}};
  Run(*plan, tensors, memory + scratch);
  if (direct) return;
  const auto all = static_cast<int64_t>(dw.size());
  LaunchChannelsToFront(device_,
                        shape.reorders_weights
                            ? OrderOf(dims)
                            : WeightOrderDims{.out = 1, .channels = all, .taps = 1},
                        made, dw);
}

CudnnMath::AttentionPlans& CudnnMath::AttentionPlansOf(const AttentionDims& dims) {
  const auto [found, fresh] = attentions_.try_emplace(dims);
  AttentionPlans& plans = found->second;
  if (!fresh) return plans;
  auto forward = MakeAttentionPlan(machine_, dims, /*backward=*/false);
  auto backward = MakeAttentionPlan(machine_, dims, /*backward=*/true);
  for (const absl::Status& status : {forward.status(), backward.status()}) {
    if (!status.ok()) {
      LOG(INFO) << "attention is not fused: " << status.message();
      // What a search left behind is no error of the device's later work.
      device_.api().last_error();
      return plans;
    }
  }
  plans = {.forward = std::move(*forward), .backward = std::move(*backward)};
  return plans;
}

bool CudnnMath::HasAttention(const AttentionDims& d, DType type) {
  if (device_.failed() || type != DType::kBFloat16 || device_.capability() < kMinCapability ||
      d.batch < 1 || d.heads < 1 || d.tokens < 2 || d.head_features < 8 ||
      d.head_features % 8 != 0 || d.head_features > kMaxHeadFeatures) {
    return false;
  }
  if (!attentions_.contains(d) && !workspace_.MayPrepare()) return false;
  return AttentionPlansOf(d).forward != nullptr;
}

void CudnnMath::AttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                                 std::span<float> statistics) {
  if (device_.failed()) return;
  CudnnPlan* const plan = AttentionPlansOf(dims).forward.get();
  CHECK(plan != nullptr) << "fused attention that is not supported";
  std::byte* const memory = workspace_.Get(plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {{kQuery, PartOf(dims, qkv.data(), 0)},
                                                   {kKey, PartOf(dims, qkv.data(), 1)},
                                                   {kValue, PartOf(dims, qkv.data(), 2)},
                                                   {kContext, context.data()},
                                                   {kStatistics, statistics.data()}};
  Run(*plan, tensors, memory);
}

void CudnnMath::AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                                  ConstValues dcontext, std::span<const float> statistics,
                                  Values dqkv) {
  if (device_.failed()) return;
  CudnnPlan* const plan = AttentionPlansOf(dims).backward.get();
  CHECK(plan != nullptr) << "fused attention that is not supported";
  std::byte* const memory = workspace_.Get(plan->workspace());
  if (memory == nullptr) return;
  const std::pair<CudnnTensor, void*> tensors[] = {
      {kQuery, PartOf(dims, qkv.data(), 0)},          {kKey, PartOf(dims, qkv.data(), 1)},
      {kValue, PartOf(dims, qkv.data(), 2)},          {kContext, Plain(context.data())},
      {kContextGradient, Plain(dcontext.data())},     {kStatistics, Plain(statistics.data())},
      {kQueryGradient, PartOf(dims, dqkv.data(), 0)}, {kKeyGradient, PartOf(dims, dqkv.data(), 1)},
      {kValueGradient, PartOf(dims, dqkv.data(), 2)}};
  Run(*plan, tensors, memory);
}

}  // namespace cadre
