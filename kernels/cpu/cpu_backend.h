// The CPU back end: oneDNN for convolutions and matrix products, vectorised loops for the rest.
// Each family is a class in a separate file. This header is private to this folder.
//
// Owns its oneDNN stream, its primitives (those of the extents used last) and one workspace that
// all of them share. Thread-compatible.
//
// Guarantees: the same extents, data and number of threads give the same bits. The choice among
// several algorithms depends on the extents, never on a measurement.
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

  // The first slot of the workspace that is free for our loops; a PrimitiveRun uses the slots
  // before it for converted arguments.
  static constexpr size_t kOwnSlot = 8;

  const int threads;
  const dnnl::engine engine;
  dnnl::stream stream;
  Workspace workspace;
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
