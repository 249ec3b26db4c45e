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

TEST(BlockRunnerTest, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 2, 2);
  const dim3 block(5, 7, 2);
  std::vector<int> seen(12 * 70);
  RunGrid(
      grid, block, 0, [&] { CountThreads(seen.data()); }, nullptr);
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

// Reverses a block's piece of x through shared memory, twice: both barriers matter.
__global__ void ReverseTwice(const float* x, float* once, float* twice) {
  CADRE_DYNAMIC_SHARED(float, tile);
  __shared__ float other[1024];
  const unsigned i = threadIdx.x;
  const unsigned base = blockIdx.x * blockDim.x;
  tile[i] = x[base + i];
  __syncthreads();
  once[base + i] = other[i] = tile[blockDim.x - 1 - i];
  __syncthreads();
  twice[base + i] = other[blockDim.x - 1 - i];
}

TEST(BlockRunnerTest, BarriersHoldAWholeBlock) {
  for (const unsigned threads : {1U, 31U, 64U, 100U, 1024U}) {
    constexpr unsigned kBlocks = 3;
    std::vector<float> x(kBlocks * threads), once(x.size()), twice(x.size());
    std::iota(x.begin(), x.end(), 0.0F);
    RunGrid(
        dim3(kBlocks), dim3(threads), threads * sizeof(float),
        [&] { ReverseTwice(x.data(), once.data(), twice.data()); }, nullptr);
    EXPECT_EQ(twice, x);
    std::vector<float> expected = x;
    for (unsigned b = 0; b < kBlocks; ++b) {
      std::reverse(expected.begin() + b * threads, expected.begin() + (b + 1) * threads);
    }
    EXPECT_EQ(once, expected);
  }
}

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  int* mine = out + threadIdx.x * 7;
  mine[0] = __shfl_sync(0xFFFFFFFFU, 100 + lane, 3);
  mine[1] = __shfl_xor_sync(0xFFFFFFFFU, lane, 5);
  mine[2] = __shfl_down_sync(0xFFFFFFFFU, lane, 4);
  mine[3] = __shfl_up_sync(0xFFFFFFFFU, lane, 4);
  mine[4] = __shfl_xor_sync(0xFFFFFFFFU, lane, 1, 8) + __shfl_sync(0xFFFFFFFFU, lane, 9, 8);
  mine[5] = static_cast<int>(__ballot_sync(0xFFFFFFFFU, lane % 2));
  mine[6] = __any_sync(0xFFFFFFFFU, lane == 7) + 2 * __all_sync(0xFFFFFFFFU, lane < 31) +
            4 * __all_sync(0xFFFFFFFFU, lane < 32);
}

TEST(BlockRunnerTest, ShufflesAndVotes) {
  constexpr int kThreads = 96;
  std::vector<int> out(kThreads * 7);
  RunGrid(
      dim3(1), dim3(kThreads), 0, [&] { Shuffles(out.data()); }, nullptr);
  for (int t = 0; t < kThreads; ++t) {
    const int lane = t % kWarp;
    const int* mine = out.data() + t * 7;
    EXPECT_EQ(mine[0], 103);
    EXPECT_EQ(mine[1], lane ^ 5);
    EXPECT_EQ(mine[2], lane + 4 < kWarp ? lane + 4 : lane);
    EXPECT_EQ(mine[3], lane >= 4 ? lane - 4 : lane);
    EXPECT_EQ(mine[4], (lane ^ 1) + (lane / 8 * 8 + 1));
    EXPECT_EQ(static_cast<unsigned>(mine[5]), 0xAAAAAAAAU);
    EXPECT_EQ(mine[6], 1 + 4);
  }
}

// As kernels sum a block: by warps, then the warps' sums.
__global__ void SumOfBlock(const double* x, int size, double* sum) {
  __shared__ double of_warp[32];
  double value = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < size;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    value += x[i];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0;
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xFFFFFFFFU, value, step);
    if (threadIdx.x == 0) atomicAdd(sum, value);
  }
}

TEST(BlockRunnerTest, SumsOverWarpsAndBlocks) {
  std::vector<double> x(1000);
  std::iota(x.begin(), x.end(), 1.0);
  for (const unsigned threads : {32U, 256U, 1024U}) {
    double sum = 0;
    RunGrid(
        dim3(3), dim3(threads), 0, [&] { SumOfBlock(x.data(), 1000, &sum); }, nullptr);
    EXPECT_EQ(sum, 500500);
  }
}

// What is not there is not-a-number, so whoever uses it sees it.
__global__ void BeyondTheBlock(float* out) {
  out[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFU, 1.0F, 1);
}

TEST(BlockRunnerTest, ALaneThatIsNotThereGivesNoNumber) {
  std::vector<float> out(20);
  RunGrid(
      dim3(1), dim3(20), 0, [&] { BeyondTheBlock(out.data()); }, nullptr);
  EXPECT_EQ(out[18], 1);
  EXPECT_TRUE(std::isnan(out[19]));
}

__global__ void Count(int* votes) {
  votes[threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0) * 4 +
                       __syncthreads_or(threadIdx.x == 5) * 2 + __syncthreads_and(threadIdx.x < 5);
}

TEST(BlockRunnerTest, BarriersThatCount) {
  std::vector<int> votes(40);
  RunGrid(
      dim3(2), dim3(40), 0, [&] { Count(votes.data()); }, nullptr);
  EXPECT_EQ(votes, std::vector<int>(40, 14 * 4 + 2));
}

__global__ void Contend(float* sum, unsigned* most, unsigned long long* count,
                        __nv_bfloat16* half) {
  atomicAdd(sum, 1.0F);
  atomicMax(most, threadIdx.x);
  atomicAdd(count, 1ULL);
  if (threadIdx.x < 8) atomicAdd(half, __float2bfloat16(0.5F));
}

// Grids of different streams run at once.
TEST(BlockRunnerTest, AtomicsAreAtomicBetweenThreadsOfTheHost) {
  float sum = 0;
  unsigned most = 0;
  unsigned long long count = 0;
  __nv_bfloat16 half = __float2bfloat16(0);
  std::vector<std::thread> streams;
  for (int i = 0; i < 3; ++i) {
    streams.emplace_back([&] {
      RunGrid(
          dim3(10), dim3(128), 0, [&] { Contend(&sum, &most, &count, &half); }, nullptr);
    });
  }
  for (std::thread& stream : streams) stream.join();
  EXPECT_EQ(sum, 3 * 1280);
  EXPECT_EQ(most, 127U);
  EXPECT_EQ(count, 3U * 1280);
  EXPECT_EQ(__bfloat162float(half), 120);
}

// --- what CUDA leaves undefined -----------------------------------------------------------------

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
  RunGrid(dim3(1), dim3(64), 0, kernel, reinterpret_cast<const void*>(kernel));
}

TEST(BlockRunnerDeathTest, ABarrierThatSomeThreadsNeverReach) {
  EXPECT_DEATH(RunAlone(&SomeLeaveFirst), "wait for others that have ended.*block_runner_test.cc");
}

TEST(BlockRunnerDeathTest, DifferentBarriersForDifferentThreads) {
  EXPECT_DEATH(RunAlone(&EachItsOwnBarrier), "at different barriers.*block_runner_test.cc");
}

TEST(BlockRunnerDeathTest, AShuffleThatSomeLanesNeverReach) {
  EXPECT_DEATH(RunAlone(&HalfAWarp), "16 of 64 threads wait, 48 have ended");
}

TEST(BlockRunnerDeathTest, AShuffleWithoutTheFullMask) {
  EXPECT_DEATH(RunAlone(&HalfAMask), "without the full mask");
}

TEST(BlockRunnerDeathTest, AThreadThatNeedsTooMuchStack) {
  EXPECT_DEATH(RunGrid(
                   dim3(1), dim3(1), 0, [] { OffTheEnd(100); }, nullptr),
               "");
}

}  // namespace
}  // namespace cadre::emulated
