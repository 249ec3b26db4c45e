// Lists of transfers over NCCL.
//
// NCCL moves whole messages between ranks that call ncclSend and ncclRecv in matching groups, and
// knows neither tags nor dependencies inside a message. A list of transfers is therefore executed
// in rounds (worker/comm/rounds.h), numbers that both ends of a message agree on: the transfers of
// one round are one ncclGroupStart/ncclGroupEnd, which NCCL progresses concurrently and cannot
// deadlock in; then a kernel adds what was received for sums; then the next round follows on the
// same stream.
//
// Received addends lie in scratch until they are added. That is why a sum may share a round with
// the send of the data it adds to (butterfly): the send reads the old data while the addend
// arrives.
//
// Native collectives map to ncclAllReduce; reduce-scatter and all-gather map to NCCL's own if
// intervals are equal and adjacent, otherwise to one group of ncclReduce or ncclBroadcast per
// interval.
//
// Invariants:
// - Transfers between two ranks keep their order (stable sort by round), because NCCL matches
// messages
//   by order.
// - Scratch grows outside of graph capture only, and outgrown scratch is kept, because enqueued
// work
//   and captured graphs may still use it.
// - The calls of a new kind are compared with the peers before the first of them is enqueued
//   (nccl_agreement.h); a mismatch inside NCCL would be a hang.
//
// Cost: one group launch and at most one kernel per sum and round. The schedule's byte-wise
// pipelining is lost: a ring step costs its full length.
#include "worker/transport/nccl/nccl_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "worker/transport/nccl/nccl_agreement.h"
#include "worker/transport/nccl/nccl_communicators.h"
#include "worker/transport/nccl/nccl_error.h"

namespace cadre {
namespace {

// Channels that data travels on; what comes next in the background is agreed on the host.
constexpr int kDataChannels = 2;
constexpr std::array<const char*, kDataChannels> kChannelNames = {"moves", "background"};
// Sums arrive where kernels read them in whole vectors.
constexpr size_t kScratchAlignment = 256;

// Tells the few messages of the start from everything else on the host transport.
constexpr uint32_t kStartGroup = 0x53544152;

using Ids = std::array<ncclUniqueId, kDataChannels>;

CallTag StartTag(Transport& host, Collective collective, uint64_t elements) {
  return {.collective = collective,
          .algorithm = Algorithm::kOnly,
          .dtype = DType::kBytes,
          .members = static_cast<uint16_t>(host.size()),
          .group = kStartGroup,
          .sequence = host.NextSequence(Transport::kMoves, kStartGroup),
          .elements = elements};
}

absl::StatusOr<Ids> MakeIds(const NcclApi& api) {
  Ids ids{};
  for (ncclUniqueId& id : ids) {
    const ncclResult_t result = api.unique_id(&id);
    if (result != ncclSuccess) return NcclInitStatus(api, result, nullptr, "making NCCL's id");
  }
  return ids;
}

// Rank 0's ids, on all ranks.
absl::StatusOr<Ids> ShareIds(const NcclApi& api, Transport& host) {
  Ids ids{};
  if (host.rank() == 0) {
    absl::StatusOr<Ids> made = MakeIds(api);
    if (!made.ok()) {
      host.Abort(made.status());
      return made.status();
    }
    ids = *made;
  }
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(ids));
  std::vector<Transfer> transfers;
  for (int peer = 1; peer < host.size() && host.rank() == 0; ++peer) {
    transfers.push_back({Transfer::Kind::kSend, peer, bytes});
  }
  if (host.rank() != 0) transfers.push_back({Transfer::Kind::kReceive, 0, bytes});
  CADRE_RETURN_IF_ERROR(
      Annotate(host.Run(Transport::kMoves, StartTag(host, Collective::kBroadcast, bytes.size()),
                        transfers, {}),
               "sharing NCCL's id"));
  return ids;
}

// Returns when every rank has called it.
absl::Status HostBarrier(Transport& host) {
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < host.size(); ++distance) {
    const int to = (host.rank() + distance) % host.size();
    const int from = (host.rank() - distance + host.size()) % host.size();
    transfers.push_back({Transfer::Kind::kSend, to, {}});
    transfers.push_back({Transfer::Kind::kReceive, from, {}});
  }
  return Annotate(
      host.Run(Transport::kMoves, StartTag(host, Collective::kBarrier, 0), transfers, {}),
      "waiting for the other ranks' NCCL communicators");
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Pieces that follow one another without a gap and are of one size.
bool AreEqualAndInOrder(std::span<const std::pair<int64_t, int64_t>> intervals) {
  const int64_t size = intervals.front().second - intervals.front().first;
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].second - intervals[i].first != size) return false;
    if (i > 0 && intervals[i].first != intervals[i - 1].second) return false;
  }
  return true;
}

size_t Aligned(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const NcclApi& api, CudaDevice& device, Backend& kernels, Transport& host,
                const NcclTransportOptions& options)
      : api_(api),
        device_(device),
        kernels_(kernels),
        host_(host),
        agreement_(host),
        comms_(api, device, host, options.init_timeout) {}

  // One communicator of all ranks for each channel.
  absl::Status Connect();

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  LinkKind link(int peer) const override {
    return peer == rank() ? LinkKind::kSelf : LinkKind::kNccl;
  }
  uint64_t host(int peer) const override { return host_.host(peer); }

  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override;
  bool on_device() const override { return true; }
  bool has_native() const override { return true; }
  bool HasNativeFor(std::span<const int> members) const override;
  absl::Status RunNative(int channel, const CallTag& tag, const NativeCall& call) override;
  absl::Status PrepareMembers(std::span<const std::vector<int>> parts) override;
  void RegisterMemory(std::span<std::byte> memory) override {
    if (!memory.empty()) comms_.Register(memory.data(), memory.size());
  }
  void ForgetMemory(std::span<std::byte> memory) override {
    if (!memory.empty()) comms_.Deregister(memory.data());
  }
  absl::Status CopyWithin(std::span<const std::byte> from, std::span<std::byte> to) override;

  void Abort(absl::Status reason) override { comms_.Fail(std::move(reason)); }
  absl::Status status() const override { return comms_.status(); }

 private:
  // A receive that is added when it is there.
  struct Arriving {
    std::span<std::byte> sum;
    std::span<std::byte> values;
  };

  absl::Status CheckCall(int channel) const;
  // The channel's lists of transfers by round, without those that carry nothing.
  absl::Status SortByRound(const CallTag& tag, std::span<const Transfer> transfers);
  absl::Status Reserve(int channel);
  absl::Status RunRound(int channel, const CallTag& tag, std::span<const Transfer* const> round);
  ncclResult_t EnqueueTransfers(ncclComm_t comm, std::span<const Transfer* const> round,
                                std::span<const Arriving> arriving) const;
  ncclResult_t EnqueueNative(ncclComm_t comm, const NativeCall& call) const;
  ncclResult_t EnqueueReduceScatter(ncclComm_t comm, const NativeCall& call) const;
  ncclResult_t EnqueueAllGather(ncclComm_t comm, const NativeCall& call) const;
  // Kills the group with what is a bug of ours.
  absl::Status FailedWith(absl::Status error) {
    comms_.Fail(error);
    return error;
  }

  const NcclApi& api_;
  CudaDevice& device_;
  Backend& kernels_;
  Transport& host_;
  NcclAgreement agreement_;
  // Numbers of communicators, by members and channel.
  std::map<std::vector<int>, std::array<int, kDataChannels>> numbers_;
  // What PrepareMembers was called with.
  std::set<std::vector<std::vector<int>>> prepared_;
  // Of each channel, for sums that arrive; what it has outgrown may still be in use.
  std::array<std::vector<DeviceArray<std::byte>>, kDataChannels> scratch_;
  // Kept for their memory.
  std::vector<const Transfer*> sorted_;
  std::vector<Arriving> arriving_;
  NcclCommunicators comms_;
};

absl::Status NcclTransport::Connect() {
  if (size() == 1) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const Ids ids, ShareIds(api_, host_));
  std::array<int, kDataChannels> numbers{};
  for (size_t channel = 0; channel < ids.size(); ++channel) {
    CADRE_ASSIGN_OR_RETURN(numbers[channel], comms_.Make(ids[channel], kChannelNames[channel]));
  }
  numbers_[AllRanks(size())] = numbers;
  return HostBarrier(host_);
}

absl::Status NcclTransport::CheckCall(int channel) const {
  CHECK(channel >= 0 && channel < kDataChannels) << "no data travels on channel " << channel;
  return comms_.status();
}

absl::Status NcclTransport::Run(int channel, const CallTag& tag,
                                std::span<const Transfer> transfers, const Combine& /*combine*/) {
  CADRE_RETURN_IF_ERROR(CheckCall(channel));
  CADRE_RETURN_IF_ERROR(SortByRound(tag, transfers));
  if (sorted_.empty()) return absl::OkStatus();
  if (absl::Status agreed = agreement_.Check(channel, tag, transfers); !agreed.ok()) {
    return FailedWith(std::move(agreed));
  }
  CADRE_RETURN_IF_ERROR(Reserve(channel));
  for (size_t begin = 0, end = 0; begin < sorted_.size(); begin = end) {
    while (end < sorted_.size() && sorted_[end]->round == sorted_[begin]->round) ++end;
    CADRE_RETURN_IF_ERROR(RunRound(channel, tag, std::span(sorted_).subspan(begin, end - begin)));
  }
  return device_.failed() ? comms_.status() : absl::OkStatus();
}

absl::Status NcclTransport::SortByRound(const CallTag& tag, std::span<const Transfer> transfers) {
  sorted_.clear();
  for (const Transfer& transfer : transfers) {
    if (transfer.after != Transfer::kNone) {
      const Transfer& before = transfers[transfer.after];
      const bool same_round =
          transfer.kind == Transfer::Kind::kReceiveSum && before.kind == Transfer::Kind::kSend;
      if (transfer.round < before.round + (same_round ? 0 : 1)) {
        return FailedWith(absl::InternalError(
            absl::StrCat("a message in ", tag.ToString(), " goes before what it waits for")));
      }
    }
    if (!transfer.data.empty()) sorted_.push_back(&transfer);
  }
  // Between two ranks messages keep their order.
  std::stable_sort(sorted_.begin(), sorted_.end(),
                   [](const Transfer* a, const Transfer* b) { return a->round < b->round; });
  return absl::OkStatus();
}

absl::Status NcclTransport::Reserve(int channel) {
  size_t most = 0;
  size_t in_round = 0;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    if (i > 0 && sorted_[i]->round != sorted_[i - 1]->round) in_round = 0;
    if (sorted_[i]->kind == Transfer::Kind::kReceiveSum)
      in_round += Aligned(sorted_[i]->data.size());
    most = std::max(most, in_round);
  }
  std::vector<DeviceArray<std::byte>>& scratch = scratch_[channel];
  const size_t have = scratch.empty() ? 0 : scratch.back().size();
  if (most <= have) return absl::OkStatus();
  if (device_.capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sums that arrive need ", most, " bytes and have ", have,
                     ", and a recording takes no memory: run the call once before"));
  }
  scratch.emplace_back(device_, std::max(most, 2 * have), "sums that arrive");
  if (scratch.back().data() != nullptr) return absl::OkStatus();
  return FailedWith(device_.status());
}

absl::Status NcclTransport::RunRound(int channel, const CallTag& tag,
                                     std::span<const Transfer* const> round) {
  arriving_.clear();
  size_t used = 0;
  for (const Transfer* transfer : round) {
    if (transfer->kind != Transfer::Kind::kReceiveSum) continue;
    std::byte* const at = scratch_[channel].back().data() + used;
    arriving_.push_back({transfer->data, {at, transfer->data.size()}});
    used += Aligned(transfer->data.size());
  }
  const int number = numbers_.at(AllRanks(size()))[channel];
  CADRE_RETURN_IF_ERROR(comms_.Enqueue(
      number, tag, [&](ncclComm_t comm) { return EnqueueTransfers(comm, round, arriving_); }));
  for (const Arriving& each : arriving_)
    kernels_.memory().AccumulateReceived(tag.dtype, each.sum, each.values);
  return absl::OkStatus();
}

ncclResult_t NcclTransport::EnqueueTransfers(ncclComm_t comm,
                                             std::span<const Transfer* const> round,
                                             std::span<const Arriving> arriving) const {
  const cudaStream_t stream = device_.stream();
  size_t next = 0;
  for (const Transfer* transfer : round) {
    const std::span<std::byte> data = transfer->data;
    ncclResult_t result = ncclSuccess;
    if (transfer->kind == Transfer::Kind::kSend) {
      result = api_.send(data.data(), data.size(), ncclUint8, transfer->peer, comm, stream);
    } else {
      const bool sum = transfer->kind == Transfer::Kind::kReceiveSum;
      std::byte* const to = sum ? arriving[next++].values.data() : data.data();
      result = api_.receive(to, data.size(), ncclUint8, transfer->peer, comm, stream);
    }
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  return ncclSuccess;
}

bool NcclTransport::HasNativeFor(std::span<const int> members) const {
  return members.size() == 1 ||
         numbers_.count(std::vector<int>(members.begin(), members.end())) != 0;
}

absl::Status NcclTransport::PrepareMembers(std::span<const std::vector<int>> parts) {
  if (size() == 1) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(comms_.status());
  // A split is everybody's, so whether it is made again depends on all parts, not on the own one.
  const bool known = parts.size() == 1 && numbers_.count(parts.front()) != 0;
  if (known || !prepared_.emplace(parts.begin(), parts.end()).second) {
    return absl::OkStatus();
  }
  const std::vector<int> all = AllRanks(size());
  for (size_t color = 0; color < parts.size(); ++color) {
    const std::vector<int>& part = parts[color];
    const auto own = std::find(part.begin(), part.end(), rank());
    if (own == part.end()) continue;
    std::array<int, kDataChannels> numbers{};
    for (size_t channel = 0; channel < numbers.size(); ++channel) {
      CADRE_ASSIGN_OR_RETURN(numbers[channel],
                             comms_.Split(numbers_.at(all)[channel], static_cast<int>(color),
                                          static_cast<int>(own - part.begin()),
                                          absl::StrCat(kChannelNames[channel], " of ranks ",
                                                       absl::StrJoin(part, ", "))));
    }
    numbers_[part] = numbers;
    return HostBarrier(host_);
  }
  return FailedWith(
      absl::InternalError(absl::StrCat("rank ", rank(), " is in no part of those to be prepared")));
}

absl::Status NcclTransport::RunNative(int channel, const CallTag& tag, const NativeCall& call) {
  CADRE_RETURN_IF_ERROR(CheckCall(channel));
  if (call.members.size() == 1) return absl::OkStatus();
  const auto found = numbers_.find(std::vector<int>(call.members.begin(), call.members.end()));
  if (found == numbers_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL was not prepared for ranks ", absl::StrJoin(call.members, ", ")));
  }
  if (absl::Status agreed = agreement_.Check(channel, tag, call); !agreed.ok()) {
    return FailedWith(std::move(agreed));
  }
  if (call.data.empty()) return absl::OkStatus();
  return comms_.Enqueue(found->second[channel], tag,
                        [&](ncclComm_t comm) { return EnqueueNative(comm, call); });
}

ncclResult_t NcclTransport::EnqueueNative(ncclComm_t comm, const NativeCall& call) const {
  switch (call.collective) {
    case Collective::kAllReduce:
      return api_.all_reduce(call.data.data(), call.data.data(),
                             call.data.size() / SizeOf(call.type), NcclType(call.type), ncclSum,
                             comm, device_.stream());
    case Collective::kReduceScatter:
      return EnqueueReduceScatter(comm, call);
    case Collective::kAllGather:
      return EnqueueAllGather(comm, call);
    default:
      LOG(FATAL) << "NCCL has no " << CollectiveName(call.collective);
  }
}

// Where intervals are not what NCCL's own takes, each is reduced to its owner, all in one group.
ncclResult_t NcclTransport::EnqueueReduceScatter(ncclComm_t comm, const NativeCall& call) const {
  const auto element = static_cast<int64_t>(SizeOf(call.type));
  const auto at = [&](int64_t position) { return call.data.data() + position * element; };
  const auto& own = call.intervals[call.index];
  if (AreEqualAndInOrder(call.intervals)) {
    const auto count = static_cast<size_t>(own.second - own.first);
    if (count == 0) return ncclSuccess;
    return api_.reduce_scatter(at(call.intervals.front().first), at(own.first), count,
                               NcclType(call.type), ncclSum, comm, device_.stream());
  }
  for (size_t root = 0; root < call.intervals.size(); ++root) {
    const auto& [begin, end] = call.intervals[root];
    if (begin == end) continue;
    const ncclResult_t result =
        api_.reduce(at(begin), at(begin), end - begin, NcclType(call.type), ncclSum,
                    static_cast<int>(root), comm, device_.stream());
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  return ncclSuccess;
}

ncclResult_t NcclTransport::EnqueueAllGather(ncclComm_t comm, const NativeCall& call) const {
  const auto element = static_cast<int64_t>(SizeOf(call.type));
  const auto at = [&](int64_t position) { return call.data.data() + position * element; };
  const auto& own = call.intervals[call.index];
  if (AreEqualAndInOrder(call.intervals)) {
    const auto count = static_cast<size_t>(own.second - own.first);
    if (count == 0) return ncclSuccess;
    return api_.all_gather(at(own.first), at(call.intervals.front().first), count,
                           NcclType(call.type), comm, device_.stream());
  }
  for (size_t root = 0; root < call.intervals.size(); ++root) {
    const auto& [begin, end] = call.intervals[root];
    if (begin == end) continue;
    const ncclResult_t result =
        api_.broadcast(at(begin), at(begin), end - begin, NcclType(call.type),
                       static_cast<int>(root), comm, device_.stream());
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  return ncclSuccess;
}

absl::Status NcclTransport::CopyWithin(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) device_.Copy(from.data(), to.data(), from.size());
  return device_.failed() ? comms_.status() : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclApi& api, CudaDevice& device,
                                                             Backend& kernels, Transport& host,
                                                             const NcclTransportOptions& options) {
  auto transport = std::make_unique<NcclTransport>(api, device, kernels, host, options);
  CADRE_RETURN_IF_ERROR(transport->Connect());
  return transport;
}

}  // namespace cadre
