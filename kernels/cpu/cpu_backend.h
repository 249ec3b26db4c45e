// The CPU back end: oneDNN for convolutions and matrix products, vectorised loops for the rest.
// Each family is a class in a separate file. This header is private to this folder.
//
// Owns its oneDNN stream, its primitives (those of the extents used last) and one workspace that
// all of them share. Thread-compatible.
//
// Under Precision::kBf16 activations are bf16. Convolutions, matrix products with weights and the
// products of attention have bf16 factors and fp32 sums, by the instructions of AVX512_BF16;
// everything else is computed in fp32 (vector_loops.h).
//
// Guarantees: the same extents, data and number of threads give the same bits. The choice among
// several algorithms depends on the extents, never on a measurement.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <memory>

#include "kernels/cpu/bf16_weights.h"
#include "kernels/cpu/lru_cache.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/primitive_run.h"
#include "kernels/host_backend.h"

namespace cadre {

// What the families share.
struct CpuContext {
  // Requires: threads >= 1.
  explicit CpuContext(int threads);

  // The first slot of the workspace that is free for our loops; a PrimitiveRun uses the slots
  // before it for converted arguments.
  static constexpr size_t kOwnSlot = 8;
  static constexpr size_t kWeightsSlot = 9;
  static constexpr size_t kSumsSlot = 10;
  // A run uses few extents of each layer: those of a batch, of the last batch and of evaluation.
  static constexpr size_t kCachedExtents = 512;

  // w as a factor of products with values of this type: w itself, or a copy that is valid until the
  // next call.
  ConstValues WeightsAs(DType type, ConstFloatSpan w);
  // As MakeBf16Product describes; also takes empty extents.
  void Bf16Product(const Bf16ProductDims& dims, ConstValues a, ConstValues b, ConstFloatSpan bias,
                   Values c);
  // As MemoryKernels::Transpose describes.
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x, Values y) const;

  const int threads;
  const dnnl::engine engine;
  dnnl::stream stream;
  Workspace workspace;
  Bf16Weights bf16_weights;
  LruCache<Bf16ProductDims, PrimitiveRun> products{kCachedExtents};
  // Computes operations whose extents oneDNN rejects: tensors without elements, and windows that
  // may lie entirely in the padding.
  const std::unique_ptr<Backend> reference = MakeReferenceBackend();
};

std::unique_ptr<DenseKernels> MakeCpuDense(CpuContext& cpu);
std::unique_ptr<WindowKernels> MakeCpuWindow(CpuContext& cpu);
std::unique_ptr<NormKernels> MakeCpuNorm(CpuContext& cpu);
std::unique_ptr<PointwiseKernels> MakeCpuPointwise(CpuContext& cpu);
std::unique_ptr<OptimizerKernels> MakeCpuOptimizer(CpuContext& cpu);

}  // namespace cadre
