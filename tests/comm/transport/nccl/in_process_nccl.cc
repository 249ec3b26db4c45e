// The table of functions.
#include "tests/comm/transport/nccl/in_process_nccl.h"

#include <array>
#include <atomic>
#include <utility>

namespace cadre::in_process {
namespace {

using Nccls = emulated::Slots<InProcessNccl, ncclResult_t, kMaxNccls>;
std::atomic<uint64_t> nccls_made = 0;

const char* NcclErrorText(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled CUDA error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

template <int kSlot>
constexpr NcclApi kNcclTable = {
    .version = Nccls::kCall<kSlot, "version", &InProcessNccl::Version>,
    .unique_id = Nccls::kCall<kSlot, "unique_id", &Communicators::UniqueId>,
    .init = Nccls::kCall<kSlot, "init", &Communicators::Init>,
    .split = Nccls::kCall<kSlot, "split", &Communicators::SplitComm>,
    .finalize = Nccls::kCall<kSlot, "finalize", &Communicators::Finalize>,
    .destroy = Nccls::kCall<kSlot, "destroy", &Communicators::Destroy>,
    .abort = Nccls::kCall<kSlot, "abort", &Communicators::Abort>,
    .async_error = Nccls::kCall<kSlot, "async_error", &Communicators::AsyncError>,
    .error_text = &NcclErrorText,
    .last_error = [](ncclComm_t comm) { return Nccls::At(kSlot).LastError(comm); },
    .group_start = Nccls::kCall<kSlot, "group_start", &InProcessNccl::GroupStart>,
    .group_end = [] { return Nccls::At(kSlot).GroupEnd(); },
    .send = Nccls::kCall<kSlot, "send", &InProcessNccl::Send>,
    .receive = Nccls::kCall<kSlot, "receive", &InProcessNccl::Receive>,
    .all_reduce = Nccls::kCall<kSlot, "all_reduce", &InProcessNccl::AllReduce>,
    .reduce = Nccls::kCall<kSlot, "reduce", &InProcessNccl::Reduce>,
    .reduce_scatter = Nccls::kCall<kSlot, "reduce_scatter", &InProcessNccl::ReduceScatter>,
    .all_gather = Nccls::kCall<kSlot, "all_gather", &InProcessNccl::AllGather>,
    .broadcast = Nccls::kCall<kSlot, "broadcast", &InProcessNccl::Broadcast>,
    .register_memory = Nccls::kCall<kSlot, "register_memory", &Communicators::Register>,
    .deregister_memory = Nccls::kCall<kSlot, "deregister_memory", &Communicators::Deregister>,
};

template <int... kSlots>
constexpr std::array<const NcclApi*, sizeof...(kSlots)> NcclTables(
    std::integer_sequence<int, kSlots...> /*slots*/) {
  return {&kNcclTable<kSlots>...};
}
constexpr auto kNcclTables = NcclTables(std::make_integer_sequence<int, kMaxNccls>());

}  // namespace

InProcessNccl::InProcessNccl(const InProcessNcclOptions& options)
    : Communicators(options), number_(++nccls_made), slot_(Nccls::Take(this)) {}

InProcessNccl::~InProcessNccl() { Nccls::Release(slot_); }

const NcclApi& InProcessNccl::api() const { return *kNcclTables[slot_]; }

InProcessNccl::Group& InProcessNccl::group() const {
  static thread_local std::array<Group, kMaxNccls> groups;
  Group& group = groups[slot_];
  if (group.nccl != number_) group = {.nccl = number_};
  return group;
}

int64_t InProcessNccl::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

ncclResult_t InProcessNccl::Version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

}  // namespace cadre::in_process
