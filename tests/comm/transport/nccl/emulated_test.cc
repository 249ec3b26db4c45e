// Collectives over NCCL among ranks with emulated devices, and failures of NCCL, ranks and devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/fake_nccl.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
// kInline: work runs in the call that enqueues it; kThreads: in a thread for each stream.
using Mode = EmulatedCuda::Mode;

// The device, kernels and data transport of one rank. Members are destroyed in reverse order.
struct Rank {
  Rank(Mode mode, int ordinal) : cuda(mode, ordinal + 1) {
    auto made =
        CudaDevice::Make(cuda.api(), {.ordinal = ordinal, .memory_limit = int64_t{256} << 20});
    EXPECT_TRUE(made.ok()) << made.status();
    device = *std::move(made);
    // No test multiplies matrices.
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
    // Concurrently, as the processes of a real group exit.
    OnRanks(size(), [&](int rank) { of(rank).data.reset(); });
    EXPECT_EQ(nccl.live_communicators(), 0);
    EXPECT_EQ(nccl.live_registrations(), 0);
  }

  int size() const { return std::ssize(ranks_); }
  Rank& of(int rank) { return *ranks_[rank]; }
  Transport& host_transport(int rank) { return *hosts_[rank]; }

  // Creates the data transports of all ranks.
  std::vector<absl::Status> Connect(absl::Duration timeout = absl::Seconds(60)) {
    return OnAll([&](int rank) {
      auto made = MakeNcclTransport(nccl.api(), *of(rank).device, *of(rank).kernels,
                                    host_transport(rank), {.init_timeout = timeout});
      if (made.ok()) of(rank).data = *std::move(made);
      return made.status();
    });
  }

  std::vector<absl::Status> OnAll(const std::function<absl::Status(int rank)>& body) {
    return StatusesOnRanks(size(), body);
  }
  void Check(const std::function<void(const DeviceRank&)>& check) {
    OnRanks(size(), [&](int rank) {
      check({*of(rank).kernels, *of(rank).data, host_transport(rank)});
    });
  }

  // An all-reduce, followed by a wait for the device.
  absl::Status AllReduce(int rank, Algorithm algorithm = Algorithm::kRing, size_t elements = 1000) {
    Communicator all(*of(rank).data, AllRanks(size()));
    DeviceArray<float> data(*of(rank).device, elements, "test");
    const absl::Status enqueued = all.AllReduceSum(data.span(), algorithm);
    const absl::Status ended = of(rank).device->Synchronize();
    return enqueued.ok() ? ended : enqueued;
  }
  // Ranks compare the first call over the host transport. Later calls with the same arguments go
  // straight to NCCL, so after this all-reduce another one fails inside NCCL.
  std::vector<absl::Status> AllReduceOnAll(Algorithm algorithm = Algorithm::kRing) {
    return OnAll([&](int rank) { return AllReduce(rank, algorithm); });
  }
  // Waits until the data transport of the rank has failed; returns the error.
  absl::Status AwaitFailure(int rank) {
    while (of(rank).data->status().ok()) std::this_thread::yield();
    return of(rank).data->status();
  }
  // Waits until some rank blocks in a collective.
  void AwaitBlockedRank() const {
    while (nccl.waiting() == 0) std::this_thread::yield();
  }

  FakeNccl nccl;

 private:
  const Transports hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  EXPECT_THAT(statuses, ::testing::Each(absl::OkStatus()));
}

class NcclTransportTest : public ::testing::TestWithParam<std::tuple<Mode, int>> {};

TEST_P(NcclTransportTest, Collectives) {
  const auto [mode, ranks] = GetParam();
  Group group(ranks, mode);
  // An operation of NCCL is in progress until it has been polled twice.
  group.nccl.set_polls(2);
  ExpectAllOk(group.Connect());
  group.Check(CheckEverything);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, NcclTransportTest,
    ::testing::Values(std::tuple(Mode::kInline, 1), std::tuple(Mode::kThreads, 2),
                      std::tuple(Mode::kInline, 3), std::tuple(Mode::kThreads, 4),
                      std::tuple(Mode::kInline, 5)),
    [](const auto& info) {
      return (std::get<0>(info.param) == Mode::kInline ? "Inline" : "Threads") +
             std::to_string(std::get<1>(info.param));
    });

TEST(NcclTransportPropertiesTest, ReportsRanksAndLinks) {
  Group group(3, Mode::kInline);
  ExpectAllOk(group.Connect());
  const Transport& data = *group.of(1).data;
  EXPECT_EQ(data.rank(), 1);
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.link(0), LinkKind::kNccl);
  EXPECT_EQ(data.link(1), LinkKind::kSelf);
  EXPECT_TRUE(data.on_device());
  EXPECT_TRUE(data.has_native());
  const std::vector<int> pair = {0, 1};
  EXPECT_FALSE(data.HasNativeFor(pair));
}

TEST(NcclTransportPropertiesTest, RegistersMemory) {
  Group group(2, Mode::kInline);
  ExpectAllOk(group.Connect());
  const DeviceArray<std::byte> memory(*group.of(0).device, 4096, "test");
  group.of(0).data->RegisterMemory(memory.span());
  EXPECT_EQ(group.nccl.live_registrations(), 2) << "one for each channel";
  group.of(0).data->ForgetMemory(memory.span());
  EXPECT_EQ(group.nccl.live_registrations(), 0);
  // The transport's destructor deregisters this one; ~Group checks that.
  group.of(0).data->RegisterMemory(memory.span());
}

class NcclFailureTest : public ::testing::TestWithParam<Mode> {
 protected:
  // All ranks fail with an error that contains `text`.
  static void ExpectAllFail(const std::vector<absl::Status>& statuses, const std::string& text) {
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
  }
};

TEST_P(NcclFailureTest, ConnectTimesOut) {
  Group group(3, GetParam());
  group.nccl.HangInit(1);
  const auto statuses = group.Connect(absl::Milliseconds(300));
  ExpectAllFail(statuses, "connecting 3 ranks for moves");
  EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), absl::IsDeadlineExceeded));
}

// They could not be loaded while a collective waits for a peer.
TEST_P(NcclFailureTest, KernelsAreLoadedBeforeTheConnection) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  EXPECT_EQ(group.of(0).cuda.calls("load_kernels"), 1);
  EXPECT_EQ(group.of(1).cuda.calls("load_kernels"), 1);

  Group other(2, GetParam());
  other.of(1).cuda.FailNext("load_kernels", cudaErrorNoKernelImageForDevice);
  ExpectAllFail(other.Connect(), "loading the kernels of this program");
  EXPECT_EQ(other.nccl.live_communicators(), 0);
}

TEST_P(NcclFailureTest, UniqueIdFails) {
  Group group(2, GetParam());
  group.nccl.FailNext("unique_id", ncclSystemError);
  ExpectAllFail(group.Connect(), "creating NCCL's id");
}

TEST_P(NcclFailureTest, MemberLostDuringCall) {
  Group group(3, GetParam());
  ExpectAllOk(group.Connect());
  ExpectAllOk(group.AllReduceOnAll());
  const auto statuses = group.OnAll([&](int rank) {
    if (rank != 2) return group.AllReduce(rank);
    group.AwaitBlockedRank();
    group.nccl.Kill(2);
    group.host_transport(2).Abort(absl::UnavailableError("rank 2 was killed"));
    return absl::UnavailableError("rank 2 was killed");
  });
  ExpectAllFail(statuses, "rank 2 was killed");
  EXPECT_EQ(group.AllReduce(0), group.of(0).data->status()) << "the group has failed";
}

TEST_P(NcclFailureTest, NcclRemoteError) {
  Group group(3, GetParam());
  ExpectAllOk(group.Connect());
  ExpectAllOk(group.AllReduceOnAll());
  const auto statuses = group.OnAll([&](int rank) {
    if (rank != 1) return group.AllReduce(rank);
    group.AwaitBlockedRank();
    group.nccl.Break(0, ncclRemoteError);
    return group.AwaitFailure(1);
  });
  ExpectAllFail(statuses, "remote process exited");
  for (const absl::Status& status : statuses) EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_P(NcclFailureTest, AbortReachesAllRanks) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  ExpectAllOk(group.AllReduceOnAll());
  std::thread other([&] {
    group.AwaitBlockedRank();
    group.of(0).data->Abort(absl::CancelledError("the run was stopped"));
  });
  const auto statuses = group.OnAll(
      [&](int rank) { return rank == 0 ? group.AllReduce(rank) : group.AwaitFailure(rank); });
  other.join();
  ExpectAllFail(statuses, "the run was stopped");
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(group.host_transport(0).status().ok());
  EXPECT_FALSE(group.host_transport(1).status().ok());
}

TEST_P(NcclFailureTest, DifferentPlans) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  const auto statuses = group.OnAll([&](int rank) {
    return group.AllReduce(rank, rank == 0 ? Algorithm::kRing : Algorithm::kNative);
  });
  ExpectAllFail(statuses, "");
  EXPECT_THAT(statuses, ::testing::Contains(::testing::ResultOf(
                            [](const absl::Status& status) { return status.ToString(); },
                            ::testing::AllOf(HasSubstr("ring"), HasSubstr("native")))));
}

TEST_P(NcclFailureTest, DifferentLengths) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  ExpectAllFail(group.OnAll([&](int rank) {
    return group.AllReduce(rank, Algorithm::kNative, rank == 0 ? 1000 : 1001);
  }),
                "");
}

TEST_P(NcclFailureTest, InvalidNcclCall) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  group.nccl.FailNext("all_reduce", ncclInvalidArgument);
  const auto statuses = group.AllReduceOnAll(Algorithm::kNative);
  EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), absl::IsInternal));
  ExpectAllFail(statuses, "all-reduce by native");
}

TEST_P(NcclFailureTest, RefusesDependencyInSameRound) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  DeviceArray<std::byte> data(*group.of(0).device, 8, "test");
  const std::vector<Transfer> transfers = {
      {.kind = Transfer::Kind::kReceive, .peer = 1, .data = data.span(), .round = 0},
      {.kind = Transfer::Kind::kSend, .peer = 1, .data = data.span(), .after = 0, .round = 0}};
  EXPECT_EQ(group.of(0).data->Run(Transport::kMoves, {}, transfers, {}).code(),
            absl::StatusCode::kInternal);
}

TEST_P(NcclFailureTest, SecondDevice) {
  // In a new thread the first device of the host is current.
  Group group(2, GetParam(), 1);
  ExpectAllOk(group.Connect());
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kNative}) {
    ExpectAllOk(group.AllReduceOnAll(algorithm));
  }
}

TEST_P(NcclFailureTest, LostDeviceWithHangingAborts) {
  Group group(2, GetParam());
  ExpectAllOk(group.Connect());
  group.nccl.HangAborts(0);
  group.of(0).cuda.Break(cudaErrorECCUncorrectable);
  const auto statuses = group.OnAll([&](int rank) {
    const absl::Status error = group.AllReduce(rank);
    group.of(rank).data.reset();
    return error;
  });
  ExpectAllFail(statuses, "");
  EXPECT_EQ(group.nccl.live_communicators(), 0);
  group.nccl.EndAborts();
}

INSTANTIATE_TEST_SUITE_P(Modes, NcclFailureTest, ::testing::Values(Mode::kInline, Mode::kThreads),
                         [](const ::testing::TestParamInfo<Mode>& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

}  // namespace
}  // namespace cadre
