// Maps CUDA errors to status codes by what can be done about them: retry on another device
// (Unavailable), free memory (ResourceExhausted), install something (FailedPrecondition), or fix a
// bug (Internal).
#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"

namespace cadre {
namespace {

// The headers of some supported versions do not define this error.
constexpr int kErrorContained = 226;

constexpr char kLostHint[] =
    "; this process cannot use the GPU any more: look for \"Xid\" in dmesg, and at nvidia-smi -q";
constexpr char kBugHint[] = "; a bug, in a kernel of ours or of a library";

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
  return absl::StrCat("; the driver is for CUDA ", CudaVersionText(driver), ", this program for ",
                      CudaVersionText(runtime));
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

}  // namespace cadre
