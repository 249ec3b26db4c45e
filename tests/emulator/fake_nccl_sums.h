// The reductions of the fake NCCL: element by element, in the order of the ranks.
//
// Thread-safe (pure functions).
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace cadre::emulated {

using Bytes = std::vector<char>;

// 0 for a type that is not emulated.
size_t SizeOfNccl(ncclDataType_t type);
const char* NameOfNccl(ncclDataType_t type);
bool CanReduce(ncclDataType_t type, ncclRedOp_t op);

// to[i] = the reduction of element offset + i of all inputs, for i < count. Requires: CanReduce.
void ReduceNccl(const std::vector<Bytes>& inputs, size_t offset, size_t count, ncclDataType_t type,
                ncclRedOp_t op, void* to);

}  // namespace cadre::emulated
