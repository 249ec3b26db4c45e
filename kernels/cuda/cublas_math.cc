// Matrix products by cuBLASLt.
//
// cuBLASLt is column-major: a row-major product C = A B is requested as C^T = B^T A^T, which swaps
// the operands and moves no data (vendor_layout.h). One strided call computes the inner batch
// (heads); a loop of calls iterates over the outer batch (samples). FewestCalls exchanges the two
// batches if that needs fewer calls.
//
// The library's heuristic is queried once per extents, types and alignment, and the first algorithm
// that it can run is kept in a plan with the descriptors: the same plan gives the same bits, and no
// plan is made after the first step, as graph capture requires. If an algorithm divides the inner
// dimension, it must add the partial sums in fp32 and in a fixed order (kReductions). Plans promise
// the library only the alignment that the addresses have, because an address with a smaller
// alignment would be a fault on the device.
//
// A bias is added by the epilogue, which reads it in the type of the result: fp32 biases of bf16
// products without a bf16 copy are converted into scratch memory first.
#include "kernels/cuda/cublas_math.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "kernels/cuda/vendor_api.h"
#include "kernels/cuda/vendor_layout.h"
#include "kernels/cuda/weight_order.h"

namespace cadre {
namespace {

// The size that NVIDIA recommends for Hopper and later GPUs; older ones need less.
constexpr size_t kProductWorkspace = size_t{32} << 20;
// Partial sums are added in the workspace, in fp32. The library's other schemes round them to the
// type of the result, or add them in place, in the order in which they are complete.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
// The heuristic may return algorithms that it cannot run.
constexpr int kMaxChoices = 8;

cudaDataType_t TypeOf(DType type) { return type == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

cublasOperation_t OperationOf(bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; }

std::string Describe(const ProductKey& key) {
  const MatrixProductDims& d = key.dims;
  return absl::StrCat("matrix product [", d.m, ", ", d.k, "]", d.transpose_a ? "^T" : "", " x [",
                      d.k, ", ", d.n, "]", d.transpose_b ? "^T" : "", ", batch ", d.batch,
                      d.outer > 1 ? absl::StrCat(" of ", d.outer) : "", ", ",
                      DTypeName(key.factors), key.tf32 ? " (TF32)" : "", " to ",
                      DTypeName(key.result), key.bias ? ", bias" : "");
}

LibraryFault FaultOf(cublasStatus_t status) {
  return status == CUBLAS_STATUS_ALLOC_FAILED ? LibraryFault::kOutOfMemory : LibraryFault::kOther;
}

}  // namespace

// The library's descriptors of one product, and the algorithm that it chose.
struct CublasMath::Plan {
  explicit Plan(const CublasLtApi& api) : api(api) {}
  ~Plan() {
    if (preference != nullptr) api.preference_destroy(preference);
    for (const cublasLtMatrixLayout_t layout : {first, second, result}) {
      if (layout != nullptr) api.layout_destroy(layout);
    }
    if (description != nullptr) api.description_destroy(description);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <typename T>
  cublasStatus_t Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return api.description_set(description, attribute, &value, sizeof(value));
  }
  template <typename T>
  cublasStatus_t Prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return api.preference_set(preference, attribute, &value, sizeof(value));
  }

  const CublasLtApi& api;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  size_t workspace = 0;
};

namespace {

cublasStatus_t MakeLayout(const CublasLtApi& api, const ColumnMajorMatrix& matrix, DType type,
                          int64_t batch, cublasLtMatrixLayout_t* layout) {
  cublasStatus_t status =
      api.layout_create(layout, TypeOf(type), matrix.rows, matrix.columns, matrix.leading);
  if (status != CUBLAS_STATUS_SUCCESS || batch == 1) return status;
  const int32_t count = batch;
  status = api.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return api.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix.step,
                        sizeof(matrix.step));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CublasMath>> CublasMath::Make(const CublasLtApi& api,
                                                             CudaDevice& device,
                                                             CudaScratch& scratch) {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = api.create(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return LibraryError(device, absl::StrCat(CublasLtVersion(api), " does not start"),
                        api.status_text(status), FaultOf(status));
  }
  return std::unique_ptr<CublasMath>(new CublasMath(api, device, scratch, handle));
}

CublasMath::CublasMath(const CublasLtApi& api, CudaDevice& device, CudaScratch& scratch,
                       cublasLtHandle_t handle)
    : api_(api), device_(device), scratch_(scratch), handle_(handle) {}

CublasMath::~CublasMath() {
  plans_.clear();
  api_.destroy(handle_);
}

absl::Status CublasMath::Status(cublasStatus_t status, const ProductKey& key,
                                absl::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Error(status, key, what, FaultOf(status));
}

absl::Status CublasMath::Error(cublasStatus_t status, const ProductKey& key, absl::string_view what,
                               LibraryFault fault) const {
  return LibraryError(device_, absl::StrCat("cuBLASLt: ", what, " of ", Describe(key)),
                      api_.status_text(status), fault);
}

CublasMath::Plan* CublasMath::PlanOf(const ProductKey& key) {
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second.get();
  if (!scratch_.MayPrepare()) return nullptr;
  absl::StatusOr<std::unique_ptr<Plan>> made = MakePlan(key);
  if (!made.ok()) {
    device_.FailOperation(made.status());
    return nullptr;
  }
  return plans_.emplace(key, *std::move(made)).first->second.get();
}

absl::StatusOr<std::unique_ptr<CublasMath::Plan>> CublasMath::MakePlan(const ProductKey& key) {
  const ProductLayout layout = LayoutOf(key.dims);
  auto plan = std::make_unique<Plan>(api_);
  const auto step = [&](cublasStatus_t status) { return Status(status, key, "description"); };
  CADRE_RETURN_IF_ERROR(step(api_.description_create(
      &plan->description, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
      CUDA_R_32F)));
  CADRE_RETURN_IF_ERROR(
      step(plan->Set(CUBLASLT_MATMUL_DESC_TRANSA, OperationOf(layout.transpose_first))));
  CADRE_RETURN_IF_ERROR(
      step(plan->Set(CUBLASLT_MATMUL_DESC_TRANSB, OperationOf(layout.transpose_second))));
  if (key.bias) {
    CADRE_RETURN_IF_ERROR(step(plan->Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS)));
    // Run sets the actual address; this one only has the same alignment.
    CADRE_RETURN_IF_ERROR(step(plan->Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                         reinterpret_cast<const void*>(key.bias_alignment))));
  }
  const MatrixProductDims& d = key.dims;
  CADRE_RETURN_IF_ERROR(step(MakeLayout(api_, layout.first, key.factors, d.batch, &plan->first)));
  CADRE_RETURN_IF_ERROR(step(MakeLayout(api_, layout.second, key.factors, d.batch, &plan->second)));
  CADRE_RETURN_IF_ERROR(step(MakeLayout(api_, layout.result, key.result, d.batch, &plan->result)));
  CADRE_RETURN_IF_ERROR(step(api_.preference_create(&plan->preference)));
  CADRE_RETURN_IF_ERROR(
      step(plan->Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kProductWorkspace})));
  CADRE_RETURN_IF_ERROR(
      step(plan->Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions)));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, int64_t> alignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment}};
  for (const auto& [attribute, alignment] : alignments) {
    const uint32_t bytes = alignment;
    CADRE_RETURN_IF_ERROR(step(plan->Prefer(attribute, bytes)));
  }
  CADRE_RETURN_IF_ERROR(Choose(key, *plan));
  return plan;
}

absl::Status CublasMath::Choose(const ProductKey& key, Plan& plan) {
  std::array<cublasLtMatmulHeuristicResult_t, kMaxChoices> choices = {};
  int count = 0;
  const cublasStatus_t status =
      api_.suggest(handle_, plan.description, plan.first, plan.second, plan.result, plan.result,
                   plan.preference, kMaxChoices, choices.data(), &count);
  constexpr absl::string_view kWhat = "choice of an algorithm";
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) {
    return Status(status, key, kWhat);
  }
  const auto begin = choices.begin();
  const auto choice = std::find_if(
      begin, begin + count, [](const auto& each) { return each.state == CUBLAS_STATUS_SUCCESS; });
  if (choice == begin + count) {
    return Error(count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : choices[0].state, key, kWhat,
                 LibraryFault::kNoPlan);
  }
  plan.algorithm = choice->algo;
  plan.workspace = choice->workspaceSize;
  return absl::OkStatus();
}

void CublasMath::Multiply(const MatrixProductDims& requested, bool tf32, ConstValues a,
                          ConstValues b, ConstValues bias, Values c) {
  if (device_.failed()) return;
  const MatrixProductDims dims = FewestCalls(requested);
  CHECK(a.type() == b.type() && (c.type() == a.type() || c.type() == DType::kFloat32));
  CHECK(dims.m > 0 && dims.n > 0 && dims.k > 0 && dims.batch > 0 && dims.outer > 0);
  const bool has_bias = !bias.empty();
  // The library only adds biases of the result's type.
  const bool narrow_bias = has_bias && bias.type() != c.type();
  const auto alignment = [](ConstValues values, int64_t step, int64_t outer) {
    const int64_t size = SizeOf(values.type());
    return AlignmentOf(values.data(), step * size, outer * size);
  };
  const ProductKey key{.dims = dims,
                       .factors = a.type(),
                       .result = c.type(),
                       .tf32 = tf32 && a.type() == DType::kFloat32,
                       .bias = has_bias,
                       .a_alignment = alignment(a, dims.a_step, dims.a_outer),
                       .b_alignment = alignment(b, dims.b_step, dims.b_outer),
                       .c_alignment = alignment(c, dims.c_step, dims.c_outer),
                       .bias_alignment = !has_bias     ? 0
                                         : narrow_bias ? 256
                                                       : AlignmentOf(bias.data(), 0, 0)};
  Plan* const plan = PlanOf(key);
  if (plan == nullptr) return;
  const size_t bias_bytes = narrow_bias ? (bias.size() * 2 + 255) / 256 * 256 : 0;
  std::byte* const memory = scratch_.Take(bias_bytes + plan->workspace);
  if (memory == nullptr) return;
  const void* added = bias.data();
  if (narrow_bias) {
    const Values narrow(memory, bias.size(), c.type());
    LaunchChannelsToLast(device_, {.out = 1, .channels = dims.n, .taps = 1}, bias, narrow);
    added = memory;
  }
  const absl::Status run = Run(*plan, key, a, b, added, c, memory + bias_bytes);
  if (!run.ok()) return device_.FailOperation(run);
  if (device_.synchronous()) device_.Enqueued(cudaSuccess, Describe(key).c_str());
}

absl::Status CublasMath::Run(Plan& plan, const ProductKey& key, ConstValues a, ConstValues b,
                             const void* bias, Values c, std::byte* workspace) {
  const MatrixProductDims& d = key.dims;
  if (key.bias) {
    CADRE_RETURN_IF_ERROR(Status(plan.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), key, "bias"));
  }
  const float alpha = d.alpha, beta = d.add ? 1 : 0;
  for (int64_t i = 0; i < d.outer; ++i) {
    void* const result = c.subspan(i * d.c_outer).data();
    CADRE_RETURN_IF_ERROR(
        Status(api_.multiply(handle_, plan.description, &alpha, b.subspan(i * d.b_outer).data(),
                             plan.first, a.subspan(i * d.a_outer).data(), plan.second, &beta,
                             result, plan.result, result, plan.result, &plan.algorithm, workspace,
                             plan.workspace, device_.stream()),
               key, "execution"));
  }
  return absl::OkStatus();
}

}  // namespace cadre
