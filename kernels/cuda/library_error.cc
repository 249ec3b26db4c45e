// Libraries return codes of their own even if the CUDA runtime caused the failure, and those codes
// lack what matters to the caller: whether the device is lost. So the runtime's last error is read
// first.
#include "kernels/cuda/library_error.h"

#include "absl/strings/str_cat.h"

namespace cadre {

absl::Status LibraryError(const CudaDevice& device, absl::string_view what, absl::string_view text,
                          bool out_of_memory) {
  const std::string message = absl::StrCat(what, ": ", text);
  const cudaError_t cause = device.api().last_error();
  if (cause != cudaSuccess) return CudaStatus(device.api(), cause, message);
  return out_of_memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

}  // namespace cadre
