// Matrix products by cuBLASLt. See dense_math.h.
//
// Borrows device and workspace; owns the library's handle and its plans, one for every extent, type
// and alignment that was asked for. The library's own choice of algorithm is asked for once and
// kept; its results are the same bits whenever a plan is the same. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/library_workspace.h"
#include "tensor/dtype.h"
#include "tensor/values.h"

namespace cadre {

// What a plan depends on.
struct ProductKey {
  MatrixProductDims dims;
  DType factors = DType::kFloat32, result = DType::kFloat32;
  bool tf32 = false, bias = false;
  int64_t a_alignment = 0, b_alignment = 0, c_alignment = 0, bias_alignment = 0;
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

class CublasMath {
 public:
  // Errors: Internal where the library does not start.
  static absl::StatusOr<std::unique_ptr<CublasMath>> Make(const CublasLtApi& api,
                                                          CudaDevice& device,
                                                          LibraryWorkspace& workspace);
  ~CublasMath();

  // As DenseMath's.
  void Multiply(const MatrixProductDims& dims, bool tf32, ConstValues a, ConstValues b,
                std::span<const float> bias, Values c);

 private:
  struct Plan;

  CublasMath(const CublasLtApi& api, CudaDevice& device, LibraryWorkspace& workspace,
             cublasLtHandle_t handle);
  // Null after an error, or where a recording would have to wait for one.
  Plan* PlanOf(const ProductKey& key);
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const ProductKey& key);
  absl::Status Run(Plan& plan, const ProductKey& key, ConstValues a, ConstValues b,
                   const void* bias, Values c, std::byte* workspace);
  // Not OK for a status that is none: names what was tried.
  absl::Status Status(cublasStatus_t status, const ProductKey& key, absl::string_view what) const;

  const CublasLtApi api_;
  CudaDevice& device_;
  LibraryWorkspace& workspace_;
  const cublasLtHandle_t handle_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace cadre
