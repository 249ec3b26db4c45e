// Construction and destruction of a CUDA device.
#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// The lowest compute capability with bf16 and with the asynchronous copies that cuDNN's kernels
// use.
constexpr int kMinCapability = 80;

absl::StatusOr<CudaCard> QueryCard(const CudaApi& api, int ordinal) {
  CADRE_ASSIGN_OR_RETURN(const CudaMachine machine, LookForCuda(api));
  if (ordinal < 0 || ordinal >= machine.devices) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal, ": this machine has ",
                                            machine.devices, ", counted from 0"));
  }
  cudaDeviceProp properties = {};
  size_t free = 0;
  size_t total = 0;
  cudaError_t error = api.set_device(ordinal);
  if (error == cudaSuccess) error = api.properties(&properties, ordinal);
  if (error == cudaSuccess) error = api.memory_info(&free, &total);
  if (error != cudaSuccess) {
    api.last_error();
    return CudaStatus(api, error, absl::StrCat("opening GPU ", ordinal));
  }
  return CudaCard{.name = properties.name,
                  .processors = properties.multiProcessorCount,
                  .capability = 10 * properties.major + properties.minor,
                  .memory = static_cast<int64_t>(total),
                  .free = static_cast<int64_t>(free)};
}

int64_t MemoryLimit(const CudaDeviceOptions& options, const CudaCard& card) {
  if (options.memory_limit > 0) return options.memory_limit;
  // On a small device (such as a MIG slice) less is reserved for libraries.
  return card.free - std::min(options.reserve_bytes, card.free / 5);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Make(const CudaApi& api,
                                                             const CudaDeviceOptions& options) {
  CADRE_ASSIGN_OR_RETURN(CudaCard card, QueryCard(api, options.ordinal));
  if (card.capability < kMinCapability) {
    return absl::FailedPreconditionError(absl::StrCat(
        card.name, " has compute capability ", card.capability / 10, ".", card.capability % 10,
        "; this program needs ", kMinCapability / 10, ".", kMinCapability % 10, " or later"));
  }
  const CachingAllocator::Limits limits{.max_held = MemoryLimit(options, card),
                                        .total = card.memory};
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, options, std::move(card), limits));
  CADRE_RETURN_IF_ERROR(device->Open());
  return device;
}

absl::Status CudaDevice::Open() {
  CADRE_RETURN_IF_ERROR(OpenStreams());
  for (cudaEvent_t& mark : staging_read_) mark = MakeMark();
  for (cudaEvent_t& mark : copied_out_marks_) mark = MakeMark();
  // One allocation for the ring and for the two halves of CopyOut.
  void* memory = nullptr;
  const size_t bytes = RingBytes(options_) + 2 * chunk_bytes();
  if (Check(api_.host_alloc(&memory, bytes, cudaHostAllocDefault), "allocating staging memory")) {
    staging_ = static_cast<std::byte*>(memory);
    copied_out_ = {staging_ + RingBytes(options_), staging_ + RingBytes(options_) + chunk_bytes()};
  }
  return status();
}

CudaDevice::~CudaDevice() {
  Bind();
  if (!Settle()) {
    LOG(ERROR) << name() << ": work that does not end keeps " << MemoryText(memory_.held())
               << " until the process ends";
    return;
  }
  for (const MemoryUse& use : memory_.uses()) {
    LOG(ERROR) << name() << ": " << MemoryText(use.bytes) << " of " << use.purpose
               << " outlive their device";
  }
  if (absl::Status released = memory_.ReleaseCached(); !released.ok()) LOG(ERROR) << released;
  if (staging_ != nullptr) api_.free_host(staging_);
  const auto destroy = [this](const auto& marks) {
    for (cudaEvent_t mark : marks) {
      if (mark != nullptr) api_.event_destroy(mark);
    }
  };
  destroy(staging_read_);
  destroy(copied_out_marks_);
}

}  // namespace cadre
