// How kernels run on the host: indices, barriers, shuffles, atomics, and what CUDA leaves
// undefined.
#include "tests/emulator/block_runner.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/emulator/cuda_on_host.h"

namespace cadre::emulated {
namespace {

__global__ void CountThreads(int* seen) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  ++seen[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(BlockRunnerTest, EveryThreadRunsOnce) {
  const dim3 grid(3, 2, 2);
  const dim3 block(5, 7, 2);
  std::vector<int> seen(12 * 70);
  RunGrid(
      grid, block, [&] { CountThreads(seen.data()); }, nullptr);
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

// Reverses a block's part of x through shared memory, twice; the result is wrong without either
// barrier.
__global__ void ReverseTwice(const float* x, float* once, float* twice) {
  __shared__ float tile[1024];
  __shared__ float other[1024];
  const unsigned i = threadIdx.x;
  const unsigned base = blockIdx.x * blockDim.x;
  tile[i] = x[base + i];
  __syncthreads();
  once[base + i] = other[i] = tile[blockDim.x - 1 - i];
  __syncthreads();
  twice[base + i] = other[blockDim.x - 1 - i];
}

TEST(BlockRunnerTest, BarriersSynchroniseABlock) {
  for (const unsigned threads : {1U, 31U, 64U, 100U, 1024U}) {
    constexpr unsigned kBlocks = 3;
    std::vector<float> x(kBlocks * threads), once(x.size()), twice(x.size());
    std::iota(x.begin(), x.end(), 0.0F);
    RunGrid(
        dim3(kBlocks), dim3(threads), [&] { ReverseTwice(x.data(), once.data(), twice.data()); },
        nullptr);
    EXPECT_EQ(twice, x);
    std::vector<float> expected = x;
    for (unsigned b = 0; b < kBlocks; ++b) {
      std::reverse(expected.begin() + b * threads, expected.begin() + (b + 1) * threads);
    }
    EXPECT_EQ(once, expected);
  }
}

// The usual sum of a block: each warp computes a sum, and the warps' sums are then added.
__global__ void SumOfBlock(const double* x, int size, double* sum) {
  __shared__ double of_warp[32];
  double value = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    value += x[i];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullMask, value, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullMask, value, step);
    if (threadIdx.x == 0) atomicAdd(sum, value);
  }
}

// Grids of different streams run concurrently.
TEST(BlockRunnerTest, SumsOverWarpsBlocksAndThreadsOfTheHost) {
  std::vector<double> x(1000);
  std::iota(x.begin(), x.end(), 1.0);
  for (const unsigned threads : {32U, 256U, 1024U}) {
    double sum = 0;
    std::vector<std::thread> streams;
    for (int i = 0; i < 3; ++i) {
      streams.emplace_back([&] {
        RunGrid(
            dim3(3), dim3(threads), [&] { SumOfBlock(x.data(), 1000, &sum); }, nullptr);
      });
    }
    for (std::thread& stream : streams) stream.join();
    EXPECT_EQ(sum, 3 * 500500);
  }
}

__global__ void BeyondTheBlock(float* out) {
  out[threadIdx.x] = __shfl_xor_sync(kFullMask, 1.0F, 16);
}

TEST(BlockRunnerTest, MissingLanesGiveNan) {
  std::vector<float> out(20);
  RunGrid(
      dim3(1), dim3(20), [&] { BeyondTheBlock(out.data()); }, nullptr);
  EXPECT_EQ(out[3], 1);
  EXPECT_TRUE(std::isnan(out[4]));
}

// --- undefined behaviour in CUDA -----------------------------------------------------------------

__global__ void SomeLeaveFirst() {
  if (threadIdx.x < 10) return;
  __syncthreads();
}
__global__ void EachItsOwnBarrier() {
  if (threadIdx.x < 10) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void HalfAWarp() {
  if (threadIdx.x < 16) __shfl_xor_sync(0xFFFFFFFFU, 1, 1);
}
__global__ void HalfAMask() {
  if (threadIdx.x < 16) __shfl_xor_sync(0xFFFFU, 1, 1);
}
__global__ void OffTheEnd(int depth) {
  volatile char much[4096] = {};
  much[depth % 4096] = 1;
  if (depth > 0) OffTheEnd(depth - 1);
  much[0] = much[1];
}

void RunAlone(void (*kernel)()) {
  RunGrid(dim3(1), dim3(64), kernel, reinterpret_cast<const void*>(kernel));
}

TEST(BlockRunnerDeathTest, BarrierThatSomeThreadsNeverReach) {
  EXPECT_DEATH(RunAlone(&SomeLeaveFirst), "wait for others that have ended.*block_runner_test.cc");
}

TEST(BlockRunnerDeathTest, DifferentBarriersForDifferentThreads) {
  EXPECT_DEATH(RunAlone(&EachItsOwnBarrier), "at different barriers.*block_runner_test.cc");
}

TEST(BlockRunnerDeathTest, ShuffleThatSomeLanesNeverReach) {
  EXPECT_DEATH(RunAlone(&HalfAWarp), "16 of 64 threads wait, 48 have ended");
}

TEST(BlockRunnerDeathTest, ShuffleWithoutTheFullMask) {
  EXPECT_DEATH(RunAlone(&HalfAMask), "without the full mask");
}

TEST(BlockRunnerDeathTest, StackOverflow) {
  EXPECT_DEATH(RunGrid(
                   dim3(1), dim3(1), [] { OffTheEnd(100); }, nullptr),
               "");
}

}  // namespace
}  // namespace cadre::emulated
