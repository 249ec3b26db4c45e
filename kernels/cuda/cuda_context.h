// What the families of the CUDA back end share, and the functions that make them. Private to this
// folder.
//
// Each family is a class in a separate file (dense.cu, memory.cu, norm.cu, optimizer.cu,
// pointwise.cu, window.cu), together with the kernels that it launches. Its methods check the
// extents, return early if there is nothing to compute, and enqueue on the device's current stream.
// The order of every sum depends on the extents only.
#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/weight_copies.h"
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

struct CudaContext {
  CudaContext(CudaDevice& device, std::unique_ptr<DenseMath> math);

  void Copy(ConstValues x, Values y);
  void Zero(Values y);
  // w as a factor of a product with values of this type, aligned for libraries: w itself, its bf16
  // copy, or a converted copy in scratch memory.
  ConstValues WeightsAs(DType type, std::span<const float> w);
  // y[row, c] += b[c]. No effect if b is empty.
  void AddBias(std::span<const float> b, Values y);
  // db[c] = sum of dy[row, c]. No effect if db is empty.
  void BiasGradient(int64_t rows, ConstValues dy, std::span<float> db);

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

}  // namespace cadre
