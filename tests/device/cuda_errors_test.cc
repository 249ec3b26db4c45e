// The statuses for CUDA's errors, and for machines without a suitable driver or device.
#include <string>
#include <vector>

#include "base/error_reason.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// A table of the functions that are called here. The driver is older than the runtime.
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

TEST(CudaStatusTest, QuotesTheAttemptAndCuda) {
  EXPECT_EQ(Meaning(cudaErrorInvalidValue),
            absl::InternalError("doing this: its text (cudaErrorName)"));
}

TEST(CudaStatusTest, CodesHintsAndLossOfTheDevice) {
  using absl::StatusCode;
  const struct {
    StatusCode code;
    const char* hint;
    bool loses_device;
    std::vector<cudaError_t> errors;
  } rows[] = {
      {StatusCode::kUnavailable,
       "the GPU is lost",
       true,
       {cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorHardwareStackError,
        cudaErrorLaunchFailure, cudaErrorUnknown, cudaErrorContextIsDestroyed,
        cudaErrorDeviceUninitialized, cudaErrorExternalDevice, static_cast<cudaError_t>(226)}},
      {StatusCode::kUnavailable,
       "nvidia-smi",
       false,
       {cudaErrorDevicesUnavailable, cudaErrorDeviceAlreadyInUse, cudaErrorSystemNotReady,
        cudaErrorMpsMaxClientsReached}},
      {StatusCode::kInternal,
       "a bug",
       true,
       {cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorMisalignedAddress,
        cudaErrorIllegalInstruction}},
      {StatusCode::kInternal,
       "doing this",
       false,
       {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, cudaErrorInvalidConfiguration,
        cudaErrorLaunchOutOfResources}},
      {StatusCode::kFailedPrecondition,
       "the driver is for CUDA 12.8, this program for 13.0",
       false,
       {cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorSystemDriverMismatch}},
      {StatusCode::kFailedPrecondition,
       "CADRE_CUDA_ARCHITECTURES",
       false,
       {cudaErrorNoKernelImageForDevice}},
      {StatusCode::kResourceExhausted, "doing this", false, {cudaErrorMemoryAllocation}},
      {StatusCode::kNotFound, "doing this", false, {cudaErrorInvalidDevice}},
  };
  for (const auto& row : rows) {
    for (const cudaError_t error : row.errors) {
      EXPECT_EQ(Meaning(error).code(), row.code) << error;
      EXPECT_THAT(Meaning(error).message(), HasSubstr(row.hint)) << error;
      EXPECT_EQ(LosesDevice(error), row.loses_device) << error;
    }
  }
  EXPECT_FALSE(LosesDevice(cudaSuccess));
}

TEST(CudaMachineTest, OldDriverErrorNamesTheNeededDriver) {
  const absl::Status status = LookForCuda(Answers()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the NVIDIA driver is too old: it is for CUDA 12.8, this program needs NVIDIA driver "
            "580.65.06 or newer, for CUDA 13");
  EXPECT_FALSE(HasReason(status, kReasonNoGpu));
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
  EXPECT_TRUE(HasReason(status, kReasonNoGpu));
}

TEST(CudaMachineTest, OlderDriverOfTheSameMajorVersionIsAccepted) {
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
  EXPECT_TRUE(HasReason(LookForCuda(api).status(), kReasonNoGpu));
  api.device_count = [](int* count) {
    *count = 0;
    return cudaSuccess;
  };
  EXPECT_THAT(LookForCuda(api).status().message(), HasSubstr("no GPU"));
  EXPECT_TRUE(HasReason(LookForCuda(api).status(), kReasonNoGpu));
  api.device_count = [](int*) { return cudaErrorInitializationError; };
  EXPECT_FALSE(HasReason(LookForCuda(api).status(), kReasonNoGpu));
}

}  // namespace
}  // namespace cadre
