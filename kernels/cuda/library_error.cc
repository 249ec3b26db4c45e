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
