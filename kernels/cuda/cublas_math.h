// Matrix products by cuBLASLt. See dense_math.h.
//
// Borrows the device and the scratch memory; owns the library's handle and the plans, one for each
// combination of extents, types and alignments. The library chooses a plan's algorithm once, so
// that equal products have equal bits. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/vendor_api.h"
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
  // Errors: Internal if the library does not start.
  static absl::StatusOr<std::unique_ptr<CublasMath>> Make(const CublasLtApi& api,
                                                          CudaDevice& device, CudaScratch& scratch);
  ~CublasMath();

  // DenseMath::MatrixProduct; `tf32` allows rounding fp32 factors to TF32.
  void Multiply(const MatrixProductDims& dims, bool tf32, ConstValues a, ConstValues b,
                ConstValues bias, Values c);

 private:
  struct Plan;

  CublasMath(const CublasLtApi& api, CudaDevice& device, CudaScratch& scratch,
             cublasLtHandle_t handle);
  // Null after an error, or if the plan would have to be made during a capture.
  Plan* PlanOf(const ProductKey& key);
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const ProductKey& key);
  // Sets the plan's algorithm. Errors: LibraryFault::kNoPlan if the library has none that works.
  absl::Status Choose(const ProductKey& key, Plan& plan);
  absl::Status Run(Plan& plan, const ProductKey& key, ConstValues a, ConstValues b,
                   const void* bias, Values c, std::byte* workspace);
  // `status` as an absl::Status that names the product and the call `what`.
  absl::Status Status(cublasStatus_t status, const ProductKey& key, absl::string_view what) const;
  absl::Status Error(cublasStatus_t status, const ProductKey& key, absl::string_view what,
                     LibraryFault fault) const;

  const CublasLtApi api_;
  CudaDevice& device_;
  CudaScratch& scratch_;
  const cublasLtHandle_t handle_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace cadre
