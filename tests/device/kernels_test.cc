// The list of the kernels that a program contains, which are loaded before a group communicates.
#include <gtest/gtest.h>

#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dense_math.h"

namespace cadre {
namespace {

// Programs contain the kernels of functions that they refer to. Volatile: the compiler keeps these.
auto* volatile back_end = &MakeCudaBackend;
auto* volatile math = &MakeLibraryMath;

TEST(LinkedKernelsTest, AreListed) {
  ASSERT_NE(back_end, nullptr);
  ASSERT_NE(math, nullptr);
  // Each family has dozens, by type and width.
  EXPECT_GT(LinkedKernels(), 200U);
}

TEST(LinkedKernelsTest, AreLoaded) {
  const cudaError_t loaded = RealCudaApi().load_kernels();
  if (const auto gpu = DescribeCuda(RealCudaApi()); !gpu.ok()) {
    EXPECT_NE(loaded, cudaSuccess) << "without a GPU, the first kernel cannot be loaded";
    GTEST_SKIP() << "needs a GPU: " << gpu.status().message();
  }
  EXPECT_EQ(loaded, cudaSuccess);
}

}  // namespace
}  // namespace cadre
