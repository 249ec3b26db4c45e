// NCCL by copies on one emulated device: results of every operation, order of streams, mistakes.
#include "tests/comm/transport/nccl/device_copy_nccl.h"

#include <cuda_bf16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;
using Floats = std::vector<float>;
using ::testing::HasSubstr;

// A rank: streams on the device of all ranks, and a communicator.
class Rank {
 public:
  Rank(const CudaApi& cuda, const NcclApi& nccl, int rank) : cuda(cuda), nccl(nccl), rank(rank) {
    EXPECT_EQ(cuda.set_device(0), cudaSuccess);
    stream = NewStream();
  }

  cudaStream_t NewStream() {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, cudaStreamNonBlocking, 0), cudaSuccess);
    return made;
  }
  ncclComm_t Join(const ncclUniqueId& id, int size) {
    ncclComm_t made = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_FALSE(IsError(nccl.init(&made, size, id, rank, &config)));
    EXPECT_EQ(Settle(made), ncclSuccess);
    return made;
  }
  ncclResult_t Settle(ncclComm_t which) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      EXPECT_EQ(nccl.async_error(which, &state), ncclSuccess);
      std::this_thread::yield();
    }
    return state;
  }
  template <typename T>
  T* Make(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_EQ(cuda.malloc(&memory, values.size() * sizeof(T)), cudaSuccess);
    Set(static_cast<T*>(memory), values);
    return static_cast<T*>(memory);
  }
  template <typename T>
  void Set(T* memory, const std::vector<T>& values) {
    EXPECT_EQ(cuda.copy_async(memory, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
  }
  template <typename T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(
        cuda.copy_async(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    return values;
  }

  const CudaApi& cuda;
  const NcclApi& nccl;
  const int rank;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
};

class DeviceCopyNcclTest : public ::testing::TestWithParam<Mode> {
 protected:
  ncclUniqueId Id() {
    ncclUniqueId id;
    EXPECT_EQ(network_.api().unique_id(&id), ncclSuccess);
    return id;
  }
  // Runs `body` on all ranks, each on its own thread.
  void OnRanks(int size, const std::function<void(Rank&)>& body) {
    const ncclUniqueId id = Id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self(machine_.api(), network_.api(), rank);
        self.comm = self.Join(id, size);
        body(self);
        if (self.comm == nullptr) return;
        EXPECT_EQ(network_.api().destroy(self.comm), ncclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(network_.live_communicators(), 0);
  }

  EmulatedCuda machine_{GetParam()};
  DeviceCopyNccl network_{machine_.api(), 0, absl::Milliseconds(400)};
};

INSTANTIATE_TEST_SUITE_P(Modes, DeviceCopyNcclTest,
                         ::testing::Values(Mode::kInline, Mode::kThreads), [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

TEST_P(DeviceCopyNcclTest, AllReduceAddsInTheOrderOfRanks) {
  // The sum depends on the order, because large numbers absorb small ones.
  const Floats of_rank = {1e8F, 1, -1e8F, 3};
  for (const int size : {1, 2, 3, 4}) {
    float expected = 0;
    for (int i = 0; i < size; ++i) expected += of_rank[i];
    OnRanks(size, [&](Rank& self) {
      float* x = self.Make(Floats(1000, of_rank[self.rank]));
      float* y = self.Make(Floats(1000));
      EXPECT_EQ(self.nccl.all_reduce(x, y, 1000, ncclFloat32, ncclSum, self.comm, self.stream),
                ncclSuccess);
      EXPECT_EQ(self.nccl.all_reduce(x, x, 1000, ncclFloat32, ncclSum, self.comm, self.stream),
                ncclSuccess);
      EXPECT_EQ(self.Get(x, 1000), Floats(1000, expected));
      EXPECT_EQ(self.Get(y, 1000), Floats(1000, expected));
    });
  }
}

TEST_P(DeviceCopyNcclTest, EveryType) {
  OnRanks(3, [&](Rank& self) {
    const auto sum = [&](auto value, ncclDataType_t type) {
      auto* x = self.Make(std::vector{value});
      EXPECT_EQ(self.nccl.all_reduce(x, x, 1, type, ncclSum, self.comm, self.stream), ncclSuccess);
      return self.Get(x, 1)[0];
    };
    const uint64_t rank = self.rank;
    EXPECT_EQ(sum((uint64_t{1} << 60) + rank, ncclUint64), 3 * (uint64_t{1} << 60) + 3);
    EXPECT_EQ(sum(1.0 / 3, ncclFloat64), 1.0 / 3 + 1.0 / 3 + 1.0 / 3);
    EXPECT_EQ(sum(static_cast<uint8_t>(100 + rank), ncclUint8), 303 % 256);
    // bf16 cannot represent 256 + 1, but it can represent the sum of all three, which is rounded
    // only once.
    const __nv_bfloat16 part = __float2bfloat16(rank == 0 ? 256.0F : 1.0F);
    EXPECT_EQ(__bfloat162float(sum(part, ncclBfloat16)), 258);
    float* x = self.Make<float>({1});
    EXPECT_EQ(self.nccl.all_reduce(x, x, 1, ncclFloat16, ncclSum, self.comm, self.stream),
              ncclInvalidArgument);
  });
}

TEST_P(DeviceCopyNcclTest, CollectivesInPlace) {
  OnRanks(4, [&](Rank& self) {
    const float rank = self.rank;
    float* all = self.Make(Floats(12, -1));
    float* mine = all + 3 * self.rank;
    self.Set(mine, Floats{rank, 10 + rank, 20 + rank});
    EXPECT_EQ(self.nccl.all_gather(mine, all, 3, ncclFloat32, self.comm, self.stream), ncclSuccess);
    EXPECT_EQ(self.Get(all, 12), (Floats{0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23}));
    EXPECT_EQ(self.nccl.reduce_scatter(all, mine, 3, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(mine, 3), (Floats{4 * rank, 40 + 4 * rank, 80 + 4 * rank}));
    EXPECT_EQ(self.nccl.reduce(mine, mine, 1, ncclFloat32, ncclSum, 2, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(mine, 1)[0], self.rank == 2 ? 24 : 4 * rank);
    EXPECT_EQ(self.nccl.broadcast(mine, mine, 1, ncclFloat32, 2, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(mine, 1)[0], 24);
  });
}

TEST_P(DeviceCopyNcclTest, GroupOfMessages) {
  // Rank a sends a + b + 1 elements to rank b, including itself, but none if a + b is 3.
  const auto count = [](int a, int b) -> size_t { return a + b == 3 ? 0 : a + b + 1; };
  OnRanks(3, [&](Rank& self) {
    std::vector<float*> out, in;
    for (int peer = 0; peer < 3; ++peer) {
      out.push_back(self.Make(Floats(8, self.rank * 10 + peer)));
      in.push_back(self.Make(Floats(8, -1)));
    }
    EXPECT_EQ(self.nccl.group_start(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      self.nccl.send(out[peer], count(self.rank, peer), ncclFloat32, peer, self.comm, self.stream);
      self.nccl.receive(in[peer], count(peer, self.rank), ncclFloat32, peer, self.comm,
                        self.stream);
    }
    EXPECT_EQ(self.nccl.group_end(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      Floats expected(8, -1);
      std::fill_n(expected.begin(), count(peer, self.rank), peer * 10 + self.rank);
      EXPECT_EQ(self.Get(in[peer], 8), expected);
    }
  });
}

TEST_P(DeviceCopyNcclTest, BuffersAreUsedAgainRightAfterTheCall) {
  OnRanks(2, [&](Rank& self) {
    constexpr size_t kCount = 50000;
    float* out = self.Make(Floats(kCount));
    float* in = self.Make(Floats(kCount));
    float* sum = self.Make(Floats(kCount));
    for (int step = 0; step < 20; ++step) {
      self.Set(out, Floats(kCount, 100 * step + self.rank));
      self.nccl.group_start();
      self.nccl.send(out, kCount, ncclFloat32, 1 - self.rank, self.comm, self.stream);
      self.nccl.receive(in, kCount, ncclFloat32, 1 - self.rank, self.comm, self.stream);
      EXPECT_EQ(self.nccl.group_end(), ncclSuccess);
      EXPECT_EQ(self.cuda.set_async(out, 0xFF, kCount * sizeof(float), self.stream), cudaSuccess);
      EXPECT_EQ(self.nccl.all_reduce(in, sum, kCount, ncclFloat32, ncclSum, self.comm, self.stream),
                ncclSuccess);
      EXPECT_EQ(self.cuda.set_async(in, 0xFF, kCount * sizeof(float), self.stream), cudaSuccess);
      ASSERT_EQ(self.Get(sum, kCount), Floats(kCount, 200 * step + 1)) << step;
    }
  });
}

// Work of two communicators on two streams, in one order of calls.
TEST_P(DeviceCopyNcclTest, TwoCommunicatorsOnTwoStreams) {
  const ncclUniqueId second = Id();
  OnRanks(3, [&](Rank& self) {
    const ncclComm_t other = self.Join(second, 3);
    const cudaStream_t side = self.NewStream();
    float* a = self.Make<float>({1});
    float* b = self.Make<float>({1});
    cudaEvent_t written = nullptr;
    EXPECT_EQ(self.cuda.event_create(&written, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(self.cuda.event_record(written, self.stream), cudaSuccess);
    EXPECT_EQ(self.cuda.stream_wait_event(side, written, 0), cudaSuccess);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(self.nccl.all_reduce(a, a, 1, ncclFloat32, ncclSum, self.comm, self.stream),
                ncclSuccess);
      EXPECT_EQ(self.nccl.all_reduce(b, b, 1, ncclFloat32, ncclSum, other, side), ncclSuccess);
    }
    EXPECT_EQ(self.cuda.event_record(written, side), cudaSuccess);
    EXPECT_EQ(self.cuda.stream_wait_event(self.stream, written, 0), cudaSuccess);
    EXPECT_EQ(self.Get(a, 1)[0], 59049) << "3 to the power of 10";
    EXPECT_EQ(self.Get(b, 1)[0], 59049);
    EXPECT_EQ(self.cuda.event_destroy(written), cudaSuccess);
    EXPECT_EQ(self.nccl.destroy(other), ncclSuccess);
  });
}

TEST_P(DeviceCopyNcclTest, SplitMakesACommunicatorPerColor) {
  OnRanks(4, [&](Rank& self) {
    // Even ranks and odd ranks, in descending order.
    ncclComm_t part = nullptr;
    EXPECT_FALSE(
        IsError(self.nccl.split(self.comm, self.rank % 2, 10 - self.rank, &part, nullptr)));
    EXPECT_EQ(self.Settle(self.comm), ncclSuccess);
    EXPECT_EQ(self.Settle(part), ncclSuccess);
    float* mine = self.Make<float>({static_cast<float>(self.rank)});
    float* all = self.Make<float>({0, 0});
    EXPECT_EQ(self.nccl.all_gather(mine, all, 1, ncclFloat32, part, self.stream), ncclSuccess);
    EXPECT_EQ(self.Get(all, 2), self.rank % 2 == 0 ? (Floats{2, 0}) : (Floats{3, 1}));
    EXPECT_EQ(self.nccl.finalize(part), ncclSuccess);
    EXPECT_EQ(self.nccl.destroy(part), ncclSuccess);
  });
}

// --- mistakes and failures ----------------------------------------------------------------------

TEST_P(DeviceCopyNcclTest, MismatchedMessagesAreNamed) {
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    const ncclResult_t result =
        self.rank == 0 ? self.nccl.send(x, 5, ncclFloat32, 1, self.comm, self.stream)
                       : self.nccl.receive(x, 4, ncclFloat32, 0, self.comm, self.stream);
    EXPECT_EQ(result, ncclInvalidUsage);
    EXPECT_THAT(self.nccl.last_error(self.comm),
                HasSubstr("rank 1 receives 4 fp32 from 0, but rank 0 sends 5 fp32 to 1"));
  });
}

TEST_P(DeviceCopyNcclTest, MismatchedCollectivesAreNamed) {
  OnRanks(3, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    EXPECT_EQ(self.nccl.all_reduce(x, x, self.rank == 2 ? 5 : 4, ncclFloat32, ncclSum, self.comm,
                                   self.stream),
              ncclInvalidUsage);
    EXPECT_THAT(self.nccl.last_error(self.comm), HasSubstr("rank 2 all-reduces 5 fp32"));
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(self.nccl.async_error(self.comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInvalidUsage);
  });
}

TEST_P(DeviceCopyNcclTest, LateRankIsNamed) {
  OnRanks(3, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    if (self.rank == 2) {
      EXPECT_NE(self.Settle(self.comm), ncclInProgress);
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess) {
        EXPECT_EQ(self.nccl.async_error(self.comm, &state), ncclSuccess);
        std::this_thread::yield();
      }
      EXPECT_EQ(state, ncclSystemError) << "it comes to know";
      return;
    }
    EXPECT_EQ(self.nccl.all_reduce(x, x, 4, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSystemError);
    EXPECT_THAT(self.nccl.last_error(self.comm),
                ::testing::AllOf(HasSubstr("communicator 1"), HasSubstr("all-reduces 4 fp32"),
                                 HasSubstr("waits for ranks 2 after 400ms")));
  });
}

TEST_P(DeviceCopyNcclTest, AbortedRankReleasesTheOthers) {
  OnRanks(3, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    if (self.rank == 1) {
      while (network_.waiting() < 2) std::this_thread::yield();
      EXPECT_EQ(self.nccl.abort(self.comm), ncclSuccess);
      self.comm = nullptr;
      return;
    }
    EXPECT_EQ(self.nccl.all_reduce(x, x, 4, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclRemoteError);
    EXPECT_THAT(self.nccl.last_error(self.comm), HasSubstr("rank 1 aborted it"));
  });
}

TEST_P(DeviceCopyNcclTest, ErrorsOfTheDeviceReachAllRanks) {
  machine_.FailNext("launch", cudaErrorInvalidValue);
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    EXPECT_EQ(self.nccl.all_reduce(x, x, 4, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclUnhandledCudaError);
    EXPECT_THAT(self.nccl.last_error(self.comm), HasSubstr("cudaErrorInvalidValue"));
  });
}

TEST_P(DeviceCopyNcclTest, CapturesAreRefused) {
  OnRanks(1, [&](Rank& self) {
    float* x = self.Make(Floats(8));
    EXPECT_EQ(self.cuda.begin_capture(self.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(self.nccl.all_reduce(x, x, 4, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclInvalidUsage);
    cudaGraph_t graph = nullptr;
    EXPECT_NE(self.cuda.end_capture(self.stream, &graph), cudaSuccess);
    EXPECT_EQ(self.nccl.all_reduce(x, x, 4, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSuccess)
        << "outside of captures";
  });
}

}  // namespace
}  // namespace cadre
