#include "worker/comm/communicator.h"

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "worker/comm/reduce.h"
#include "worker/comm/rounds.h"

namespace cadre {
namespace {

// Schedules that are kept: those of all chunks of a model's buckets, reduced and gathered.
constexpr size_t kKept = 1024;

uint32_t GroupHash(const std::vector<int>& members) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int rank : members) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3;
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

template <typename T>
std::span<std::byte> Bytes(std::span<T> data) {
  return std::as_writable_bytes(data);
}

// A transport reads what is sent and never writes it.
std::span<std::byte> ToSend(std::span<const std::byte> data) {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

Transfer::Kind TransferKind(ScheduleStep::Kind kind) {
  switch (kind) {
    case ScheduleStep::Kind::kSend:
      return Transfer::Kind::kSend;
    case ScheduleStep::Kind::kReceive:
      return Transfer::Kind::kReceive;
    case ScheduleStep::Kind::kReceiveSum:
      return Transfer::Kind::kReceiveSum;
  }
  LOG(FATAL) << "no kind " << static_cast<int>(kind);
}

std::vector<Piece> PiecesAt(std::span<const int64_t> offsets) {
  std::vector<Piece> pieces;
  for (size_t i = 1; i < offsets.size(); ++i) pieces.push_back({offsets[i - 1], offsets[i]});
  return pieces;
}

int64_t Total(std::span<const Piece> pieces) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.size();
  return total;
}

bool Knows(Collective collective, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
    case Algorithm::kButterfly:
    case Algorithm::kHalvingDoubling:
      return true;
    case Algorithm::kHierarchical:
      return collective == Collective::kAllReduce;
    case Algorithm::kNone:
    case Algorithm::kOnly:
    case Algorithm::kNative:
      return false;
  }
  return false;
}

absl::Status CheckPieces(std::span<const Piece> pieces, int64_t elements, int members) {
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(pieces.size(), " pieces of ", elements,
                                                   " elements among ", members, " members: ", why));
  };
  if (pieces.size() != static_cast<size_t>(members)) return refused("not one for each");
  std::vector<Piece> sorted;
  for (const Piece& piece : pieces) {
    if (piece.begin < 0 || piece.begin > piece.end || piece.end > elements) {
      return refused(absl::StrCat("[", piece.begin, ", ", piece.end, ") is not in the data"));
    }
    if (piece.size() > 0) sorted.push_back(piece);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].begin < sorted[i - 1].end) return refused("some overlap");
  }
  return absl::OkStatus();
}

// A sum needs numbers, whole and where the processor expects them.
absl::Status CheckData(DType type, std::span<const std::byte> data) {
  if (data.size() % SizeOf(type) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.size(), " bytes are no whole number of ", DTypeName(type)));
  }
  if (reinterpret_cast<uintptr_t>(data.data()) % SizeOf(type) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data is not where ", DTypeName(type), " can be"));
  }
  return absl::OkStatus();
}

}  // namespace

Communicator::Communicator(Transport& transport, std::vector<int> members, int channel)
    : transport_(transport),
      members_(std::move(members)),
      channel_(channel),
      group_(GroupHash(members_)) {
  CHECK(channel >= 0 && channel < Transport::kChannels) << channel;
  for (int i = 0; i < size(); ++i) {
    CHECK(Rank(i) >= 0 && Rank(i) < transport_.size()) << "no rank " << Rank(i);
    CHECK_EQ(std::count(members_.begin(), members_.end(), Rank(i)), 1) << "twice: " << Rank(i);
    if (Rank(i) == transport_.rank()) index_ = i;
    hosts_.push_back(transport_.host(Rank(i)));
  }
  CHECK_GE(index_, 0) << "rank " << transport_.rank() << " is not a member";
}

absl::Status Communicator::AllReduce(Algorithm algorithm, DType type, std::span<std::byte> data) {
  if (type == DType::kBytes) return absl::InvalidArgumentError("bytes are not added");
  return Run({.collective = Collective::kAllReduce, .algorithm = algorithm}, type, data);
}

absl::Status Communicator::ReduceScatter(Algorithm algorithm, DType type, std::span<std::byte> data,
                                         std::span<const Piece> pieces) {
  if (type == DType::kBytes) return absl::InvalidArgumentError("bytes are not added");
  return Run({.collective = Collective::kReduceScatter, .algorithm = algorithm, .pieces = pieces},
             type, data);
}

absl::Status Communicator::AllGather(Algorithm algorithm, DType type, std::span<std::byte> data,
                                     std::span<const Piece> pieces) {
  return Run({.collective = Collective::kAllGather, .algorithm = algorithm, .pieces = pieces}, type,
             data);
}

absl::Status Communicator::AllReduceSum(std::span<float> data, Algorithm algorithm) {
  return AllReduce(algorithm, DType::kFloat32, Bytes(data));
}

absl::Status Communicator::ReduceScatterSum(std::span<float> data, std::span<const int64_t> offsets,
                                            Algorithm algorithm) {
  return ReduceScatter(algorithm, DType::kFloat32, Bytes(data), PiecesAt(offsets));
}

absl::Status Communicator::AllGather(std::span<float> data, std::span<const int64_t> offsets,
                                     Algorithm algorithm) {
  return AllGather(algorithm, DType::kFloat32, Bytes(data), PiecesAt(offsets));
}

absl::Status Communicator::AllGatherBytes(std::span<std::byte> data,
                                          std::span<const int64_t> offsets) {
  return AllGather(Algorithm::kRing, DType::kBytes, data, PiecesAt(offsets));
}

absl::Status Communicator::AllReduceSum(std::span<uint64_t> data) {
  return AllReduce(ForFew(), DType::kUInt64, Bytes(data));
}

absl::Status Communicator::AllReduceSum(std::span<double> data) {
  return AllReduce(ForFew(), DType::kFloat64, Bytes(data));
}

absl::Status Communicator::Broadcast(std::span<std::byte> data, int root) {
  return Run({.collective = Collective::kBroadcast, .algorithm = Algorithm::kOnly, .root = root},
             DType::kBytes, data);
}

absl::Status Communicator::Barrier() {
  if (transport_.on_device()) {
    return absl::InvalidArgumentError("a barrier over a device's transport would hold nobody");
  }
  return Run({.collective = Collective::kBarrier, .algorithm = Algorithm::kOnly}, DType::kBytes,
             {});
}

absl::Status Communicator::AllToAll(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) {
  const auto self = static_cast<size_t>(index_);
  if (send.size() != members_.size() || receive.size() != members_.size() ||
      send[self].size() != receive[self].size()) {
    return absl::InvalidArgumentError(absl::StrCat("pieces do not fit ", size(), " members"));
  }
  CADRE_RETURN_IF_ERROR(transport_.CopyWithin(send[self], receive[self]));
  if (size() == 1) return absl::OkStatus();
  transfers_.clear();
  uint64_t bytes = 0;
  uint64_t messages = 0;
  // By distance, so that not everybody turns to the same member first.
  for (int distance = 1; distance < size(); ++distance) {
    const int to = (index_ + distance) % size();
    const int from = (index_ - distance + size()) % size();
    const std::span<const std::byte> out = send[static_cast<size_t>(to)];
    const std::span<std::byte> in = receive[static_cast<size_t>(from)];
    if (!out.empty()) {
      transfers_.push_back({Transfer::Kind::kSend, Rank(to), ToSend(out)});
      bytes += out.size();
      ++messages;
    }
    if (!in.empty()) transfers_.push_back({Transfer::Kind::kReceive, Rank(from), in});
  }
  return RunTransfers(NextTag(Collective::kAllToAll, Algorithm::kOnly, DType::kBytes, 0), {}, bytes,
                      messages);
}

absl::Status Communicator::Run(const Shape& asked, DType type, std::span<std::byte> data) {
  CADRE_RETURN_IF_ERROR(CheckData(type, data));
  Shape shape = asked;
  const size_t element = SizeOf(type);
  shape.elements = static_cast<int64_t>(data.size() / element);
  CADRE_ASSIGN_OR_RETURN(const Made* made, Find(shape));
  if (size() == 1) return absl::OkStatus();
  const int64_t elements = shape.pieces.empty() ? shape.elements : Total(shape.pieces);
  const CallTag tag =
      NextTag(shape.collective, shape.algorithm, type, static_cast<uint64_t>(elements));
  if (shape.algorithm == Algorithm::kNative) return RunNative(*made, tag, data);
  transfers_.clear();
  for (size_t i = 0; i < made->schedule.size(); ++i) {
    const ScheduleStep& step = made->schedule[i];
    transfers_.push_back({TransferKind(step.kind), Rank(step.peer),
                          data.subspan(static_cast<size_t>(step.piece.begin) * element,
                                       static_cast<size_t>(step.piece.size()) * element),
                          step.after, made->rounds.empty() ? 0 : made->rounds[i]});
  }
  return RunTransfers(tag, type == DType::kBytes ? Combine{} : SumOf(type),
                      static_cast<uint64_t>(made->sent.elements) * element,
                      static_cast<uint64_t>(made->sent.messages));
}

absl::Status Communicator::RunNative(const Made& made, const CallTag& tag,
                                     std::span<std::byte> data) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (const Piece& piece : made.pieces) pieces.emplace_back(piece.begin, piece.end);
  const NativeCall call = {.collective = tag.collective,
                           .type = tag.dtype,
                           .members = members_,
                           .index = index_,
                           .data = data,
                           .pieces = pieces};
  return Timed(static_cast<uint64_t>(made.sent.elements) * SizeOf(tag.dtype),
               static_cast<uint64_t>(made.sent.messages),
               [&] { return transport_.RunNative(channel_, tag, call); });
}

absl::StatusOr<const Communicator::Made*> Communicator::Find(const Shape& shape) {
  for (const std::unique_ptr<Made>& made : made_) {
    const Shape& other = made->shape;
    if (other.collective == shape.collective && other.algorithm == shape.algorithm &&
        other.elements == shape.elements && other.root == shape.root &&
        std::ranges::equal(other.pieces, shape.pieces)) {
      return made.get();
    }
  }
  CADRE_RETURN_IF_ERROR(Check(shape));
  auto made = std::make_unique<Made>(Made{shape, {shape.pieces.begin(), shape.pieces.end()}});
  made->shape.pieces = made->pieces;
  if (size() > 1) {
    made->schedule = Make(shape, index_);
    const bool played = shape.algorithm != Algorithm::kNative;
    if (played && transport_.on_device()) made->rounds = RoundsOfOwn(shape);
  }
  made->sent = WorkOf(made->schedule);
  if (made_.size() < kKept) {
    made_.push_back(std::move(made));
    return made_.back().get();
  }
  std::unique_ptr<Made>& oldest = made_[next_made_++ % kKept];
  oldest = std::move(made);
  return oldest.get();
}

absl::Status Communicator::Check(const Shape& shape) const {
  switch (shape.collective) {
    case Collective::kBroadcast:
      if (shape.root >= 0 && shape.root < size()) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("no member ", shape.root, " of ", size()));
    case Collective::kBarrier:
      return absl::OkStatus();
    default:
      break;
  }
  CADRE_RETURN_IF_ERROR(CheckAlgorithm(shape));
  if (shape.collective == Collective::kAllReduce) return absl::OkStatus();
  return CheckPieces(shape.pieces, shape.elements, size());
}

absl::Status Communicator::CheckAlgorithm(const Shape& shape) const {
  if (Knows(shape.collective, shape.algorithm)) return absl::OkStatus();
  const std::string what =
      absl::StrCat(CollectiveName(shape.collective), " by ", AlgorithmName(shape.algorithm));
  if (shape.algorithm != Algorithm::kNative) {
    return absl::InvalidArgumentError(absl::StrCat("no ", what));
  }
  if (!transport_.has_native()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no ", what, ": that is NCCL's, and these ranks' data is not on CUDA devices"));
  }
  if (has_native()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no ", what, " among these ", size(), " ranks: NCCL was not prepared for them"));
}

Schedule Communicator::Make(const Shape& shape, int index) const {
  // A native collective is counted as the ring, by whatever it travels.
  const Algorithm algorithm =
      shape.algorithm == Algorithm::kNative ? Algorithm::kRing : shape.algorithm;
  switch (shape.collective) {
    case Collective::kReduceScatter:
      return ReduceScatterSchedule(algorithm, index, shape.pieces);
    case Collective::kAllGather:
      return AllGatherSchedule(algorithm, index, shape.pieces);
    case Collective::kAllReduce:
      if (algorithm == Algorithm::kHierarchical) {
        return HierarchicalAllReduceSchedule(index, hosts_, shape.elements,
                                             Algorithm::kHalvingDoubling);
      }
      return AllReduceSchedule(algorithm, index, size(), shape.elements);
    case Collective::kBroadcast:
      return BroadcastSchedule(index, size(), shape.elements, shape.root);
    case Collective::kBarrier:
      return BarrierSchedule(index, size());
    case Collective::kNone:
    case Collective::kAllToAll:
    case Collective::kOrder:
      break;
  }
  LOG(FATAL) << "no schedule of " << CollectiveName(shape.collective);
}

std::vector<int> Communicator::RoundsOfOwn(const Shape& shape) const {
  std::vector<Schedule> all;
  for (int member = 0; member < size(); ++member) all.push_back(Make(shape, member));
  return std::move(RoundsOf(all)[static_cast<size_t>(index_)]);
}

Algorithm Communicator::ForFew() const {
  return has_native() ? Algorithm::kNative : Algorithm::kButterfly;
}

absl::Status Communicator::Timed(uint64_t bytes, uint64_t messages,
                                 absl::FunctionRef<absl::Status()> call) {
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  messages_sent_.fetch_add(messages, std::memory_order_relaxed);
  const absl::Time start = absl::Now();
  absl::Status status = call();
  nanoseconds_.fetch_add(absl::ToInt64Nanoseconds(absl::Now() - start), std::memory_order_relaxed);
  return status;
}

absl::Status Communicator::RunTransfers(const CallTag& tag, const Combine& combine, uint64_t bytes,
                                        uint64_t messages) {
  return Timed(bytes, messages, [&] { return transport_.Run(channel_, tag, transfers_, combine); });
}

CallTag Communicator::NextTag(Collective collective, Algorithm algorithm, DType type,
                              uint64_t elements) {
  return {.collective = collective,
          .algorithm = algorithm,
          .dtype = type,
          .members = static_cast<uint16_t>(size()),
          .group = group_,
          .sequence = transport_.NextSequence(channel_, group_),
          .elements = elements};
}

}  // namespace cadre
