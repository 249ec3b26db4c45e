// What a failed call of one of the vendor's libraries means for the device.
//
// Thread-safe (a function).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "device/cuda/cuda_device.h"

namespace cadre {

// `what` was tried and the library said `text`. Where the CUDA runtime has an error of its own,
// that is the cause, and tells the code; otherwise ResourceExhausted for lack of memory, and
// Internal.
absl::Status LibraryError(const CudaDevice& device, absl::string_view what, absl::string_view text,
                          bool out_of_memory);

}  // namespace cadre
