#include "tests/emulator/emulated_machine.h"

namespace cadre::emulated {
namespace {

struct Known {
  cudaError_t error;
  const char* name;
  const char* text;
  bool fatal = false;
};

// The errors that this machine returns or that tests inject.
constexpr Known kKnown[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid launch shape"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "driver older than runtime"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "device busy or unavailable",
     true},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "no such kernel"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable memory error", true},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access", true},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "a kernel ran too long", true},
    {cudaErrorAssert, "cudaErrorAssert", "a kernel's assertion failed", true},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address", true},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "illegal instruction", true},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "launch failure", true},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "illegal state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "not permitted while capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "an earlier error invalidated the capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "two captures cannot be merged"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "the capture did not begin on this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "a stream was not joined to the capture's first"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "a capture cannot depend on work outside"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "an implicit dependency in a capture"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was recorded in a capture"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "the capture belongs to another thread"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported"},
    {cudaErrorContained, "cudaErrorContained", "contained memory error", true},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error", true},
};

const Known* Find(cudaError_t error) {
  for (const Known& known : kKnown) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

}  // namespace

const char* ErrorName(cudaError_t error) {
  const Known* known = Find(error);
  return known != nullptr ? known->name : "unrecognized error code";
}

const char* ErrorText(cudaError_t error) {
  const Known* known = Find(error);
  return known != nullptr ? known->text : "unrecognized error code";
}

bool IsFatal(cudaError_t error) {
  const Known* known = Find(error);
  return known != nullptr && known->fatal;
}

}  // namespace cadre::emulated
