// Tests that the vendor's libraries load without a GPU and have all functions of our tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "comm/transport/nccl/nccl_api.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/library_loader.h"
#include "tests/kernels/vendor_libraries.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Skips the test with the loader's message if the library is missing.
#define SKIP_WITHOUT(library)                                                \
  if (auto loaded = LoadLibrary(library, VendorLibraries()); !loaded.ok()) { \
    GTEST_SKIP() << loaded.status().message();                               \
  }

TEST(LibrariesTest, CublasLtLoads) {
  SKIP_WITHOUT(CublasLtLibrary());
  absl::StatusOr<LoadedLibrary> library = LoadLibrary(CublasLtLibrary(), VendorLibraries());
  size_t (*version)() = nullptr;
  ASSERT_TRUE(library->Find("cublasLtGetVersion", version).ok());
  std::cout << library->path() << ": " << version() << "\n";
  // 130100 for 13.1.0.
  EXPECT_EQ(version() / 10000, size_t{CUDART_VERSION / 1000});
}

TEST(LibrariesTest, CudnnLoads) {
  SKIP_WITHOUT(CudnnLibrary());
  absl::StatusOr<LoadedLibrary> library = LoadLibrary(CudnnLibrary(), VendorLibraries());
  size_t (*version)() = nullptr;
  ASSERT_TRUE(library->Find("cudnnGetVersion", version).ok());
  std::cout << library->path() << ": " << version() << "\n";
  EXPECT_EQ(version() / 10000, 9u);
}

TEST(LibrariesTest, NcclHasEveryFunctionOfTheTable) {
  SKIP_WITHOUT(NcclLibrary());
  absl::StatusOr<NcclApi> nccl = LoadNccl(VendorLibraries());
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  int version = 0;
  ASSERT_EQ(nccl->version(&version), ncclSuccess);
  std::cout << "NCCL " << version << "\n";
  EXPECT_GE(version, 22200);
  EXPECT_STRNE(nccl->error_text(ncclInvalidUsage), nullptr);
  // Checks every member, including later additions to the table.
  std::vector<void*> members(sizeof(NcclApi) / sizeof(void*));
  memcpy(members.data(), &*nccl, sizeof(NcclApi));
  for (size_t i = 0; i < members.size(); ++i) EXPECT_NE(members[i], nullptr) << "member " << i;
}

TEST(LazyNcclTest, OneRankNeedsNoNccl) {
  LazyNccl nccl({.directories = {"/no such folder"}});
  const auto alone = nccl.ForGroup(1);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ((*alone)->init, nullptr);
  const auto group = nccl.ForGroup(4);
  EXPECT_THAT(
      std::string(group.status().message()),
      AllOf(StartsWith("a group of 4 ranks on GPUs needs NCCL: "), HasSubstr("/no such folder")));
}

TEST(LazyNcclTest, IsLoadedOnceForAGroup) {
  SKIP_WITHOUT(NcclLibrary());
  LazyNccl nccl(VendorLibraries());
  const auto group = nccl.ForGroup(2);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_NE((*group)->init, nullptr);
  EXPECT_EQ(*nccl.ForGroup(3), *group);
  EXPECT_EQ(*nccl.ForGroup(1), *group);
}

TEST(CudaRuntimeTest, TableIsCompleteAndWorksWithoutADevice) {
  const CudaApi& api = RealCudaApi();
  int version = 0;
  ASSERT_EQ(api.runtime_version(&version), cudaSuccess);
  EXPECT_EQ(version, CUDART_VERSION);
  std::vector<void*> members(sizeof(CudaApi) / sizeof(void*));
  memcpy(members.data(), &api, sizeof(CudaApi));
  for (size_t i = 0; i < members.size(); ++i) EXPECT_NE(members[i], nullptr) << "member " << i;
}

TEST(CudaRuntimeTest, MissingDeviceIsReported) {
  const CudaApi& api = RealCudaApi();
  int count = 0;
  const cudaError_t error = api.device_count(&count);
  if (error == cudaSuccess && count > 0) return;
  EXPECT_STRNE(api.error_name(error), nullptr);
  EXPECT_STRNE(api.error_text(error), nullptr);
  EXPECT_TRUE(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
      << api.error_name(error) << ": " << api.error_text(error);
}

}  // namespace
}  // namespace cadre
