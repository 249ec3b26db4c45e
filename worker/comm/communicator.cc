#include "worker/comm/communicator.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

// A tag is, from the top: 24 bits of the communicator, 8 of the kind of collective, 32 of its
// number.
uint64_t CommunicatorId(const std::vector<int>& members) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int rank : members) hash = (hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3;
  return (hash ^ (hash >> 32)) & 0xffffff;
}

void AddTo(std::span<float> sum, std::span<const float> values) {
  float* __restrict out = sum.data();
  const float* __restrict in = values.data();
  const size_t n = sum.size();
  for (size_t i = 0; i < n; ++i) out[i] += in[i];
}

template <typename T>
std::span<std::byte> Bytes(std::span<T> data) {
  return std::as_writable_bytes(data);
}

// Piece `index` of data cut at offsets; `scale` elements of data to one of an offset.
template <typename T>
std::span<T> Piece(std::span<T> data, std::span<const int64_t> offsets, int index,
                   int64_t scale = 1) {
  const auto i = static_cast<size_t>(index);
  return data.subspan(static_cast<size_t>(offsets[i] * scale),
                      static_cast<size_t>((offsets[i + 1] - offsets[i]) * scale));
}

}  // namespace

Communicator::Communicator(Transport& transport, std::vector<int> members)
    : transport_(transport), members_(std::move(members)), id_(CommunicatorId(members_)) {
  for (int i = 0; i < size(); ++i) {
    CHECK(Rank(i) >= 0 && Rank(i) < transport_.size()) << "no rank " << Rank(i);
    CHECK_EQ(std::count(members_.begin(), members_.end(), Rank(i)), 1) << "twice: " << Rank(i);
    if (Rank(i) == transport_.rank()) index_ = i;
  }
  CHECK_GE(index_, 0) << "rank " << transport_.rank() << " is not a member";
}

absl::Status Communicator::AllReduceSum(std::span<float> data) {
  std::vector<int64_t> offsets(members_.size() + 1);
  for (int i = 0; i <= size(); ++i) {
    offsets[static_cast<size_t>(i)] = PartBegin(static_cast<int64_t>(data.size()), i, size());
  }
  CADRE_RETURN_IF_ERROR(ReduceScatterSum(data, offsets));
  return AllGather(data, offsets);
}

absl::Status Communicator::ReduceScatterSum(std::span<float> data,
                                            std::span<const int64_t> offsets) {
  CADRE_RETURN_IF_ERROR(CheckOffsets(data.size(), offsets));
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kReduceScatter);
  // Piece k starts at member k + 1 and goes round until it arrives, complete, at member k.
  for (int step = 1; step < size(); ++step) {
    const std::span<float> mine = Piece(data, offsets, Around(-step));
    const std::span<float> sum = Piece(data, offsets, Around(-step - 1));
    CADRE_RETURN_IF_ERROR(PassOn(mine, sum, tag));
  }
  return absl::OkStatus();
}

// In chunks, so that what arrives needs little room. The two pieces may have different numbers of
// them.
absl::Status Communicator::PassOn(std::span<const float> mine, std::span<float> sum, uint64_t tag) {
  const auto chunk_of = [](auto piece, size_t begin) {
    return begin < piece.size() ? piece.subspan(begin, std::min(kChunk, piece.size() - begin))
                                : piece.subspan(0, 0);
  };
  // An empty piece is a message too.
  for (size_t begin = 0; begin == 0 || begin < std::max(mine.size(), sum.size()); begin += kChunk) {
    const std::span<const float> out = chunk_of(mine, begin);
    const std::span<float> in = chunk_of(sum, begin);
    const bool sends = begin == 0 || !out.empty();
    const bool receives = begin == 0 || !in.empty();
    arriving_.resize(std::max(arriving_.size(), in.size()));
    const std::span<float> arriving = std::span(arriving_).first(in.size());
    if (sends && receives) {
      CADRE_RETURN_IF_ERROR(
          Exchange(Around(1), std::as_bytes(out), Around(-1), Bytes(arriving), tag));
    } else if (sends) {
      CADRE_RETURN_IF_ERROR(Send(Around(1), std::as_bytes(out), tag));
    } else {
      CADRE_RETURN_IF_ERROR(Receive(Around(-1), Bytes(arriving), tag));
    }
    AddTo(in, arriving);
  }
  return absl::OkStatus();
}

absl::Status Communicator::AllGather(std::span<float> data, std::span<const int64_t> offsets) {
  CADRE_RETURN_IF_ERROR(CheckOffsets(data.size(), offsets));
  return RingAllGather(Bytes(data), offsets, sizeof(float));
}

absl::Status Communicator::AllGatherBytes(std::span<std::byte> data,
                                          std::span<const int64_t> offsets) {
  CADRE_RETURN_IF_ERROR(CheckOffsets(data.size(), offsets));
  return RingAllGather(data, offsets, 1);
}

absl::Status Communicator::RingAllGather(std::span<std::byte> data,
                                         std::span<const int64_t> offsets, int64_t scale) {
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kAllGather);
  // Every member passes on what arrived last, its own piece first.
  for (int step = 0; step < size() - 1; ++step) {
    CADRE_RETURN_IF_ERROR(Exchange(Around(1), Piece(data, offsets, Around(-step), scale),
                                   Around(-1), Piece(data, offsets, Around(-step - 1), scale),
                                   tag));
  }
  return absl::OkStatus();
}

absl::Status Communicator::AllToAll(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) {
  const auto self = static_cast<size_t>(index_);
  if (send.size() != members_.size() || receive.size() != members_.size() ||
      send[self].size() != receive[self].size()) {
    return absl::InvalidArgumentError(absl::StrCat("pieces do not fit ", size(), " members"));
  }
  if (!send[self].empty()) std::memcpy(receive[self].data(), send[self].data(), send[self].size());
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kAllToAll);
  for (int step = 1; step < size(); ++step) {
    const int to = Around(step);
    const int from = Around(-step);
    const std::span<const std::byte> out = send[static_cast<size_t>(to)];
    const std::span<std::byte> in = receive[static_cast<size_t>(from)];
    // Each rank's step s waits only for others' steps up to s, so leaving out messages blocks
    // nobody.
    if (!out.empty() && !in.empty()) {
      CADRE_RETURN_IF_ERROR(Exchange(to, out, from, in, tag));
    } else if (!out.empty()) {
      CADRE_RETURN_IF_ERROR(Send(to, out, tag));
    } else if (!in.empty()) {
      CADRE_RETURN_IF_ERROR(Receive(from, in, tag));
    }
  }
  return absl::OkStatus();
}

absl::Status Communicator::Broadcast(std::span<std::byte> data, int root) {
  if (root < 0 || root >= size()) {
    return absl::InvalidArgumentError(absl::StrCat("no member ", root, " of ", size()));
  }
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kBroadcast);
  // Places count from the root. A place receives from the place without its lowest bit, and sends
  // to the places that add a bit below that one, the farthest first.
  const int place = (index_ - root + size()) % size();
  int bit = 1;
  while (bit < size() && (place & bit) == 0) bit <<= 1;
  if (place != 0) {
    CADRE_RETURN_IF_ERROR(Receive((place - bit + root) % size(), data, tag));
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit >= size()) continue;
    CADRE_RETURN_IF_ERROR(Send((place + bit + root) % size(), data, tag));
  }
  return absl::OkStatus();
}

absl::Status Communicator::AllReduceSum(std::span<uint64_t> data) { return SmallSum(data); }

absl::Status Communicator::AllReduceSum(std::span<double> data) { return SmallSum(data); }

template <typename T>
absl::Status Communicator::SmallSum(std::span<T> data) {
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kGather);
  if (index_ != 0) {
    CADRE_RETURN_IF_ERROR(Send(0, std::as_bytes(data), tag));
    return Broadcast(Bytes(data), 0);
  }
  std::vector<T> arriving(data.size());
  for (int from = 1; from < size(); ++from) {
    CADRE_RETURN_IF_ERROR(Receive(from, Bytes(std::span(arriving)), tag));
    for (size_t i = 0; i < data.size(); ++i) data[i] += arriving[i];
  }
  return Broadcast(Bytes(data), 0);
}

absl::Status Communicator::Barrier() {
  if (size() == 1) return absl::OkStatus();
  const uint64_t tag = NextTag(Kind::kBarrier);
  // After the exchange over distance d a member has heard, at first or second hand, from the
  // 2 d - 1 members before it.
  for (int distance = 1; distance < size(); distance *= 2) {
    CADRE_RETURN_IF_ERROR(Exchange(Around(distance), {}, Around(-distance), {}, tag));
  }
  return absl::OkStatus();
}

uint64_t Communicator::NextTag(Kind kind) {
  return id_ << 40 | static_cast<uint64_t>(kind) << 32 | sequence_++;
}

int Communicator::Around(int distance) const {
  const int sum = (index_ + distance) % size();
  return sum < 0 ? sum + size() : sum;
}

absl::Status Communicator::CheckOffsets(size_t elements, std::span<const int64_t> offsets) const {
  const bool fits = offsets.size() == members_.size() + 1 && offsets.front() >= 0 &&
                    offsets.back() <= static_cast<int64_t>(elements) &&
                    std::is_sorted(offsets.begin(), offsets.end());
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("offsets do not cut ", elements, " elements into ",
                                                 size(), " ascending pieces"));
}

absl::Status Communicator::Send(int to, std::span<const std::byte> data, uint64_t tag) {
  bytes_sent_ += data.size();
  ++messages_sent_;
  return transport_.Send(Rank(to), tag, data);
}

absl::Status Communicator::Receive(int from, std::span<std::byte> data, uint64_t tag) {
  return transport_.Receive(Rank(from), tag, data);
}

absl::Status Communicator::Exchange(int to, std::span<const std::byte> send, int from,
                                    std::span<std::byte> receive, uint64_t tag) {
  bytes_sent_ += send.size();
  ++messages_sent_;
  return transport_.Exchange(Rank(to), send, Rank(from), receive, tag);
}

}  // namespace cadre
