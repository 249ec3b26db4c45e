// What errors of CUDA mean, and what is said of a machine that lacks something.
#include <string>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A table that answers these questions alone, with what a machine with a good driver says.
CudaApi Answers() {
  CudaApi api;
  api.driver_version = [](int* version) {
    *version = 12080;
    return cudaSuccess;
  };
  api.runtime_version = [](int* version) {
    *version = 13000;
    return cudaSuccess;
  };
  api.error_name = [](cudaError_t) { return "cudaErrorName"; };
  api.error_text = [](cudaError_t) { return "its text"; };
  api.last_error = [] { return cudaSuccess; };
  return api;
}

absl::Status Meaning(cudaError_t error) { return CudaStatus(Answers(), error, "doing this"); }

TEST(CudaStatusTest, SuccessIsOk) { EXPECT_TRUE(Meaning(cudaSuccess).ok()); }

TEST(CudaStatusTest, SaysWhatWasTriedAndWhatCudaSays) {
  EXPECT_EQ(Meaning(cudaErrorInvalidValue),
            absl::InternalError("doing this: its text (cudaErrorName)"));
}

TEST(CudaStatusTest, ALostDeviceIsUnavailableWithAHint) {
  for (const cudaError_t error :
       {cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorHardwareStackError,
        cudaErrorLaunchFailure, cudaErrorUnknown, cudaErrorContextIsDestroyed,
        cudaErrorDeviceUninitialized, cudaErrorExternalDevice, static_cast<cudaError_t>(226)}) {
    const absl::Status status = Meaning(error);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << error;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("the GPU is lost"), HasSubstr("Xid")));
    EXPECT_TRUE(LosesDevice(error));
  }
}

TEST(CudaStatusTest, ABusyDeviceIsUnavailableButNotLost) {
  for (const cudaError_t error : {cudaErrorDevicesUnavailable, cudaErrorDeviceAlreadyInUse,
                                  cudaErrorSystemNotReady, cudaErrorMpsMaxClientsReached}) {
    EXPECT_EQ(Meaning(error).code(), absl::StatusCode::kUnavailable) << error;
    EXPECT_FALSE(LosesDevice(error));
  }
}

TEST(CudaStatusTest, AFaultOfAKernelIsABugThatLosesTheDevice) {
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorAssert,
                                  cudaErrorMisalignedAddress, cudaErrorIllegalInstruction}) {
    const absl::Status status = Meaning(error);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << error;
    EXPECT_THAT(status.message(), HasSubstr("a bug"));
    EXPECT_TRUE(LosesDevice(error));
  }
}

TEST(CudaStatusTest, OurMisuseLosesNothing) {
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle,
                                  cudaErrorInvalidConfiguration, cudaErrorLaunchOutOfResources}) {
    EXPECT_EQ(Meaning(error).code(), absl::StatusCode::kInternal) << error;
    EXPECT_FALSE(LosesDevice(error));
  }
}

TEST(CudaStatusTest, WhatIsToBeInstalledIsNamed) {
  const absl::Status driver = Meaning(cudaErrorInsufficientDriver);
  EXPECT_EQ(driver.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(driver.message(), HasSubstr("the driver is for CUDA 12.8, this program for 13.0"));
  const absl::Status image = Meaning(cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(image.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(image.message(), HasSubstr("CADRE_CUDA_ARCHITECTURES"));
  EXPECT_EQ(Meaning(cudaErrorNoDevice).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Meaning(cudaErrorSystemDriverMismatch).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaStatusTest, TheRest) {
  EXPECT_EQ(Meaning(cudaErrorMemoryAllocation).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(LosesDevice(cudaErrorMemoryAllocation));
  EXPECT_EQ(Meaning(cudaErrorInvalidDevice).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(LosesDevice(cudaSuccess));
}

TEST(CudaMachineTest, ADriverThatIsTooOldIsNamedWithTheOneThatIsNeeded) {
  const absl::Status status = LookForCuda(Answers()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the NVIDIA driver is too old: it is for CUDA 12.8, this program needs NVIDIA driver "
            "580.65.06 or newer, for CUDA 13");
}

TEST(CudaMachineTest, NoDriver) {
  CudaApi api = Answers();
  api.driver_version = [](int* version) {
    *version = 0;
    return cudaSuccess;
  };
  const absl::Status status = DescribeCuda(api).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no NVIDIA driver on this machine: install"));
}

TEST(CudaMachineTest, AnOlderDriverOfTheSameMajorVersionWillDo) {
  CudaApi api = Answers();
  api.driver_version = [](int* version) {
    *version = 13000;
    return cudaSuccess;
  };
  api.runtime_version = [](int* version) {
    *version = 13020;
    return cudaSuccess;
  };
  api.device_count = [](int* count) {
    *count = 2;
    return cudaSuccess;
  };
  api.properties = [](cudaDeviceProp* properties, int) {
    *properties = {};
    std::string("NVIDIA H200").copy(properties->name, sizeof(properties->name) - 1);
    return cudaSuccess;
  };
  const auto text = DescribeCuda(api);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "2 x NVIDIA H200, driver 13.0, runtime 13.2");
}

TEST(CudaMachineTest, NoDevice) {
  CudaApi api = Answers();
  api.driver_version = api.runtime_version;
  api.device_count = [](int* count) {
    *count = 0;
    return cudaErrorNoDevice;
  };
  EXPECT_EQ(LookForCuda(api).status().code(), absl::StatusCode::kFailedPrecondition);
  api.device_count = [](int* count) {
    *count = 0;
    return cudaSuccess;
  };
  EXPECT_THAT(LookForCuda(api).status().message(), HasSubstr("no GPU"));
}

}  // namespace
}  // namespace cadre
