// Runs the threads of a kernel on one thread of the host, block after block.
//
// Threads of a block are fibers: each runs until it ends or waits at a barrier or a shuffle, so a
// kernel with neither costs little more than a loop. What CUDA leaves undefined ends the process
// with a message that names the place: a barrier or shuffle that only some threads of the block or
// warp reach, one barrier for some and another for others, a shuffle without the full mask.
//
// Threads: any number of them may run grids at once, each with fibers of its own, which it keeps
// for the next grid. A grid stays on the thread that runs it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cadre::emulated {

// What a kernel's thread is told; __thread, so that to read it is one instruction.
struct Index {
  unsigned x, y, z;
  operator uint3() const { return {x, y, z}; }  // NOLINT: as CUDA's
  operator dim3() const { return {x, y, z}; }   // NOLINT
};
extern __thread Index thread_index;
extern __thread Index block_index;
extern __thread Index block_extent;
extern __thread Index grid_extent;
extern __thread unsigned char* shared_memory;

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFU;
inline constexpr size_t kMaxSharedBytes = 48 << 10;
inline constexpr unsigned kMaxThreads = 1024;

// `thread` does what one thread of the kernel does. `kernel` is for messages.
// Requires: extents as CUDA has them; shared_bytes <= kMaxSharedBytes; not called by a kernel.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread,
             const void* kernel);

// The rest is for what RunGrid runs.
void SyncBlock(const char* file, int line);
// Which lane of its warp asks.
int Lane();
// Every lane of the warp gives 8 bytes; returns those of all, [0, *lanes) of which are there, until
// the lane's next call.
const uint64_t* Exchange(unsigned mask, uint64_t value, int* lanes, const char* file, int line);

}  // namespace cadre::emulated
