// Runs the threads of a kernel on one thread of the host, block after block.
//
// Threads of a block are fibers: each runs until it ends or waits at a barrier or a shuffle. A
// kernel without barriers and shuffles costs little more than a loop. Behaviour that CUDA leaves
// undefined ends the process with a message that names the file and line: a barrier or shuffle that
// only some threads of the block or warp reach, different barriers for different threads, a shuffle
// without the full mask.
//
// Several host threads may run grids concurrently. Each has its own fibers, which it keeps for its
// next grid. A grid stays on its host thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cadre::emulated {

// The built-in variables of a kernel's thread. They are declared __thread, so that one instruction
// reads them.
struct Index {
  unsigned x, y, z;
  operator uint3() const { return {x, y, z}; }  // NOLINT: as CUDA's
  operator dim3() const { return {x, y, z}; }   // NOLINT
};
extern __thread Index thread_index;
extern __thread Index block_index;
extern __thread Index block_extent;
extern __thread Index grid_extent;

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFU;
inline constexpr unsigned kMaxThreads = 1024;

// Runs `thread` for every thread of the grid. `kernel` is for messages.
// Requires: extents that CUDA allows; not called by a kernel.
void RunGrid(dim3 grid, dim3 block, const std::function<void()>& thread, const void* kernel);

// The functions below are called by kernels.
void SyncBlock(const char* file, int line);
// The lane of the calling thread in its warp.
int Lane();
// Each lane of the warp passes 8 bytes. Returns the bytes of all lanes [0, *lanes), valid until the
// calling lane's next call.
const uint64_t* Exchange(unsigned mask, uint64_t value, int* lanes, const char* file, int line);

}  // namespace cadre::emulated
