// A kernel that adds the inputs of the ranks of a collective, for device_copy_nccl.h.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/cuda_api.h"

namespace cadre::in_process {

// Maximum number of inputs.
inline constexpr int kMaxSummands = 16;

enum class SumType : uint8_t { kUint8, kBf16, kUint64, kFp32, kFp64 };

// Enqueues to[i] = the sum of element offset + i of all inputs, for i < count, in their order. bf16
// is added in fp32 and rounded once; other types are added in themselves. `to` may be an input's
// element `offset`. Requires: count > 0; 1 to kMaxSummands inputs; the stream's device is current.
cudaError_t SumRanks(const CudaApi& cuda, SumType type, std::span<const char* const> inputs,
                     size_t offset, size_t count, void* to, cudaStream_t stream);

}  // namespace cadre::in_process
