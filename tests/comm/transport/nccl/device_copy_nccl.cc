#include "tests/comm/transport/nccl/device_copy_nccl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/comm/transport/nccl/sum_ranks.h"

namespace cadre {

using in_process::SumType;
using in_process::TypeOf;
using in_process::Verb;

// Events that are not in use. An event may be recorded again when all waits for it have been
// enqueued, because a wait refers to the last record before it.
class DeviceCopyNccl::Events {
 public:
  explicit Events(const CudaApi& cuda) : cuda_(cuda) {}
  ~Events() {
    for (const cudaEvent_t event : free_) cuda_.event_destroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  const CudaApi& cuda() const { return cuda_; }
  cudaError_t Take(cudaEvent_t* event) {
    absl::MutexLock lock(&mutex_);
    if (free_.empty()) return cuda_.event_create(event, cudaEventDisableTiming);
    *event = free_.back();
    free_.pop_back();
    return cudaSuccess;
  }
  void Give(cudaEvent_t event) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(event);
  }

 private:
  const CudaApi cuda_;
  absl::Mutex mutex_;
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
};

class DeviceCopyNccl::Event final : public Mark {
 public:
  explicit Event(std::shared_ptr<Events> events) : events_(std::move(events)) {}
  ~Event() override {
    if (event_ != nullptr) events_->Give(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaError_t Record(cudaStream_t stream) {
    const cudaError_t error = events_->Take(&event_);
    return error != cudaSuccess ? error : events_->cuda().event_record(event_, stream);
  }
  cudaEvent_t get() const { return event_; }

 private:
  const std::shared_ptr<Events> events_;
  cudaEvent_t event_ = nullptr;
};

DeviceCopyNccl::DeviceCopyNccl(const CudaApi& cuda, int ordinal, absl::Duration limit)
    : InProcessNccl({.limit = limit, .aborts_break_peers = true}),
      cuda_(cuda),
      ordinal_(ordinal),
      events_(std::make_shared<Events>(cuda)) {}

DeviceCopyNccl::~DeviceCopyNccl() {
  cuda_.set_device(ordinal_);
  absl::MutexLock lock(&scratch_mutex_);
  for (const auto& [stream, blocks] : scratch_) {
    for (const Block& block : blocks) cuda_.free(block.memory);
  }
}

absl::Status DeviceCopyNccl::StatusOf(cudaError_t error, const char* what) const {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cuda_.error_name(error)));
}

ncclResult_t DeviceCopyNccl::Submit(const Member& member, Operations operations,
                                    cudaStream_t stream) {
  if (IsCaptured(stream)) return ncclInvalidUsage;
  if (!Perform(member, operations, stream)) {
    const ncclResult_t error = ErrorOf(*member);
    // Without an error this rank has aborted the communicator.
    return error != ncclSuccess ? error : ncclInvalidUsage;
  }
  // The scratch of a communicator that failed may still be read by peers, and is not used again.
  ReleaseScratch(stream);
  return ncclSuccess;
}

bool DeviceCopyNccl::IsCaptured(cudaStream_t stream) {
  Event event(events_);
  if (event.Record(stream) != cudaSuccess) return false;
  // A query is an error while the thread captures, and for events that captures record.
  const cudaError_t error = cuda_.event_query(event.get());
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

absl::StatusOr<in_process::MarkPtr> DeviceCopyNccl::MarkNow(cudaStream_t stream) {
  auto event = std::make_shared<Event>(events_);
  CADRE_RETURN_IF_ERROR(StatusOf(event->Record(stream), "record of an event"));
  return event;
}

absl::Status DeviceCopyNccl::Follow(const Mark* mark, cudaStream_t stream) {
  if (mark == nullptr) return absl::OkStatus();
  const cudaEvent_t event = static_cast<const Event*>(mark)->get();
  return StatusOf(cuda_.stream_wait_event(stream, event, 0), "wait for an event");
}

absl::StatusOr<in_process::Offer> DeviceCopyNccl::MakeOffer(const Operation& operation, int rank,
                                                            int ranks, cudaStream_t stream) {
  const size_t bytes = Reads(operation, rank, ranks) * TypeOf(operation.type).bytes;
  if (bytes == 0) return Offer();
  const auto* data = static_cast<const char*>(operation.from);
  const auto* to = static_cast<const char*>(operation.to);
  // Every rank reads all of the input and writes as much. In the other collectives in place, a rank
  // writes only what no peer reads.
  if (operation.verb == Verb::kAllReduce && data < to + bytes && to < data + bytes) {
    CADRE_ASSIGN_OR_RETURN(void* const scratch, TakeScratch(bytes, stream));
    CADRE_RETURN_IF_ERROR(Copy(data, scratch, bytes, stream));
    data = static_cast<const char*>(scratch);
  }
  CADRE_ASSIGN_OR_RETURN(in_process::MarkPtr ready, MarkNow(stream));
  return Offer{.data = data, .ready = std::move(ready)};
}

absl::Status DeviceCopyNccl::Copy(const void* from, void* to, size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || from == to) return absl::OkStatus();
  return StatusOf(cuda_.copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
}

absl::Status DeviceCopyNccl::Sum(ncclDataType_t type, const std::vector<const char*>& inputs,
                                 size_t offset, size_t count, void* to, cudaStream_t stream) {
  if (count == 0) return absl::OkStatus();
  if (inputs.size() > in_process::kMaxSummands) {
    return absl::UnimplementedError(absl::StrCat("sums of ", inputs.size(), " ranks"));
  }
  const std::map<ncclDataType_t, SumType> types = {{ncclUint8, SumType::kUint8},
                                                   {ncclBfloat16, SumType::kBf16},
                                                   {ncclUint64, SumType::kUint64},
                                                   {ncclFloat32, SumType::kFp32},
                                                   {ncclFloat64, SumType::kFp64}};
  const cudaError_t error =
      in_process::SumRanks(cuda_, types.at(type), inputs, offset, count, to, stream);
  return StatusOf(error, "kernel that adds the inputs of ranks");
}

absl::StatusOr<void*> DeviceCopyNccl::TakeScratch(size_t bytes, cudaStream_t stream) {
  absl::MutexLock lock(&scratch_mutex_);
  std::vector<Block>& blocks = scratch_[stream];
  for (Block& block : blocks) {
    if (block.used || block.bytes < bytes) continue;
    block.used = true;
    return block.memory;
  }
  Block made{.bytes = bytes, .used = true};
  CADRE_RETURN_IF_ERROR(StatusOf(cuda_.malloc(&made.memory, bytes), "allocation of scratch"));
  blocks.push_back(made);
  return made.memory;
}

void DeviceCopyNccl::ReleaseScratch(cudaStream_t stream) {
  absl::MutexLock lock(&scratch_mutex_);
  for (Block& block : scratch_[stream]) block.used = false;
}

}  // namespace cadre
