#include "tests/worker/transport/nccl/collective_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "tensor/mesh.h"
#include "tests/worker/comm/exact_data.h"
#include "worker/comm/communicator.h"
#include "worker/comm/link_probe.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// What steps are made of; no kernel adds float16.
constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16, DType::kUInt64, DType::kFloat64};
constexpr Algorithm kFlat[] = {Algorithm::kRing, Algorithm::kButterfly,
                               Algorithm::kHalvingDoubling};
constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling,
                              Algorithm::kNative};

std::vector<int> Ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Communicator AllOf(Transport& transport, int channel = Transport::kMoves) {
  return Communicator(transport, Ranks(transport.size()), channel);
}

// Bytes in the device's memory.
class OnDevice {
 public:
  OnDevice(const DeviceRank& rank, const Bytes& bytes)
      : device_(rank.kernels.device()), memory_(device_, bytes.size(), "test") {
    Write(bytes);
  }
  void Write(const Bytes& bytes) {
    if (!bytes.empty()) device_.CopyIn(bytes.data(), memory_.data(), bytes.size());
  }
  std::span<std::byte> span() const { return memory_.span(); }
  Bytes Read() const {
    Bytes bytes(memory_.size());
    if (bytes.empty()) return bytes;
    const absl::Status status = device_.CopyOut(memory_.data(), bytes.data(), bytes.size());
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  }

 private:
  Device& device_;
  const DeviceArray<std::byte> memory_;
};

Bytes RandomFloats(uint64_t seed, int rank, size_t elements) {
  Bytes bytes(elements * sizeof(float));
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t bits = RandomBits(seed, RandomStream::kTest, static_cast<uint64_t>(rank), i);
    const float value = static_cast<float>(static_cast<int64_t>(bits >> 20)) * 1e-9F - 8.0F;
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof value);
  }
  return bytes;
}

// Cuts of many kinds; every fourth is the one that NCCL takes as it is.
std::vector<Piece> SomePieces(uint64_t seed, int64_t elements, int members) {
  if (seed % 4 == 0) {
    const int64_t each = elements / (members + 1);
    std::vector<Piece> equal;
    for (int m = 0; m < members; ++m) equal.push_back({1 + m * each, 1 + (m + 1) * each});
    return equal;
  }
  std::vector<int64_t> borders = {0, elements};
  for (int i = 1; i < members + 2; ++i) {
    const uint64_t draw = RandomBits(seed, RandomStream::kTest, 5, static_cast<uint64_t>(i));
    borders.push_back(
        draw % 4 == 0 ? borders.back()
                      : static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(elements + 1)));
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Piece> intervals;
  for (size_t i = 1; i < borders.size(); ++i) intervals.push_back({borders[i - 1], borders[i]});
  std::rotate(intervals.begin(), intervals.begin() + (seed % intervals.size()), intervals.end());
  intervals.resize(static_cast<size_t>(members));
  return intervals;
}

}  // namespace

void CheckAllReduces(const DeviceRank& rank) {
  Communicator all = AllOf(rank.data);
  for (const size_t n : {0, 1, 2, 5, 64, 4099}) {
    for (const DType type : kNumbers) {
      const Bytes own = ExactData(type, n, all.index(), n);
      const Bytes expected = all.size() == 1 ? own : ExactSum(type, n, Ranks(all.size()), n);
      for (const Algorithm algorithm : kAll) {
        const OnDevice data(rank, own);
        const absl::Status status = all.AllReduce(algorithm, type, data.span());
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_TRUE(data.Read() == expected)
            << n << " " << DTypeName(type) << " by " << AlgorithmName(algorithm);
      }
    }
  }
}

void CheckPieces(const DeviceRank& rank) {
  constexpr DType kType = DType::kFloat32;
  Communicator all = AllOf(rank.data);
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const Algorithm algorithm = kAll[seed / 4 % 4];
    const int64_t n = 300 + static_cast<int64_t>(seed);
    const std::vector<Piece> intervals = SomePieces(seed, n, all.size());
    const Piece own = intervals[all.index()];
    const auto elements = static_cast<size_t>(n);
    const Bytes expected = ExactSum(kType, seed, Ranks(all.size()), elements);
    OnDevice data(rank, ExactData(kType, seed, all.index(), elements));
    absl::Status status = all.ReduceScatter(algorithm, kType, data.span(), intervals);
    ASSERT_TRUE(status.ok()) << status;
    // What is not the own interval must not matter.
    Bytes bytes = data.Read();
    std::fill_n(bytes.begin(), 4 * own.begin, std::byte{0x55});
    std::fill(bytes.begin() + 4 * own.end, bytes.end(), std::byte{0x55});
    data.Write(bytes);
    status = all.AllGather(algorithm, kType, data.span(), intervals);
    ASSERT_TRUE(status.ok()) << status;
    bytes = data.Read();
    for (const Piece& interval : intervals) {
      ASSERT_TRUE(std::equal(bytes.begin() + 4 * interval.begin, bytes.begin() + 4 * interval.end,
                             expected.begin() + 4 * interval.begin))
          << seed << " by " << AlgorithmName(algorithm);
    }
  }
}

void CheckSameBitsAsOnHost(const DeviceRank& rank) {
  constexpr DType kType = DType::kFloat32;
  Communicator all = AllOf(rank.data);
  Communicator on_host = AllOf(rank.host);
  for (const Algorithm algorithm : kFlat) {
    for (const size_t n : {3, 100, 5000}) {
      Bytes expected = RandomFloats(n, all.index(), n);
      const OnDevice data(rank, expected);
      ASSERT_TRUE(all.AllReduce(algorithm, kType, data.span()).ok());
      ASSERT_TRUE(on_host.AllReduce(algorithm, kType, expected).ok());
      ASSERT_TRUE(data.Read() == expected) << n << " by " << AlgorithmName(algorithm);
    }
  }
}

void CheckAllToAllAndBroadcast(const DeviceRank& rank) {
  Communicator all = AllOf(rank.data);
  const auto size = static_cast<size_t>(all.size());
  const auto own = static_cast<size_t>(all.index());
  // Of what `from` sends to `to`; 0 for some.
  const auto bytes_between = [](size_t from, size_t to) { return (3 * from + 5 * to) % 7 * 11; };
  std::deque<OnDevice> out;
  std::deque<OnDevice> in;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (size_t peer = 0; peer < size; ++peer) {
    out.emplace_back(rank,
                     ExactData(DType::kBytes, 7 + peer, all.index(), bytes_between(own, peer)));
    in.emplace_back(rank, Bytes(bytes_between(peer, own), std::byte{0x77}));
    send.push_back(out.back().span());
    receive.push_back(in.back().span());
  }
  ASSERT_TRUE(all.AllToAll(send, receive).ok());
  for (size_t peer = 0; peer < size; ++peer) {
    ASSERT_TRUE(in[peer].Read() ==
                ExactData(DType::kBytes, 7 + own, static_cast<int>(peer), bytes_between(peer, own)))
        << "from " << peer;
  }
  for (int root = 0; root < all.size(); ++root) {
    const OnDevice data(rank, ExactData(DType::kBytes, 3, all.index(), 777));
    ASSERT_TRUE(all.Broadcast(data.span(), root).ok());
    ASSERT_TRUE(data.Read() == ExactData(DType::kBytes, 3, root, 777)) << root;
  }
  EXPECT_EQ(all.Barrier().code(), absl::StatusCode::kInvalidArgument);
}

void CheckPartsOfAMesh(const DeviceRank& rank) {
  ASSERT_EQ(rank.data.size() % 2, 0);
  MeshCommunicators comms(rank.data, Mesh({{"data", rank.data.size() / 2}, {"model", 2}}));
  Communicator& model = comms.Over({"model"}, Transport::kBackground);
  Communicator& data = comms.Over({"data"}, Transport::kBackground);
  if (rank.data.size() > 2) {
    const OnDevice memory(rank, ExactData(DType::kFloat32, 1, rank.data.rank(), 64));
    const absl::Status early = model.AllReduce(Algorithm::kNative, DType::kFloat32, memory.span());
    EXPECT_EQ(early.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(early.message()), HasSubstr("not prepared"));
  }
  const std::vector<std::vector<std::string>> axes = {{"model"}, {"data"}, {"model"}};
  const absl::Status prepared = comms.Prepare(axes);
  ASSERT_TRUE(prepared.ok()) << prepared;
  for (Communicator* comm : {&model, &data}) {
    for (const Algorithm algorithm : kAll) {
      const OnDevice memory(rank, ExactData(DType::kFloat32, 2, rank.data.rank(), 500));
      const absl::Status status = comm->AllReduce(algorithm, DType::kFloat32, memory.span());
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(memory.Read() == ExactSum(DType::kFloat32, 2, comm->members(), 500))
          << AlgorithmName(algorithm);
    }
    // A few numbers go natively, once that is there.
    const OnDevice few(rank, ExactData(DType::kFloat64, 3, rank.data.rank(), 2));
    ASSERT_TRUE(
        comm->AllReduceSum(std::span(reinterpret_cast<double*>(few.span().data()), 2)).ok());
    ASSERT_TRUE(few.Read() == ExactSum(DType::kFloat64, 3, comm->members(), 2));
  }
}

void CheckChannels(const DeviceRank& rank) {
  Communicator moves = AllOf(rank.data, Transport::kMoves);
  Communicator background = AllOf(rank.data, Transport::kBackground);
  Device& device = rank.kernels.device();
  const Bytes own = ExactData(DType::kFloat32, 11, moves.index(), 3000);
  const Bytes expected = ExactSum(DType::kFloat32, 11, Ranks(moves.size()), 3000);
  const OnDevice a(rank, own);
  const OnDevice b(rank, own);
  // What was written on the first stream is there for the others.
  const auto written = device.MakeEvent();
  device.Record(*written);
  const auto a_done = device.MakeEvent();
  const auto b_done = device.MakeEvent();
  {
    const OnStream stream(device, Stream::kMoves);
    device.WaitFor(*written);
    ASSERT_TRUE(moves.AllReduce(Algorithm::kRing, DType::kFloat32, a.span()).ok());
    device.Record(*a_done);
  }
  {
    const OnStream stream(device, Stream::kCommunication);
    device.WaitFor(*written);
    ASSERT_TRUE(background.AllReduce(Algorithm::kHalvingDoubling, DType::kFloat32, b.span()).ok());
    device.Record(*b_done);
  }
  device.WaitFor(*a_done);
  device.WaitFor(*b_done);
  ASSERT_TRUE(a.Read() == expected);
  ASSERT_TRUE(b.Read() == expected);
}

void CheckRecording(const DeviceRank& rank) {
  Device& device = rank.kernels.device();
  if (!device.can_capture()) return;
  Communicator all = AllOf(rank.data, Transport::kBackground);
  for (const Algorithm algorithm : kAll) {
    const Bytes own = ExactData(DType::kFloat32, 17, all.index(), 1000);
    const Bytes expected = ExactSum(DType::kFloat32, 17, Ranks(all.size()), 1000);
    OnDevice data(rank, own);
    const auto reduce = [&] { return all.AllReduce(algorithm, DType::kFloat32, data.span()); };
    // The first agrees with the peers, connects to them and takes scratch.
    ASSERT_TRUE(reduce().ok());
    ASSERT_TRUE(data.Read() == expected);
    auto recording = device.CaptureGraph(reduce);
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_NE(*recording, nullptr);
    for (int play = 0; play < 3; ++play) {
      data.Write(own);
      device.LaunchGraph(**recording);
      ASSERT_TRUE(data.Read() == expected) << AlgorithmName(algorithm) << ", play " << play;
    }
  }
}

void CheckBytesSent(const DeviceRank& rank) {
  Communicator ring = AllOf(rank.data);
  Communicator native = AllOf(rank.data);
  const OnDevice data(rank, Bytes(4000));
  ASSERT_TRUE(ring.AllReduce(Algorithm::kRing, DType::kFloat32, data.span()).ok());
  ASSERT_TRUE(native.AllReduce(Algorithm::kNative, DType::kFloat32, data.span()).ok());
  ASSERT_TRUE(rank.kernels.device().Synchronize().ok());
  EXPECT_EQ(native.bytes_sent(), ring.bytes_sent());
  EXPECT_EQ(native.messages_sent(), ring.messages_sent());
}

void CheckLinkProbe(const DeviceRank& rank) {
  Communicator all = AllOf(rank.data);
  Communicator host = AllOf(rank.host);
  const auto measured = MeasureDeviceLink(all, host, rank.kernels);
  ASSERT_TRUE(measured.ok()) << measured.status();
  if (all.size() == 1) return;
  EXPECT_GT(measured->alpha, 0);
  EXPECT_GT(measured->beta, 0);
  EXPECT_GT(measured->gamma, 0);
  bool native = false;
  for (const LinkMeasure::Sample& sample : measured->samples) {
    EXPECT_GT(sample.seconds, 0);
    native |= sample.algorithm == Algorithm::kNative;
  }
  EXPECT_EQ(native, !measured->samples.empty());
}

void CheckEverything(const DeviceRank& rank) {
  CheckAllReduces(rank);
  CheckPieces(rank);
  CheckSameBitsAsOnHost(rank);
  CheckAllToAllAndBroadcast(rank);
  if (rank.data.size() % 2 == 0) CheckPartsOfAMesh(rank);
  CheckChannels(rank);
  CheckBytesSent(rank);
  CheckRecording(rank);
  CheckLinkProbe(rank);
}

}  // namespace cadre
