#include "comm/communicator.h"

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "comm/rounds.h"
#include "tensor/reduce.h"

namespace cadre {
namespace {

// Capacity of the cache: enough for reduce-scatter and all-gather of all chunks of all buckets.
constexpr size_t kMaxSchedules = 1024;

uint32_t MembersHash(const std::vector<int>& members) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint64_t rank : members) hash = (hash ^ rank) * 0x100000001b3;
  return hash ^ (hash >> 32);
}

// Transfer::data is writable for receives; a transport only reads the data of a send.
std::span<std::byte> AsMutable(std::span<const std::byte> data) {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

std::vector<Interval> IntervalsAt(std::span<const int64_t> offsets) {
  std::vector<Interval> intervals;
  for (size_t i = 1; i < offsets.size(); ++i) intervals.push_back({offsets[i - 1], offsets[i]});
  return intervals;
}

int64_t Total(std::span<const Interval> intervals) {
  int64_t total = 0;
  for (const Interval& interval : intervals) total += interval.size();
  return total;
}

bool HasSchedule(Algorithm algorithm) {
  return algorithm == Algorithm::kRing || algorithm == Algorithm::kButterfly ||
         algorithm == Algorithm::kHalvingDoubling;
}

absl::Status CheckIntervals(std::span<const Interval> intervals, int64_t elements,
                            int64_t members) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(intervals.size(), " intervals of ", elements,
                                                   " elements among ", members, " members: ", why));
  };
  if (std::ssize(intervals) != members) return error("the numbers differ");
  std::vector<Interval> sorted;
  for (const Interval& interval : intervals) {
    if (interval.begin < 0 || interval.begin > interval.end || interval.end > elements) {
      return error(absl::StrCat("[", interval.begin, ", ", interval.end, ") is outside the data"));
    }
    if (interval.size() > 0) sorted.push_back(interval);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].begin < sorted[i - 1].end) return error("some overlap");
  }
  return absl::OkStatus();
}

// Whether the data consists of whole, aligned elements.
absl::Status CheckData(DType type, std::span<const std::byte> data) {
  if (data.size() % SizeOf(type) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.size(), " bytes are not a whole number of ", DTypeName(type)));
  }
  if (reinterpret_cast<uintptr_t>(data.data()) % SizeOf(type) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("data is not aligned for ", DTypeName(type)));
  }
  return absl::OkStatus();
}

}  // namespace

Communicator::Communicator(Transport& transport, std::vector<int> members, int channel)
    : transport_(transport),
      members_(std::move(members)),
      channel_(channel),
      members_hash_(MembersHash(members_)) {
  CHECK(channel >= 0 && channel < Transport::kChannels) << channel;
  for (int i = 0; i < size(); ++i) {
    CHECK(Rank(i) >= 0 && Rank(i) < transport_.size()) << "no rank " << Rank(i);
    CHECK_EQ(std::count(members_.begin(), members_.end(), Rank(i)), 1)
        << "rank " << Rank(i) << " must be listed once";
    if (Rank(i) == transport_.rank()) index_ = i;
  }
  CHECK_GE(index_, 0) << "rank " << transport_.rank() << " is not a member";
}

absl::Status Communicator::AllReduce(Algorithm algorithm, DType type, std::span<std::byte> data) {
  if (type == DType::kBytes) return absl::InvalidArgumentError("bytes cannot be added");
  return Run({.collective = Collective::kAllReduce, .algorithm = algorithm}, type, data);
}

absl::Status Communicator::ReduceScatter(Algorithm algorithm, DType type, std::span<std::byte> data,
                                         std::span<const Interval> intervals) {
  if (type == DType::kBytes) return absl::InvalidArgumentError("bytes cannot be added");
  return Run(
      {.collective = Collective::kReduceScatter, .algorithm = algorithm, .intervals = intervals},
      type, data);
}

absl::Status Communicator::AllGather(Algorithm algorithm, DType type, std::span<std::byte> data,
                                     std::span<const Interval> intervals) {
  return Run({.collective = Collective::kAllGather, .algorithm = algorithm, .intervals = intervals},
             type, data);
}

absl::Status Communicator::AllReduceSum(std::span<float> data, Algorithm algorithm) {
  return AllReduce(algorithm, DType::kFloat32, std::as_writable_bytes(data));
}

absl::Status Communicator::AllGather(std::span<float> data, std::span<const int64_t> offsets) {
  return AllGather(Algorithm::kRing, DType::kFloat32, std::as_writable_bytes(data),
                   IntervalsAt(offsets));
}

absl::Status Communicator::AllGatherBytes(std::span<std::byte> data,
                                          std::span<const int64_t> offsets) {
  return AllGather(Algorithm::kRing, DType::kBytes, data, IntervalsAt(offsets));
}

absl::Status Communicator::AllReduceSum(std::span<uint64_t> data) {
  return AllReduce(SmallAlgorithm(), DType::kUInt64, std::as_writable_bytes(data));
}

absl::Status Communicator::AllReduceSum(std::span<double> data) {
  return AllReduce(SmallAlgorithm(), DType::kFloat64, std::as_writable_bytes(data));
}

absl::Status Communicator::Broadcast(std::span<std::byte> data, int root) {
  return Run({.collective = Collective::kBroadcast, .algorithm = Algorithm::kSingle, .root = root},
             DType::kBytes, data);
}

absl::Status Communicator::Barrier() {
  if (transport_.on_device()) {
    return absl::InvalidArgumentError("a device transport has no barrier: its calls only enqueue");
  }
  return Run({.collective = Collective::kBarrier, .algorithm = Algorithm::kSingle}, DType::kBytes,
             {});
}

absl::Status Communicator::AllToAll(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) {
  if (send.size() != members_.size() || receive.size() != members_.size() ||
      send[index_].size() != receive[index_].size()) {
    return absl::InvalidArgumentError(absl::StrCat("messages do not match ", size(), " members"));
  }
  CADRE_RETURN_IF_ERROR(transport_.CopyWithin(send[index_], receive[index_]));
  if (size() == 1) return absl::OkStatus();
  transfers_.clear();
  uint64_t bytes = 0;
  // In the order of distance, so that members do not all send to the same one first.
  for (int distance = 1; distance < size(); ++distance) {
    const int to = (index_ + distance) % size();
    const int from = (index_ - distance + size()) % size();
    const std::span<const std::byte> out = send[to];
    const std::span<std::byte> in = receive[from];
    if (!out.empty()) {
      transfers_.push_back({Transfer::Kind::kSend, Rank(to), AsMutable(out)});
      bytes += out.size();
    }
    if (!in.empty()) transfers_.push_back({Transfer::Kind::kReceive, Rank(from), in});
  }
  return RunTransfers(NextTag(Collective::kAllToAll, Algorithm::kSingle, DType::kBytes, 0), {},
                      bytes);
}

absl::Status Communicator::Run(ScheduleKey key, DType type, std::span<std::byte> data) {
  CADRE_RETURN_IF_ERROR(CheckData(type, data));
  const size_t element = SizeOf(type);
  key.elements = data.size() / element;
  CADRE_ASSIGN_OR_RETURN(const CachedSchedule* cached, FindSchedule(key));
  if (size() == 1) return absl::OkStatus();
  const int64_t elements = key.intervals.empty() ? key.elements : Total(key.intervals);
  const CallTag tag = NextTag(key.collective, key.algorithm, type, elements);
  if (key.algorithm == Algorithm::kNative) return RunNative(*cached, tag, data);
  transfers_.clear();
  for (size_t i = 0; i < cached->schedule.size(); ++i) {
    const ScheduleStep& step = cached->schedule[i];
    transfers_.push_back(
        {step.kind, Rank(step.peer),
         data.subspan(step.interval.begin * element, step.interval.size() * element), step.after,
         cached->rounds.empty() ? 0 : cached->rounds[i]});
  }
  return RunTransfers(tag, type == DType::kBytes ? Combine{} : SumOf(type), cached->sent * element);
}

absl::Status Communicator::RunNative(const CachedSchedule& cached, const CallTag& tag,
                                     std::span<std::byte> data) {
  const NativeCall call = {.collective = tag.collective,
                           .type = tag.dtype,
                           .members = members_,
                           .index = index_,
                           .data = data,
                           .intervals = cached.intervals};
  return Timed(cached.sent * SizeOf(tag.dtype),
               [&] { return transport_.RunNative(channel_, tag, call); });
}

absl::StatusOr<const Communicator::CachedSchedule*> Communicator::FindSchedule(
    const ScheduleKey& key) {
  for (const std::unique_ptr<CachedSchedule>& cached : schedules_) {
    const ScheduleKey& other = cached->key;
    if (other.collective == key.collective && other.algorithm == key.algorithm &&
        other.elements == key.elements && other.root == key.root &&
        std::ranges::equal(other.intervals, key.intervals)) {
      return cached.get();
    }
  }
  CADRE_RETURN_IF_ERROR(Check(key));
  auto cached = std::make_unique<CachedSchedule>(
      CachedSchedule{key, {key.intervals.begin(), key.intervals.end()}});
  cached->key.intervals = cached->intervals;
  if (size() > 1) {
    cached->schedule = MakeSchedule(key, index_);
    if (key.algorithm != Algorithm::kNative && transport_.on_device()) {
      cached->rounds = OwnRounds(key);
    }
  }
  cached->sent = WorkOf(cached->schedule).elements;
  if (schedules_.size() < kMaxSchedules) {
    schedules_.push_back(std::move(cached));
    return schedules_.back().get();
  }
  std::unique_ptr<CachedSchedule>& oldest = schedules_[next_evicted_++ % kMaxSchedules];
  oldest = std::move(cached);
  return oldest.get();
}

absl::Status Communicator::Check(const ScheduleKey& key) const {
  if (key.collective == Collective::kBarrier) return absl::OkStatus();
  if (key.collective == Collective::kBroadcast) {
    if (key.root >= 0 && key.root < size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("no member ", key.root, " of ", size()));
  }
  CADRE_RETURN_IF_ERROR(CheckAlgorithm(key));
  if (key.collective == Collective::kAllReduce) return absl::OkStatus();
  return CheckIntervals(key.intervals, key.elements, size());
}

absl::Status Communicator::CheckAlgorithm(const ScheduleKey& key) const {
  if (HasSchedule(key.algorithm)) return absl::OkStatus();
  const std::string what =
      absl::StrCat(CollectiveName(key.collective), " by ", AlgorithmName(key.algorithm));
  if (key.algorithm != Algorithm::kNative) {
    return absl::InvalidArgumentError(absl::StrCat("no ", what));
  }
  if (!transport_.has_native()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no ", what, ": it requires NCCL, and the data of these ranks is not on CUDA devices"));
  }
  if (has_native()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no ", what, " among these ", size(), " ranks: NCCL was not prepared for them"));
}

Schedule Communicator::MakeSchedule(const ScheduleKey& key, int index) const {
  // The schedule of a native collective is never executed. It only serves to count the bytes sent,
  // as if by a ring.
  const Algorithm algorithm =
      key.algorithm == Algorithm::kNative ? Algorithm::kRing : key.algorithm;
  switch (key.collective) {
    case Collective::kReduceScatter:
      return ReduceScatterSchedule(algorithm, index, key.intervals);
    case Collective::kAllGather:
      return AllGatherSchedule(algorithm, index, key.intervals);
    case Collective::kAllReduce:
      return AllReduceSchedule(algorithm, index, size(), key.elements);
    case Collective::kBroadcast:
      return BroadcastSchedule(index, size(), key.elements, key.root);
    case Collective::kBarrier:
      return BarrierSchedule(index, size());
    case Collective::kNone:
    case Collective::kAllToAll:
    case Collective::kAnnounceNext:
      break;
  }
  LOG(FATAL) << "no schedule of " << CollectiveName(key.collective);
}

std::vector<int> Communicator::OwnRounds(const ScheduleKey& key) const {
  std::vector<Schedule> all;
  for (int member = 0; member < size(); ++member) all.push_back(MakeSchedule(key, member));
  return std::move(RoundsOf(all)[index_]);
}

Algorithm Communicator::SmallAlgorithm() const {
  return has_native() ? Algorithm::kNative : Algorithm::kButterfly;
}

absl::Status Communicator::Timed(uint64_t bytes, absl::FunctionRef<absl::Status()> call) {
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  const absl::Time start = absl::Now();
  absl::Status status = call();
  nanoseconds_.fetch_add(absl::ToInt64Nanoseconds(absl::Now() - start), std::memory_order_relaxed);
  return status;
}

absl::Status Communicator::RunTransfers(const CallTag& tag, const Combine& combine,
                                        uint64_t bytes) {
  return Timed(bytes, [&] { return transport_.Run(channel_, tag, transfers_, combine); });
}

CallTag Communicator::NextTag(Collective collective, Algorithm algorithm, DType type,
                              uint64_t elements) {
  CallTag tag{.collective = collective,
              .algorithm = algorithm,
              .dtype = type,
              .group = members_hash_,
              .sequence = transport_.NextSequence(channel_, members_hash_),
              .elements = elements};
  tag.members = size();
  return tag;
}

}  // namespace cadre
