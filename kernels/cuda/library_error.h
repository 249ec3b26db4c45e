// The status of a failed call of one of the vendor's libraries.
//
// Thread-safe (a function).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "device/cuda/cuda_device.h"

namespace cadre {

// The status of attempt `what`, which the library answered with `text`. An error of the CUDA
// runtime is the cause and determines the code; otherwise the code is ResourceExhausted or
// Internal.
absl::Status LibraryError(const CudaDevice& device, absl::string_view what, absl::string_view text,
                          bool out_of_memory);

}  // namespace cadre
