// The CPU back end: oneDNN for convolutions and matrix products, vectorised loops for the rest.
// Each family is a class in a file of its own. Private to this folder.
//
// Owns its oneDNN stream, its primitives (those of the extents used last) and one workspace that
// all of them share. Thread-compatible.
//
// Guarantees: with the same extents, data and number of threads, the same bits. Which of several
// algorithms runs is a function of the extents, never of a measurement.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <memory>

#include "kernels/cpu/primitive_run.h"
#include "kernels/host_backend.h"

namespace cadre {

// What the families share.
struct CpuContext {
  // Requires: threads >= 1.
  explicit CpuContext(int threads);

  // First slot of the workspace that is free for our loops; a PrimitiveRun converts in the slots
  // before it.
  static constexpr size_t kOwnSlot = 8;

  const int threads;
  const dnnl::engine engine;
  dnnl::stream stream;
  Workspace workspace;
  // Runs extents that oneDNN rejects: tensors without elements.
  const std::unique_ptr<Backend> reference = MakeReferenceBackend();
};

std::unique_ptr<MemoryKernels> MakeCpuMemory(CpuContext& cpu);
std::unique_ptr<DenseKernels> MakeCpuDense(CpuContext& cpu);
std::unique_ptr<WindowKernels> MakeCpuWindow(CpuContext& cpu);
std::unique_ptr<NormKernels> MakeCpuNorm(CpuContext& cpu);
std::unique_ptr<PointwiseKernels> MakeCpuPointwise(CpuContext& cpu);
std::unique_ptr<OptimizerKernels> MakeCpuOptimizer(CpuContext& cpu);

}  // namespace cadre
