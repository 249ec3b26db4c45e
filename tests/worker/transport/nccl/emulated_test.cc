// Collectives over NCCL among ranks with emulated devices, and everything that may go wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/worker/transport/nccl/collective_checks.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using Mode = EmulatedCuda::Mode;

// Everything of one rank; gone in the right order.
struct Rank {
  Rank(Mode mode, int ordinal) : cuda(mode, ordinal + 1) {
    auto made =
        CudaDevice::Make(cuda.api(), {.ordinal = ordinal, .memory_limit = int64_t{256} << 20});
    EXPECT_TRUE(made.ok()) << made.status();
    device = *std::move(made);
    // Nothing here multiplies.
    kernels = MakeCudaBackend(*device, nullptr);
  }

  EmulatedCuda cuda;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Backend> kernels;
  std::unique_ptr<Transport> data;
};

class Group {
 public:
  Group(int ranks, Mode mode, int ordinal = 0)
      : hosts_(MakeThreadTransports(ranks, absl::Seconds(60))) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(mode, ordinal));
    }
  }
  ~Group() {
    // Each on its own thread, as processes end.
    OnRanks(size(), [&](int rank) { of(rank).data.reset(); });
    EXPECT_EQ(nccl.live_communicators(), 0);
    EXPECT_EQ(nccl.live_registrations(), 0);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& of(int rank) { return *ranks_[rank]; }
  Transport& host(int rank) { return *hosts_[rank]; }

  // What making the transports says.
  std::vector<absl::Status> Connect(absl::Duration timeout = absl::Seconds(60)) {
    return OnAll([&](int rank) -> absl::Status {
      auto made = MakeNcclTransport(nccl.api(), *of(rank).device, *of(rank).kernels, host(rank),
                                    {.init_timeout = timeout});
      if (!made.ok()) return made.status();
      of(rank).data = *std::move(made);
      return absl::OkStatus();
    });
  }
  void MustConnect() {
    for (const absl::Status& status : Connect()) ASSERT_TRUE(status.ok()) << status;
  }

  std::vector<absl::Status> OnAll(const std::function<absl::Status(int rank)>& body) {
    std::vector<absl::Status> said(ranks_.size());
    OnRanks(size(), [&](int rank) { said[rank] = body(rank); });
    return said;
  }
  void Check(const std::function<void(const DeviceRank&)>& check) {
    OnRanks(size(), [&](int rank) { check({*of(rank).kernels, *of(rank).data, host(rank)}); });
  }

  // An all-reduce, and a wait for its end.
  absl::Status AllReduce(int rank, Algorithm algorithm = Algorithm::kRing, size_t elements = 1000) {
    std::vector<int> ranks(static_cast<size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    Communicator all(*of(rank).data, ranks);
    DeviceArray<float> data(*of(rank).device, elements, "test");
    const absl::Status called = all.AllReduceSum(data.span(), algorithm);
    const absl::Status ended = of(rank).device->Synchronize();
    return called.ok() ? ended : called;
  }

  FakeNccl nccl;

 private:
  const Transports hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

class NcclTransportTest : public ::testing::TestWithParam<std::tuple<Mode, int>> {
 protected:
  NcclTransportTest() : group_(std::get<1>(GetParam()), std::get<0>(GetParam())) {}

  Group group_;
};

TEST_P(NcclTransportTest, AllReduce) {
  group_.MustConnect();
  group_.Check(CheckAllReduces);
}

TEST_P(NcclTransportTest, AnyIntervals) {
  group_.MustConnect();
  group_.Check(CheckPieces);
}

TEST_P(NcclTransportTest, EqualBitsToHost) {
  group_.MustConnect();
  group_.Check(CheckSameBitsAsOnHost);
}

TEST_P(NcclTransportTest, AllToAllAndBroadcast) {
  group_.MustConnect();
  group_.Check(CheckAllToAllAndBroadcast);
}

TEST_P(NcclTransportTest, MeshAxes) {
  group_.MustConnect();
  if (group_.size() % 2 == 0) group_.Check(CheckPartsOfAMesh);
}

TEST_P(NcclTransportTest, ChannelsAndRecordings) {
  group_.nccl.set_polls(2);
  group_.MustConnect();
  group_.Check(CheckChannels);
  group_.Check(CheckRecording);
  group_.Check(CheckBytesSent);
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Mode, int>>& info) {
  return (std::get<0>(info.param) == Mode::kInline ? "Inline" : "Threads") +
         std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Ranks, NcclTransportTest,
                         ::testing::Values(std::tuple(Mode::kInline, 1),
                                           std::tuple(Mode::kThreads, 2),
                                           std::tuple(Mode::kInline, 3),
                                           std::tuple(Mode::kThreads, 4),
                                           std::tuple(Mode::kInline, 5)),
                         NameOf);

TEST(NcclLinkProbeTest, MeasuresByEvents) {
  Group group(3, Mode::kThreads);
  group.MustConnect();
  group.Check(CheckLinkProbe);
}

TEST(NcclTransportFacesTest, RanksOfHost) {
  Group group(3, Mode::kInline);
  group.MustConnect();
  const Transport& data = *group.of(1).data;
  EXPECT_EQ(data.rank(), 1);
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.link(0), LinkKind::kNccl);
  EXPECT_EQ(data.link(1), LinkKind::kSelf);
  EXPECT_EQ(data.host(2), group.host(1).host(2));
  EXPECT_TRUE(data.on_device());
  EXPECT_TRUE(data.has_native());
  const std::vector<int> pair = {0, 1};
  EXPECT_FALSE(data.HasNativeFor(pair));
}

TEST(NcclTransportFacesTest, RegistersMemory) {
  Group group(2, Mode::kInline);
  group.MustConnect();
  const DeviceArray<std::byte> memory(*group.of(0).device, 4096, "test");
  group.of(0).data->RegisterMemory(memory.span());
  EXPECT_EQ(group.nccl.live_registrations(), 2) << "one for each channel";
  group.of(0).data->ForgetMemory(memory.span());
  EXPECT_EQ(group.nccl.live_registrations(), 0);
  // What is still known at the end is forgotten then (the group checks).
  group.of(0).data->RegisterMemory(memory.span());
}

class NcclFailureTest : public ::testing::TestWithParam<Mode> {
 protected:
  // Every rank says something, and it is this of `named`.
  static void ExpectAllFail(const std::vector<absl::Status>& said, const std::string& named) {
    for (size_t rank = 0; rank < said.size(); ++rank) {
      EXPECT_FALSE(said[rank].ok()) << "rank " << rank;
      EXPECT_THAT(std::string(said[rank].message()), HasSubstr(named)) << "rank " << rank;
    }
  }
};

TEST_P(NcclFailureTest, ConnectTimesOut) {
  Group group(3, GetParam());
  group.nccl.HangInit(1);
  const auto said = group.Connect(absl::Milliseconds(300));
  ExpectAllFail(said, "connecting 3 ranks for moves");
  EXPECT_TRUE(std::any_of(said.begin(), said.end(), [](const absl::Status& status) {
    return absl::IsDeadlineExceeded(status);
  }));
}

TEST_P(NcclFailureTest, UniqueIdFails) {
  Group group(2, GetParam());
  group.nccl.FailNext("unique_id", ncclSystemError);
  ExpectAllFail(group.Connect(), "making NCCL's id");
}

TEST_P(NcclFailureTest, MemberLostDuringCall) {
  Group group(3, GetParam());
  group.MustConnect();
  // What is new is agreed on first, so that the loss comes in the middle of what is not.
  for (const absl::Status& said : group.OnAll([&](int rank) { return group.AllReduce(rank); })) {
    ASSERT_TRUE(said.ok()) << said;
  }
  const auto said = group.OnAll([&](int rank) {
    if (rank != 2) return group.AllReduce(rank);
    while (group.nccl.waiting() == 0) std::this_thread::yield();
    group.nccl.Kill(2);
    group.host(2).Abort(absl::UnavailableError("rank 2 was killed"));
    return absl::UnavailableError("rank 2 was killed");
  });
  ExpectAllFail(said, "rank 2 was killed");
  EXPECT_EQ(group.AllReduce(0), group.of(0).data->status()) << "the group is dead";
}

TEST_P(NcclFailureTest, NcclRemoteError) {
  Group group(3, GetParam());
  group.MustConnect();
  for (const absl::Status& said : group.OnAll([&](int rank) { return group.AllReduce(rank); })) {
    ASSERT_TRUE(said.ok()) << said;
  }
  const auto said = group.OnAll([&](int rank) {
    if (rank != 1) return group.AllReduce(rank);
    while (group.nccl.waiting() == 0) std::this_thread::yield();
    group.nccl.Break(0, ncclRemoteError);
    while (group.of(1).data->status().ok()) std::this_thread::yield();
    return group.of(1).data->status();
  });
  for (const absl::Status& each : said) {
    EXPECT_EQ(each.code(), absl::StatusCode::kUnavailable) << each;
    EXPECT_THAT(std::string(each.message()), HasSubstr("remote process exited"));
  }
}

TEST_P(NcclFailureTest, AbortReachesAllRanks) {
  Group group(2, GetParam());
  group.MustConnect();
  for (const absl::Status& said : group.OnAll([&](int rank) { return group.AllReduce(rank); })) {
    ASSERT_TRUE(said.ok()) << said;
  }
  std::thread outside([&] {
    while (group.nccl.waiting() == 0) std::this_thread::yield();
    group.of(0).data->Abort(absl::CancelledError("the run was stopped"));
  });
  const auto said = group.OnAll([&](int rank) {
    if (rank == 0) return group.AllReduce(rank);
    while (group.of(1).data->status().ok()) std::this_thread::yield();
    return group.of(1).data->status();
  });
  outside.join();
  ExpectAllFail(said, "the run was stopped");
  EXPECT_EQ(said[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(said[1].code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(group.host(0).status().ok());
  EXPECT_FALSE(group.host(1).status().ok());
}

TEST_P(NcclFailureTest, DifferentPlans) {
  Group group(2, GetParam());
  group.MustConnect();
  const auto said = group.OnAll([&](int rank) {
    return group.AllReduce(rank, rank == 0 ? Algorithm::kRing : Algorithm::kNative);
  });
  int named = 0;
  for (const absl::Status& each : said) {
    EXPECT_FALSE(each.ok());
    const std::string text(each.message());
    named += text.find("ring") != std::string::npos && text.find("native") != std::string::npos;
  }
  EXPECT_GT(named, 0);
}

TEST_P(NcclFailureTest, DifferentLengths) {
  Group group(2, GetParam());
  group.MustConnect();
  const auto said = group.OnAll(
      [&](int rank) { return group.AllReduce(rank, Algorithm::kNative, rank == 0 ? 1000 : 1001); });
  for (const absl::Status& each : said) EXPECT_FALSE(each.ok());
}

TEST_P(NcclFailureTest, InvalidNcclCall) {
  Group group(2, GetParam());
  group.MustConnect();
  group.nccl.FailNext("all_reduce", ncclInvalidArgument);
  const auto said =
      group.OnAll([&](int rank) { return group.AllReduce(rank, Algorithm::kNative); });
  EXPECT_TRUE(std::any_of(said.begin(), said.end(),
                          [](const absl::Status& status) { return absl::IsInternal(status); }));
  ExpectAllFail(said, "all-reduce by native");
}

TEST_P(NcclFailureTest, DependencyInLaterRound) {
  Group group(2, GetParam());
  group.MustConnect();
  DeviceArray<std::byte> data(*group.of(0).device, 8, "test");
  const std::vector<Transfer> transfers = {
      {Transfer::Kind::kReceive, 1, data.span(), Transfer::kNone, 0},
      {Transfer::Kind::kSend, 1, data.span(), 0, 0}};
  const absl::Status said = group.of(0).data->Run(Transport::kMoves, {}, transfers, {});
  EXPECT_EQ(said.code(), absl::StatusCode::kInternal);
}

TEST_P(NcclFailureTest, SecondDevice) {
  Group group(2, GetParam(), 1);
  // Each on a thread of its own, for which the machine's first device is the current one.
  group.MustConnect();
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kNative}) {
    for (const absl::Status& said :
         group.OnAll([&](int rank) { return group.AllReduce(rank, algorithm); })) {
      EXPECT_EQ(said, absl::OkStatus());
    }
  }
}

TEST_P(NcclFailureTest, LostDeviceWithHangingAborts) {
  Group group(2, GetParam());
  group.MustConnect();
  group.nccl.HangAborts(0);
  group.of(0).cuda.Break(cudaErrorECCUncorrectable);
  const auto said = group.OnAll([&](int rank) {
    const absl::Status error = group.AllReduce(rank);
    group.of(rank).data.reset();
    return error;
  });
  ExpectAllFail(said, "");
  EXPECT_EQ(group.nccl.live_communicators(), 0);
  group.nccl.EndAborts();
}

INSTANTIATE_TEST_SUITE_P(Modes, NcclFailureTest, ::testing::Values(Mode::kInline, Mode::kThreads),
                         [](const ::testing::TestParamInfo<Mode>& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

}  // namespace
}  // namespace cadre
