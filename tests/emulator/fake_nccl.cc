#include "tests/emulator/fake_nccl.h"

#include <array>
#include <atomic>
#include <utility>

#include "glog/logging.h"
#include "tests/emulator/fake_nccl_network.h"

namespace cadre::emulated {
namespace {

// The functions of NcclApi have no object, so those of each table are bound to the slot of their
// network.
std::array<std::atomic<Network*>, kMaxNetworks> networks;
std::atomic<uint64_t> networks_made = 0;

template <int kSlot, auto kMethod, typename... Arguments>
constexpr auto Bind(ncclResult_t (Network::*)(Arguments...)) -> ncclResult_t (*)(Arguments...) {
  return [](Arguments... arguments) -> ncclResult_t {
    Network* network = networks[kSlot].load(std::memory_order_acquire);
    CHECK(network != nullptr) << "a fake NCCL was called after its destruction";
    return (network->*kMethod)(arguments...);
  };
}

template <int kSlot, auto kMethod>
inline constexpr auto kCall = Bind<kSlot, kMethod>(kMethod);

const char* ErrorText(ncclResult_t result) {
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

const char* LastError(ncclComm_t /*comm*/) { return "a fake error"; }

template <int kSlot>
constexpr NcclApi kTable = {
    .version = kCall<kSlot, &Network::Version>,
    .unique_id = kCall<kSlot, &Network::UniqueId>,
    .init = kCall<kSlot, &Network::Init>,
    .split = kCall<kSlot, &Network::SplitComm>,
    .finalize = kCall<kSlot, &Network::Finalize>,
    .destroy = kCall<kSlot, &Network::Destroy>,
    .abort = kCall<kSlot, &Network::Abort>,
    .async_error = kCall<kSlot, &Network::AsyncError>,
    .error_text = &ErrorText,
    .last_error = &LastError,
    .group_start = kCall<kSlot, &Network::GroupStart>,
    .group_end = kCall<kSlot, &Network::GroupEnd>,
    .send = kCall<kSlot, &Network::Send>,
    .receive = kCall<kSlot, &Network::Receive>,
    .all_reduce = kCall<kSlot, &Network::AllReduce>,
    .reduce = kCall<kSlot, &Network::Reduce>,
    .reduce_scatter = kCall<kSlot, &Network::ReduceScatter>,
    .all_gather = kCall<kSlot, &Network::AllGather>,
    .broadcast = kCall<kSlot, &Network::Broadcast>,
    .register_memory = kCall<kSlot, &Network::Register>,
    .deregister_memory = kCall<kSlot, &Network::Deregister>,
};

template <int... kSlots>
constexpr std::array<const NcclApi*, sizeof...(kSlots)> Tables(
    std::integer_sequence<int, kSlots...> /*slots*/) {
  return {&kTable<kSlots>...};
}
constexpr auto kTables = Tables(std::make_integer_sequence<int, kMaxNetworks>());

int TakeSlot(Network* network) {
  for (int i = 0; i < kMaxNetworks; ++i) {
    Network* none = nullptr;
    if (networks[i].compare_exchange_strong(none, network)) return i;
  }
  LOG(FATAL) << "more than " << kMaxNetworks << " fake NCCLs at the same time";
}

}  // namespace

Network::Network() : number_(++networks_made), slot_(TakeSlot(this)) {}

Network::~Network() { networks[slot_].store(nullptr, std::memory_order_release); }

const NcclApi& Network::api() const { return *kTables[slot_]; }

Network::Group& Network::group() const {
  static thread_local std::array<Group, kMaxNetworks> groups;
  Group& group = groups[slot_];
  if (group.network != number_) group = {.network = number_};
  return group;
}

}  // namespace cadre::emulated
