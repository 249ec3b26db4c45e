// What the families of the CUDA back end share, and the functions that make them. Private to this
// folder.
//
// Each family is a class in a separate file (codec.cu, dense.cu, memory.cu, norm.cu, optimizer.cu,
// pointwise.cu, window.cu), together with the kernels that it launches. Its methods check the
// extents, return early if there is nothing to compute, and enqueue on the device's current stream.
// The order of every sum depends on the extents only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/scratch.h"
#include "tensor/values.h"

namespace cadre {

// Numbers in device memory that may change between launches of a captured graph.
struct CudaNumbers {
  // Position of the batch's first sample (PointwiseKernels::SetPosition).
  int64_t position = 0;
  // Number and rate of the next update (SliceKernels::SetUpdate).
  int64_t updates = 0;
  float rate = 0;
};

// y = x, fp32 to bf16 or back (cuda_context.cu).
void LaunchConvert(CudaDevice& device, ConstValues x, Values y);

// bf16 copies of fp32 parameters. Renew makes the copy of an interval of memory; Find looks it up
// by the parameters' address.
//
// A copy has the values of the last Renew, or of the last update that wrote through Find's pointer.
// A copy of memory that no longer holds parameters wastes its bytes but does no harm, since Renew
// is called again for parameters that are placed there. Clear drops all copies.
class WeightCopies {
 public:
  explicit WeightCopies(CudaDevice& device) : device_(device) {}

  // Converts all of [weights] on the current stream. The first call makes the copy, which replaces
  // copies that it overlaps in part. Requires for the first call: no graph is being captured.
  void Renew(ConstFloatSpan weights);
  // The copy of these parameters; empty if there is none.
  Values Find(ConstFloatSpan weights) const;
  // Requires: no work is pending.
  void Clear();

 private:
  struct Copy {
    size_t size = 0;
    DeviceArray<uint16_t> values;
  };

  void Make(ConstFloatSpan weights);

  CudaDevice& device_;
  // By the address of the first parameter. Copies do not overlap.
  std::map<const float*, Copy> copies_;
  // Replaced copies, which pending work may still use.
  std::vector<DeviceArray<uint16_t>> replaced_;
};

struct CudaContext {
  CudaContext(CudaDevice& device, std::unique_ptr<DenseMath> math);

  void Copy(ConstValues x, Values y);
  void Zero(Values y);
  // w as a factor of a product with values of this type, aligned for libraries: w itself, its bf16
  // copy, or a converted copy in scratch memory.
  ConstValues WeightsAs(DType type, ConstFloatSpan w);
  // y[row, c] += b[c]. No effect if b is empty. Rows of y may be padded.
  void AddBias(int64_t rows, ConstFloatSpan b, Values y);
  // db[c] = sum of dy[row, c]; with `add`, it is added to db. No effect if db is empty. Rows of dy
  // may be padded.
  void BiasGradient(int64_t rows, ConstValues dy, FloatSpan db, bool add = false);

  // Device memory to which operations that return numbers write them.
  struct Results {
    double sums[2] = {};
    int32_t not_finite = 0;
  };

  CudaDevice& device;
  const std::unique_ptr<DenseMath> math;
  Precision precision = Precision::kFp32;
  CudaScratch scratch;
  WeightCopies copies;
  DeviceArray<CudaNumbers> numbers;
  DeviceArray<Results> results;
};

std::unique_ptr<MemoryKernels> MakeCudaMemory(CudaContext& cuda);
std::unique_ptr<DenseKernels> MakeCudaDense(CudaContext& cuda);
std::unique_ptr<WindowKernels> MakeCudaWindow(CudaContext& cuda);
std::unique_ptr<NormKernels> MakeCudaNorm(CudaContext& cuda);
std::unique_ptr<PointwiseKernels> MakeCudaPointwise(CudaContext& cuda);
std::unique_ptr<OptimizerKernels> MakeCudaOptimizer(CudaContext& cuda);
std::unique_ptr<SliceKernels> MakeCudaSlices(CudaContext& cuda);
std::unique_ptr<CodecKernels> MakeCudaCodecs(CudaContext& cuda);

}  // namespace cadre
