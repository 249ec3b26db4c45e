// The little that kernels (*.cu) write differently from plain CUDA C++, so that the host's compiler
// takes the same files (tests/emulator/cuda_on_host.h).
#pragma once

// CADRE_DYNAMIC_SHARED(float, sums); declares `float* sums`, the shared memory whose size is the
// launch's shared_bytes, aligned to 16.
#ifndef CADRE_CUDA_EMULATED
#define CADRE_DYNAMIC_SHARED(Type, name)                              \
  extern __shared__ __align__(16) unsigned char cadre_shared_bytes[]; \
  Type* const name = reinterpret_cast<Type*>(cadre_shared_bytes)
#endif
