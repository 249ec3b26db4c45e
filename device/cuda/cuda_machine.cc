// Maps CUDA errors to status codes by what can be done about them: retry on another device
// (Unavailable), free memory (ResourceExhausted), install something (FailedPrecondition), or fix a
// bug (Internal).
//
// CUDA guarantees that a program runs with every driver of the same major version or a newer one,
// so only the major versions are compared. The error messages contain the version of the driver to
// install, because the driver itself reports only that it is insufficient.
#include "device/cuda/cuda_machine.h"

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"

namespace cadre {
namespace {

// The headers of some supported versions do not define this error.
constexpr int kErrorContained = 226;

constexpr char kLostHint[] =
    "; this process cannot use the GPU any more: look for \"Xid\" in dmesg, and at nvidia-smi -q";
constexpr char kBugHint[] = "; a bug, in a kernel of ours or of a library";

// "13.0".
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

enum class Meaning { kNoMemory, kLost, kBusy, kSetup, kNoSuchDevice, kKernelFault, kMisuse };

Meaning MeaningOf(int error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Meaning::kNoMemory;
    // The device, its memory or its links failed, or the driver lost the device.
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kErrorContained:
    case cudaErrorOperatingSystem:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorHardwareStackError:
    // A kernel failed for a reason that the driver does not know; it may be a hardware fault.
    case cudaErrorLaunchFailure:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    // Also reported by a device that has fallen off the bus.
    case cudaErrorUnknown:
      return Meaning::kLost;
    // A retry may succeed later, or on another device.
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
    case cudaErrorTimeout:
      return Meaning::kBusy;
    case cudaErrorInitializationError:
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorStubLibrary:
    case cudaErrorIncompatibleDriverContext:
    case cudaErrorNoDevice:
    case cudaErrorDeviceNotLicensed:
    case cudaErrorSoftwareValidityNotEstablished:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorNotPermitted:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return Meaning::kSetup;
    case cudaErrorInvalidDevice:
      return Meaning::kNoSuchDevice;
    case cudaErrorIllegalAddress:
    case cudaErrorAssert:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
      return Meaning::kKernelFault;
    default:
      return Meaning::kMisuse;
  }
}

std::string SetupHint(const CudaApi& api, int error) {
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion) {
    return "; this program was built for other GPUs: build it with CADRE_CUDA_ARCHITECTURES";
  }
  int driver = 0;
  int runtime = 0;
  if (api.driver_version(&driver) != cudaSuccess || api.runtime_version(&runtime) != cudaSuccess) {
    return "";
  }
  if (driver == 0) return "; no NVIDIA driver on this machine";
  return absl::StrCat("; the driver is for CUDA ", VersionText(driver), ", this program for ",
                      VersionText(runtime));
}

// The oldest driver for Linux that runs all programs of a major version of CUDA.
std::string NeededDriver(int runtime) {
  const int major = runtime / 1000;
  const char* const minimum = major == 12 ? "525.60.13" : major == 13 ? "580.65.06" : nullptr;
  return minimum == nullptr
             ? absl::StrCat("an NVIDIA driver for CUDA ", VersionText(runtime))
             : absl::StrCat("NVIDIA driver ", minimum, " or newer, for CUDA ", major);
}

}  // namespace

absl::Status CudaStatus(const CudaApi& api, cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", api.error_text(error), " (", api.error_name(error), ")");
  switch (MeaningOf(error)) {
    case Meaning::kNoMemory:
      return absl::ResourceExhaustedError(message);
    case Meaning::kLost:
      return absl::UnavailableError(absl::StrCat("the GPU is lost: ", message, kLostHint));
    case Meaning::kBusy:
      return absl::UnavailableError(
          absl::StrCat(message, "; look at nvidia-smi for who uses the GPU and in which mode"));
    case Meaning::kSetup:
      return absl::FailedPreconditionError(absl::StrCat(message, SetupHint(api, error)));
    case Meaning::kNoSuchDevice:
      return absl::NotFoundError(message);
    case Meaning::kKernelFault:
      return absl::InternalError(absl::StrCat(message, kBugHint));
    case Meaning::kMisuse:
      break;
  }
  return absl::InternalError(message);
}

bool LosesDevice(cudaError_t error) {
  if (error == cudaSuccess) return false;
  const Meaning meaning = MeaningOf(error);
  return meaning == Meaning::kLost || meaning == Meaning::kKernelFault;
}

absl::StatusOr<CudaMachine> LookForCuda(const CudaApi& api) {
  CudaMachine machine;
  cudaError_t error = api.runtime_version(&machine.runtime);
  if (error == cudaSuccess) error = api.driver_version(&machine.driver);
  if (error != cudaSuccess) return CudaStatus(api, error, "querying the versions of CUDA");
  if (machine.driver == 0) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat("no NVIDIA driver on this machine: install ",
                                                   NeededDriver(machine.runtime))),
        kReasonNoGpu);
  }
  // Within a major version, an older driver also runs programs for newer minor versions.
  if (machine.driver / 1000 < machine.runtime / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver is too old: it is for CUDA ", VersionText(machine.driver),
                     ", this program needs ", NeededDriver(machine.runtime)));
  }
  error = api.device_count(&machine.devices);
  if (error != cudaSuccess) {
    api.last_error();
    const absl::Status status = CudaStatus(api, error, "looking for GPUs");
    return error == cudaErrorNoDevice ? WithReason(status, kReasonNoGpu) : status;
  }
  if (machine.devices < 1) {
    return WithReason(
        absl::FailedPreconditionError("this machine has an NVIDIA driver, but no GPU"),
        kReasonNoGpu);
  }
  return machine;
}

absl::StatusOr<std::string> DescribeCuda(const CudaApi& api) {
  CADRE_ASSIGN_OR_RETURN(const CudaMachine machine, LookForCuda(api));
  cudaDeviceProp properties = {};
  if (cudaError_t error = api.properties(&properties, 0); error != cudaSuccess) {
    return CudaStatus(api, error, "querying the properties of a GPU");
  }
  return absl::StrCat(machine.devices > 1 ? absl::StrCat(machine.devices, " x ") : "",
                      properties.name, ", driver ", VersionText(machine.driver), ", runtime ",
                      VersionText(machine.runtime));
}

}  // namespace cadre
