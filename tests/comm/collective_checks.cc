#include "tests/comm/collective_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "comm/mesh_communicators.h"
#include "tensor/mesh.h"
#include "tests/comm/exact_data.h"
#include "tests/comm/random_intervals.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16, DType::kUInt64, DType::kFloat64,
                              DType::kFloat16};
constexpr Algorithm kFlat[] = {Algorithm::kRing, Algorithm::kButterfly,
                               Algorithm::kHalvingDoubling};

// The algorithms of reduce-scatter and all-gather.
std::vector<Algorithm> AlgorithmsFor(const DeviceRank& rank) {
  std::vector<Algorithm> algorithms(std::begin(kFlat), std::end(kFlat));
  if (rank.data.has_native()) algorithms.push_back(Algorithm::kNative);
  return algorithms;
}

Communicator AllOf(Transport& transport, int channel = Transport::kMoves) {
  return Communicator(transport, AllRanks(transport.size()), channel);
}

// The exact sum over all ranks; a single rank's data does not change.
Bytes SumOfAll(DType type, uint64_t seed, const Communicator& all, size_t elements) {
  return ExactSum(type, seed, all.members(), elements);
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

Bytes RandomFloats(uint64_t seed, uint64_t rank, size_t elements) {
  Bytes bytes(elements * sizeof(float));
  for (size_t i = 0; i < elements; ++i) {
    const int64_t bits = RandomBits(seed, RandomStream::kTest, rank, i) >> 20;
    const float value = bits * 1e-9F - 8.0F;
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof value);
  }
  return bytes;
}

}  // namespace

void CheckAllReduces(const DeviceRank& rank) {
  Communicator all = AllOf(rank.data);
  const std::vector<Algorithm> algorithms = AlgorithmsFor(rank);
  // Kernels on devices do not add float16.
  const auto types = std::span(kNumbers).first(rank.data.on_device() ? 4 : 5);
  for (const size_t n : {0, 1, 2, 3, 5, 7, 8, 64, 1000, rank.data.on_device() ? 4099 : 40'003}) {
    for (const DType type : types) {
      const Bytes own = ExactData(type, n, all.index(), n);
      const Bytes expected = SumOfAll(type, n, all, n);
      for (const Algorithm algorithm : algorithms) {
        const OnDevice data(rank, own);
        const absl::Status status = all.AllReduce(algorithm, type, data.span());
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_TRUE(data.Read() == expected)
            << n << " " << DTypeName(type) << " by " << AlgorithmName(algorithm);
      }
    }
  }
}

void CheckIntervals(const DeviceRank& rank) {
  constexpr DType kType = DType::kFloat32;
  constexpr int64_t kElement = sizeof(float);
  Communicator all = AllOf(rank.data);
  const std::vector<Algorithm> algorithms = AlgorithmsFor(rank);
  for (int seed = 0; seed < 32; ++seed) {
    const Algorithm algorithm = algorithms[seed / 4 % algorithms.size()];
    std::mt19937_64 random(seed);
    const int64_t n = 1 + random() % 400;
    std::vector<Interval> intervals = RandomIntervals(random, n, all.size());
    if (seed % 4 == 0) {
      intervals = EqualIntervals((n - 1) / all.size() * all.size(), all.size());
      for (Interval& interval : intervals) interval = {interval.begin + 1, interval.end + 1};
    }
    const Interval own = intervals[all.index()];
    const Bytes expected = SumOfAll(kType, seed, all, n);
    OnDevice data(rank, ExactData(kType, seed, all.index(), n));
    absl::Status status = all.ReduceScatter(algorithm, kType, data.span(), intervals);
    ASSERT_TRUE(status.ok()) << status;
    // Data outside the own interval must not matter.
    Bytes bytes = data.Read();
    std::fill_n(bytes.begin(), kElement * own.begin, std::byte{0x55});
    std::fill(bytes.begin() + kElement * own.end, bytes.end(), std::byte{0x55});
    data.Write(bytes);
    status = all.AllGather(algorithm, kType, data.span(), intervals);
    ASSERT_TRUE(status.ok()) << status;
    bytes = data.Read();
    for (const auto& [begin, end] : intervals) {
      ASSERT_TRUE(std::equal(bytes.begin() + kElement * begin, bytes.begin() + kElement * end,
                             expected.begin() + kElement * begin))
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
  const int own = all.index();
  // Size of the message between two ranks; 0 for some.
  const auto bytes_between = [](int from, int to) { return (3 * from + 5 * to) % 7 * 1111; };
  std::deque<OnDevice> out;
  std::deque<OnDevice> in;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (int peer = 0; peer < all.size(); ++peer) {
    out.emplace_back(rank, ExactData(DType::kBytes, 7 + peer, own, bytes_between(own, peer)));
    in.emplace_back(rank, Bytes(bytes_between(peer, own), std::byte{0x77}));
    send.push_back(out.back().span());
    receive.push_back(in.back().span());
  }
  ASSERT_TRUE(all.AllToAll(send, receive).ok());
  for (int peer = 0; peer < all.size(); ++peer) {
    ASSERT_TRUE(in[peer].Read() ==
                ExactData(DType::kBytes, 7 + own, peer, bytes_between(peer, own)))
        << "from " << peer;
  }
  for (int root = 0; root < all.size(); ++root) {
    for (const size_t n : {0, 1, 777, 70'000}) {
      const OnDevice data(rank, ExactData(DType::kBytes, 3, own, n));
      ASSERT_TRUE(all.Broadcast(data.span(), root).ok());
      ASSERT_TRUE(data.Read() == ExactData(DType::kBytes, 3, root, n)) << root;
    }
  }
}

void CheckMeshAxes(const DeviceRank& rank) {
  ASSERT_EQ(rank.data.size() % 2, 0);
  EXPECT_EQ(AllOf(rank.data).Barrier().code(), absl::StatusCode::kInvalidArgument);
  MeshCommunicators comms(rank.data, Mesh({{"data", rank.data.size() / 2}, {"model", 2}}));
  Communicator& model = comms.Over({"model"}, Transport::kBackground);
  Communicator& data = comms.Over({"data"}, Transport::kBackground);
  if (rank.data.size() > 2) {
    const OnDevice memory(rank, ExactData(DType::kFloat32, 1, rank.data.rank(), 64));
    const absl::Status early = model.AllReduce(Algorithm::kNative, DType::kFloat32, memory.span());
    EXPECT_EQ(early.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(early.message()), ::testing::HasSubstr("not prepared"));
  }
  const std::vector<std::vector<std::string>> axes = {{"model"}, {"data"}, {"model"}};
  const absl::Status prepared = comms.Prepare(axes);
  ASSERT_TRUE(prepared.ok()) << prepared;
  for (Communicator* comm : {&model, &data}) {
    for (const Algorithm algorithm : AlgorithmsFor(rank)) {
      const OnDevice memory(rank, ExactData(DType::kFloat32, 2, rank.data.rank(), 500));
      const absl::Status status = comm->AllReduce(algorithm, DType::kFloat32, memory.span());
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(memory.Read() == ExactSum(DType::kFloat32, 2, comm->members(), 500))
          << AlgorithmName(algorithm);
    }
    // Small sums use native collectives once they are available.
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
  const Bytes expected = ExactSum(DType::kFloat32, 11, moves.members(), 3000);
  const OnDevice a(rank, own);
  const OnDevice b(rank, own);
  // The other streams wait for the data written on the current stream.
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

void CheckCapture(const DeviceRank& rank) {
  Device& device = rank.kernels.device();
  if (!device.can_capture()) return;
  Communicator all = AllOf(rank.data, Transport::kBackground);
  for (const Algorithm algorithm : AlgorithmsFor(rank)) {
    const Bytes own = ExactData(DType::kFloat32, 17, all.index(), 1000);
    const Bytes expected = ExactSum(DType::kFloat32, 17, all.members(), 1000);
    OnDevice data(rank, own);
    const auto reduce = [&] { return all.AllReduce(algorithm, DType::kFloat32, data.span()); };
    // The first call is compared with the peers, connects to them and allocates scratch.
    ASSERT_TRUE(reduce().ok());
    ASSERT_TRUE(data.Read() == expected);
    auto graph = device.CaptureGraph(reduce);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_NE(*graph, nullptr);
    for (int launch = 0; launch < 3; ++launch) {
      data.Write(own);
      device.LaunchGraph(**graph);
      ASSERT_TRUE(data.Read() == expected) << AlgorithmName(algorithm) << ", launch " << launch;
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
  for (const LinkProfile::Sample& sample : measured->samples) {
    EXPECT_GT(sample.seconds, 0);
    native |= sample.algorithm == Algorithm::kNative;
  }
  EXPECT_EQ(native, !measured->samples.empty());
}

void CheckEverything(const DeviceRank& rank) {
  SCOPED_TRACE(testing::Message() << "rank " << rank.data.rank());
  CheckAllReduces(rank);
  CheckIntervals(rank);
  CheckSameBitsAsOnHost(rank);
  CheckAllToAllAndBroadcast(rank);
  if (rank.data.size() % 2 == 0) CheckMeshAxes(rank);
  CheckChannels(rank);
  CheckBytesSent(rank);
  CheckCapture(rank);
  CheckLinkProbe(rank);
}

}  // namespace cadre
