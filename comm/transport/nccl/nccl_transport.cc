// Executes lists of transfers by NCCL.
//
// NCCL moves whole messages between ranks that call ncclSend and ncclRecv in matching groups, and
// knows neither tags nor dependencies inside a message. A list of transfers is therefore executed
// in rounds (comm/rounds.h); the round of a message is the same at both ends. The transfers
// of one round are one ncclGroupStart/ncclGroupEnd, which NCCL executes concurrently and without
// deadlock; then a kernel adds the received addends; then the next round follows on the same
// stream.
//
// Received addends are in scratch until they are added. Therefore a sum may share a round with the
// send of the data that it adds to (butterfly): the send reads the old data while the addend
// arrives.
//
// Native collectives map to ncclAllReduce; reduce-scatter and all-gather map to NCCL's own if
// intervals are equal and adjacent, otherwise to one group of ncclReduce or ncclBroadcast per
// interval.
//
// Invariants:
// - Transfers between two ranks keep their order (stable sort by round), because NCCL matches
//   messages by order.
// - Scratch grows only outside of graph captures. Outgrown scratch is kept for enqueued work and
//   captured graphs that still use it.
// - The calls of a new kind are compared with the peers before the first of them is enqueued
//   (nccl_agreement.h), because NCCL would block forever on a mismatch.
//
// Cost: one group launch and at most one kernel per sum and round. The schedule's byte-wise
// pipelining is lost: a ring step costs its full length.
#include "comm/transport/nccl/nccl_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "comm/transport/nccl/nccl_agreement.h"
#include "comm/transport/nccl/nccl_communicators.h"

namespace cadre {
namespace {

// The channels of collectives; kOrder stays on the host.
constexpr int kDataChannels = 2;
constexpr std::array<const char*, kDataChannels> kChannelNames = {"moves", "background"};
// Received addends are aligned for vector loads.
constexpr size_t kScratchAlignment = 256;

// Distinguishes the messages of the start from other calls on the host transport.
constexpr uint32_t kStartGroup = 0x53544152;

using Ids = std::array<ncclUniqueId, kDataChannels>;

CallTag StartTag(Transport& host, Collective collective, uint64_t elements) {
  CallTag tag{.collective = collective,
              .algorithm = Algorithm::kSingle,
              .group = kStartGroup,
              .sequence = host.NextSequence(Transport::kMoves, kStartGroup),
              .elements = elements};
  tag.members = host.size();
  return tag;
}

absl::StatusOr<Ids> MakeIds(const NcclApi& api) {
  Ids ids{};
  for (ncclUniqueId& id : ids) {
    const ncclResult_t result = api.unique_id(&id);
    if (result != ncclSuccess) return NcclInitStatus(api, result, nullptr, "creating NCCL's id");
  }
  return ids;
}

// Broadcasts rank 0's ids to all ranks.
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

// Whether all intervals have the same size and each begins where the previous one ends.
bool AreEqualAndAdjacent(std::span<const Interval> intervals) {
  for (size_t i = 1; i < intervals.size(); ++i) {
    if (intervals[i].size() != intervals[0].size()) return false;
    if (intervals[i].begin != intervals[i - 1].end) return false;
  }
  return true;
}

ncclDataType_t NcclType(DType type) {
  switch (type) {
    case DType::kBytes:
      return ncclUint8;
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kUInt64:
      return ncclUint64;
    case DType::kFloat64:
      return ncclFloat64;
  }
  return ncclUint8;
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
        call_timeout_(options.call_timeout),
        comms_(api, device, host, options.init_timeout) {}

  // Creates one communicator of all ranks for each channel.
  absl::Status Connect();

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  LinkKind link(int peer) const override {
    return peer == rank() ? LinkKind::kSelf : LinkKind::kNccl;
  }

  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override;
  bool on_device() const override { return true; }
  bool has_native() const override { return true; }
  bool HasNativeFor(std::span<const int> members) const override;
  absl::Status RunNative(int channel, const CallTag& tag, const NativeCall& call) override;
  absl::Status PrepareMembers(std::span<const std::vector<int>> parts) override;
  absl::Status PrepareMessages() override;
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
  // A received addend and the data it is added to.
  struct Addend {
    std::span<std::byte> sum;
    std::span<std::byte> values;
  };

  absl::Status CheckCall(int channel) const;
  // The communicator of all ranks for a channel.
  int NumberOf(int channel) const {
    return channel == kSends ? *messages_ : numbers_.at(AllRanks(size()))[channel];
  }
  // The channel's lists of transfers by round, without those that carry nothing.
  absl::Status SortByRound(const CallTag& tag, std::span<const Transfer> transfers);
  absl::Status Reserve(int channel);
  absl::Status RunRound(int channel, const CallTag& tag, std::span<const Transfer* const> round);
  ncclResult_t EnqueueTransfers(ncclComm_t comm, std::span<const Transfer* const> round,
                                std::span<const Addend> addends) const;
  ncclResult_t EnqueueNative(ncclComm_t comm, const NativeCall& call) const;
  // Reduce-scatter and all-gather.
  ncclResult_t EnqueueByInterval(ncclComm_t comm, const NativeCall& call) const;
  // Fails the group and returns `error`.
  absl::Status FailedWith(absl::Status error) {
    comms_.Fail(error);
    return error;
  }

  const NcclApi& api_;
  CudaDevice& device_;
  Backend& kernels_;
  Transport& host_;
  NcclAgreement agreement_;
  // Numbers of the communicators, by members and channel.
  std::map<std::vector<int>, std::array<int, kDataChannels>> numbers_;
  // The number of the communicator for kSends.
  std::optional<int> messages_;
  // The arguments of earlier calls of PrepareMembers.
  std::set<std::vector<std::vector<int>>> prepared_;
  // Scratch for addends, by channel. The last block is used; enqueued work may still use the
  // others.
  std::array<std::vector<DeviceArray<std::byte>>, kDataChannels> scratch_;
  // Reused to avoid allocations.
  std::vector<const Transfer*> sorted_;
  std::vector<Addend> addends_;
  const absl::Duration call_timeout_;
  NcclCommunicators comms_;
};

absl::Status NcclTransport::Connect() {
  if (size() == 1) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(device_.LoadKernels());
  CADRE_ASSIGN_OR_RETURN(const Ids ids, ShareIds(api_, host_));
  std::array<int, kDataChannels> numbers{};
  for (size_t channel = 0; channel < ids.size(); ++channel) {
    CADRE_ASSIGN_OR_RETURN(numbers[channel], comms_.Make(ids[channel], kChannelNames[channel]));
  }
  numbers_[AllRanks(size())] = numbers;
  comms_.set_timeout(call_timeout_);
  return HostBarrier(host_);
}

absl::Status NcclTransport::CheckCall(int channel) const {
  CHECK((channel >= 0 && channel < kDataChannels) || (channel == kSends && messages_))
      << "channel " << channel << " carries no data";
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
            absl::StrCat("a message in ", tag.ToString(), " precedes its dependency")));
      }
    }
    if (!transfer.data.empty()) sorted_.push_back(&transfer);
  }
  // Stable, so that messages between two ranks keep their order.
  std::stable_sort(sorted_.begin(), sorted_.end(),
                   [](const Transfer* a, const Transfer* b) { return a->round < b->round; });
  return absl::OkStatus();
}

absl::Status NcclTransport::Reserve(int channel) {
  size_t required = 0;
  size_t in_round = 0;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    if (i > 0 && sorted_[i]->round != sorted_[i - 1]->round) in_round = 0;
    if (sorted_[i]->kind != Transfer::Kind::kReceiveSum) continue;
    in_round += Aligned(sorted_[i]->data.size());
    required = std::max(required, in_round);
  }
  if (required == 0) return absl::OkStatus();
  std::vector<DeviceArray<std::byte>>& scratch = scratch_.at(channel);
  const size_t allocated = scratch.empty() ? 0 : scratch.back().size();
  if (required <= allocated) return absl::OkStatus();
  if (device_.capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("received addends need ", required, " bytes of scratch, of which ", allocated,
                     " are allocated; a capture cannot allocate: run the call once before it"));
  }
  scratch.emplace_back(device_, std::max(required, 2 * allocated), "received addends");
  if (scratch.back().data() != nullptr) return absl::OkStatus();
  return FailedWith(device_.status());
}

absl::Status NcclTransport::RunRound(int channel, const CallTag& tag,
                                     std::span<const Transfer* const> round) {
  addends_.clear();
  size_t used = 0;
  for (const Transfer* transfer : round) {
    if (transfer->kind != Transfer::Kind::kReceiveSum) continue;
    std::byte* const at = scratch_[channel].back().data() + used;
    addends_.push_back({transfer->data, {at, transfer->data.size()}});
    used += Aligned(transfer->data.size());
  }
  CADRE_RETURN_IF_ERROR(comms_.Enqueue(NumberOf(channel), tag, [&](ncclComm_t comm) {
    return EnqueueTransfers(comm, round, addends_);
  }));
  for (const Addend& addend : addends_) {
    kernels_.memory().AccumulateReceived(tag.dtype, addend.sum, addend.values);
  }
  return absl::OkStatus();
}

ncclResult_t NcclTransport::EnqueueTransfers(ncclComm_t comm,
                                             std::span<const Transfer* const> round,
                                             std::span<const Addend> addends) const {
  const cudaStream_t stream = device_.stream();
  size_t next = 0;
  for (const Transfer* transfer : round) {
    const std::span<std::byte> data = transfer->data;
    const bool sum = transfer->kind == Transfer::Kind::kReceiveSum;
    std::byte* const at = sum ? addends[next++].values.data() : data.data();
    const ncclResult_t result =
        transfer->kind == Transfer::Kind::kSend
            ? api_.send(at, data.size(), ncclUint8, transfer->peer, comm, stream)
            : api_.receive(at, data.size(), ncclUint8, transfer->peer, comm, stream);
    if (IsError(result)) return result;
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
  // A split is a collective of all ranks, so whether it is needed must depend on all parts, not
  // only on the part of this rank.
  const bool known = parts.size() == 1 && numbers_.count(parts.front()) != 0;
  if (known || !prepared_.emplace(parts.begin(), parts.end()).second) {
    return absl::OkStatus();
  }
  const std::vector<int> all = AllRanks(size());
  for (int color = 0; color < std::ssize(parts); ++color) {
    const std::vector<int>& part = parts[color];
    const auto own = std::find(part.begin(), part.end(), rank());
    if (own == part.end()) continue;
    std::array<int, kDataChannels> numbers{};
    for (size_t channel = 0; channel < numbers.size(); ++channel) {
      CADRE_ASSIGN_OR_RETURN(numbers[channel],
                             comms_.Split(numbers_.at(all)[channel], color, own - part.begin(),
                                          absl::StrCat(kChannelNames[channel], " of ranks ",
                                                       absl::StrJoin(part, ", "))));
    }
    numbers_[part] = numbers;
    return HostBarrier(host_);
  }
  return FailedWith(
      absl::InternalError(absl::StrCat("rank ", rank(), " is in none of the parts to prepare")));
}

absl::Status NcclTransport::PrepareMessages() {
  if (size() == 1 || messages_) return comms_.status();
  CADRE_ASSIGN_OR_RETURN(
      messages_, comms_.Split(NumberOf(kMoves), /*color=*/0, rank(), "messages between layers"));
  return HostBarrier(host_);
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
    case Collective::kAllGather:
      return EnqueueByInterval(comm, call);
    default:
      LOG(FATAL) << "no native " << CollectiveName(call.collective);
  }
}

// NCCL's reduce-scatter and all-gather require equal, adjacent intervals. Other intervals are
// reduced to or broadcast from their owners, in one group.
ncclResult_t NcclTransport::EnqueueByInterval(ncclComm_t comm, const NativeCall& call) const {
  const bool scatters = call.collective == Collective::kReduceScatter;
  const cudaStream_t stream = device_.stream();
  const ncclDataType_t type = NcclType(call.type);
  const auto at = [&](const Interval& interval) {
    return call.data.data() + interval.begin * SizeOf(call.type);
  };
  if (AreEqualAndAdjacent(call.intervals)) {
    const Interval& own = call.intervals[call.index];
    const Interval& first = call.intervals.front();
    if (own.empty()) return ncclSuccess;
    return scatters
               ? api_.reduce_scatter(at(first), at(own), own.size(), type, ncclSum, comm, stream)
               : api_.all_gather(at(own), at(first), own.size(), type, comm, stream);
  }
  for (int owner = 0; owner < std::ssize(call.intervals); ++owner) {
    const Interval& part = call.intervals[owner];
    if (part.empty()) continue;
    std::byte* const data = at(part);
    const ncclResult_t result =
        scatters ? api_.reduce(data, data, part.size(), type, ncclSum, owner, comm, stream)
                 : api_.broadcast(data, data, part.size(), type, owner, comm, stream);
    if (IsError(result)) return result;
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
