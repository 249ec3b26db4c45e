// Tests that the vendor's libraries load without a GPU and have all functions of our tables.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/library_loader.h"
#include "worker/transport/nccl/nccl_api.h"

namespace cadre {
namespace {

// The library folders of the toolkit that the build used. On another machine the dynamic loader may
// find the libraries instead.
LibrarySearch ToolkitLibraries() {
  LibrarySearch search;
  for (absl::string_view folder : absl::StrSplit(CADRE_CUDA_LIBRARY_FOLDERS, ':')) {
    if (std::filesystem::is_directory(std::string(folder))) {
      search.directories.emplace_back(folder);
    }
  }
  return search;
}

// Skips the test with the loader's message if the library is missing.
#define SKIP_WITHOUT(library)                                                 \
  if (auto loaded = LoadLibrary(library, ToolkitLibraries()); !loaded.ok()) { \
    GTEST_SKIP() << loaded.status().message();                                \
  }

TEST(LibrariesTest, CublasLtLoads) {
  SKIP_WITHOUT(CublasLtLibrary());
  absl::StatusOr<LoadedLibrary> library = LoadLibrary(CublasLtLibrary(), ToolkitLibraries());
  size_t (*version)() = nullptr;
  ASSERT_TRUE(library->Find("cublasLtGetVersion", version).ok());
  std::cout << library->path() << ": " << version() << "\n";
  // 130100 for 13.1.0.
  EXPECT_EQ(version() / 10000, size_t{CUDART_VERSION / 1000});
}

TEST(LibrariesTest, CudnnLoads) {
  SKIP_WITHOUT(CudnnLibrary());
  absl::StatusOr<LoadedLibrary> library = LoadLibrary(CudnnLibrary(), ToolkitLibraries());
  size_t (*version)() = nullptr;
  ASSERT_TRUE(library->Find("cudnnGetVersion", version).ok());
  std::cout << library->path() << ": " << version() << "\n";
  EXPECT_EQ(version() / 10000, 9u);
}

TEST(LibrariesTest, NcclHasEveryFunctionOfTheTable) {
  SKIP_WITHOUT(NcclLibrary());
  absl::StatusOr<NcclApi> nccl = LoadNccl(ToolkitLibraries());
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
