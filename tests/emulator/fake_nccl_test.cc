// The fake NCCL: sums, messages, groups, communicators, faults.
#include "tests/emulator/fake_nccl.h"

#include <cuda_bf16.h>

#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

// A rank: a machine with one device, a stream, and a communicator of all ranks.
class Rank {
 public:
  Rank(FakeNccl& network, Mode mode, int rank, int size)
      : nccl(network.api()), machine_(mode), cuda(machine_.api()), rank_(rank), size_(size) {
    EXPECT_EQ(cuda.set_device(0), cudaSuccess);
    EXPECT_EQ(cuda.stream_create(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  }

  void Init(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = nccl.init(&comm, size_, id, rank_, &config);
    EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress);
    EXPECT_EQ(Settle(comm), ncclSuccess);
  }
  // Waits until nothing is in progress.
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
    EXPECT_EQ(cuda.copy_async(memory, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    return static_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(
        cuda.copy_async(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    return values;
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  const NcclApi& nccl;

 private:
  EmulatedCuda machine_;

 public:
  const CudaApi& cuda;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;

 private:
  const int rank_, size_;
};

class FakeNcclTest : public testing::TestWithParam<Mode> {
 protected:
  ncclUniqueId Id() {
    ncclUniqueId id;
    EXPECT_EQ(network_.api().unique_id(&id), ncclSuccess);
    return id;
  }
  // Runs `body` on all ranks concurrently, each on its own thread.
  void OnRanks(int size, const std::function<void(Rank&)>& body) {
    const ncclUniqueId id = Id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self(network_, GetParam(), rank, size);
        self.Init(id);
        body(self);
        EXPECT_TRUE(network_.api().destroy(self.comm) == ncclSuccess || aborted_);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(network_.live_communicators(), 0);
  }
  void AwaitWaiting(int64_t operations) {
    while (network_.waiting() < operations) std::this_thread::yield();
  }

  // For EXPECT_NONFATAL_FAILURE, whose statement cannot use non-static members.
  void SetStatics() {
    network = &network_;
    mode = GetParam();
  }

  static inline FakeNccl* network;
  static inline Mode mode;

  FakeNccl network_;
  bool aborted_ = false;
};

INSTANTIATE_TEST_SUITE_P(Modes, FakeNcclTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

TEST_P(FakeNcclTest, AllReduceAddsInTheOrderOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    // The sum depends on the order, because large numbers absorb small ones.
    const std::vector<float> of_rank = {1e8F, 1, -1e8F, 3};
    float expected = 0;
    for (int i = 0; i < size; ++i) expected += of_rank[i];
    OnRanks(size, [&](Rank& self) {
      float* x = self.Make(std::vector<float>(7, of_rank[self.rank()]));
      // In place.
      ASSERT_EQ(self.nccl.all_reduce(x, x, 7, ncclFloat32, ncclSum, self.comm, self.stream),
                ncclSuccess);
      EXPECT_EQ(self.Get(x, 7), std::vector<float>(7, expected));
    });
  }
}

TEST_P(FakeNcclTest, EveryType) {
  OnRanks(3, [&](Rank& self) {
    const uint64_t rank = self.rank();
    uint64_t* words = self.Make<uint64_t>({rank + 1, (uint64_t{1} << 60) + rank});
    ASSERT_EQ(self.nccl.all_reduce(words, words, 2, ncclUint64, ncclSum, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(words, 2), (std::vector<uint64_t>{6, 3 * (uint64_t{1} << 60) + 3}));
    double* doubles = self.Make<double>({1.0 / 3, 1.0 * rank});
    ASSERT_EQ(
        self.nccl.all_reduce(doubles, doubles, 2, ncclFloat64, ncclSum, self.comm, self.stream),
        ncclSuccess);
    EXPECT_EQ(self.Get(doubles, 2), (std::vector<double>{1.0 / 3 + 1.0 / 3 + 1.0 / 3, 3}));
    // bf16 cannot represent 256 + 1, but it can represent the sum of all three, which is rounded
    // only once.
    const float values[] = {256, 1, 1};
    __nv_bfloat16* halves = self.Make<__nv_bfloat16>({__float2bfloat16(values[rank])});
    ASSERT_EQ(
        self.nccl.all_reduce(halves, halves, 1, ncclBfloat16, ncclSum, self.comm, self.stream),
        ncclSuccess);
    EXPECT_EQ(__bfloat162float(self.Get(halves, 1)[0]), 258);
    EXPECT_EQ(self.nccl.all_reduce(words, words, 1, ncclFloat16, ncclSum, self.comm, self.stream),
              ncclInvalidArgument);
    EXPECT_EQ(self.nccl.all_reduce(words, words, 1, ncclUint64, ncclMax, self.comm, self.stream),
              ncclInvalidArgument);
  });
}

TEST_P(FakeNcclTest, GatherScatterReduceBroadcast) {
  OnRanks(4, [&](Rank& self) {
    const float rank = self.rank();
    float* mine = self.Make<float>({rank, 10 + rank, 20 + rank});
    float* all = self.Make(std::vector<float>(12));
    ASSERT_EQ(self.nccl.all_gather(mine, all, 3, ncclFloat32, self.comm, self.stream), ncclSuccess);
    EXPECT_EQ(self.Get(all, 12), (std::vector<float>{0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23}));
    ASSERT_EQ(self.nccl.reduce_scatter(all, mine, 3, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(mine, 3), (std::vector<float>{4 * rank, 40 + 4 * rank, 80 + 4 * rank}));
    float* sum = self.Make<float>({-1});
    ASSERT_EQ(self.nccl.reduce(mine, sum, 1, ncclFloat32, ncclSum, 2, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(sum, 1)[0], self.rank() == 2 ? 24 : -1);
    ASSERT_EQ(self.nccl.broadcast(sum, sum, 1, ncclFloat32, 2, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(self.Get(sum, 1)[0], 24);
  });
}

TEST_P(FakeNcclTest, GroupOfMessagesOfDifferentSizes) {
  // Rank a sends a + b + 1 elements to rank b, including itself, but none if a + b is 3.
  const auto count = [](int a, int b) -> size_t { return a + b == 3 ? 0 : a + b + 1; };
  OnRanks(3, [&](Rank& self) {
    std::vector<float*> out, in;
    for (int peer = 0; peer < 3; ++peer) {
      out.push_back(self.Make(std::vector<float>(8, self.rank() * 10 + peer)));
      in.push_back(self.Make(std::vector<float>(8, -1)));
    }
    ASSERT_EQ(self.nccl.group_start(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      ASSERT_EQ(self.nccl.send(out[peer], count(self.rank(), peer), ncclFloat32, peer, self.comm,
                               self.stream),
                ncclSuccess);
      ASSERT_EQ(self.nccl.receive(in[peer], count(peer, self.rank()), ncclFloat32, peer, self.comm,
                                  self.stream),
                ncclSuccess);
    }
    ASSERT_EQ(self.nccl.group_end(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      std::vector<float> expected(8, -1);
      std::fill_n(expected.begin(), count(peer, self.rank()), peer * 10 + self.rank());
      EXPECT_EQ(self.Get(in[peer], 8), expected);
    }
  });
}

TEST_P(FakeNcclTest, OperationsCanBeCaptured) {
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make<float>({self.rank() == 0 ? 1.0F : 2.0F, 0});
    ASSERT_EQ(EmulatedCuda::Drain(self.stream), cudaSuccess);
    const int peer = 1 - self.rank();
    ASSERT_EQ(self.cuda.begin_capture(self.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(self.nccl.all_reduce(x, x, 1, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSuccess);
    ASSERT_EQ(self.nccl.group_start(), ncclSuccess);
    ASSERT_EQ(self.nccl.send(x, 1, ncclFloat32, peer, self.comm, self.stream), ncclSuccess);
    ASSERT_EQ(self.nccl.receive(x + 1, 1, ncclFloat32, peer, self.comm, self.stream), ncclSuccess);
    ASSERT_EQ(self.nccl.group_end(), ncclSuccess);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(self.cuda.end_capture(self.stream, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(self.cuda.graph_instantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(self.cuda.graph_launch(exec, self.stream), cudaSuccess);
    }
    // The sums of the three launches are 3, 6 and 12.
    EXPECT_EQ(self.Get(x, 2), (std::vector<float>{12, 12}));
  });
}

TEST_P(FakeNcclTest, SplitMakesACommunicatorPerColor) {
  OnRanks(4, [&](Rank& self) {
    // Ranks 3, 2 and 1, in this order; rank 0 has no color.
    const int color = self.rank() == 0 ? NCCL_SPLIT_NOCOLOR : 5;
    ncclComm_t part = nullptr;
    const ncclResult_t result = self.nccl.split(self.comm, color, 10 - self.rank(), &part, nullptr);
    ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress);
    EXPECT_EQ(self.Settle(self.comm), ncclSuccess);
    if (self.rank() == 0) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    EXPECT_EQ(self.Settle(part), ncclSuccess);
    float* mine = self.Make<float>({static_cast<float>(self.rank())});
    float* all = self.Make<float>({0, 0, 0});
    ASSERT_EQ(self.nccl.all_gather(mine, all, 1, ncclFloat32, part, self.stream), ncclSuccess);
    EXPECT_EQ(self.Get(all, 3), (std::vector<float>{3, 2, 1}));
    EXPECT_EQ(self.nccl.finalize(part), ncclSuccess);
    EXPECT_EQ(self.nccl.destroy(part), ncclSuccess);
  });
}

TEST_P(FakeNcclTest, CommunicatorsInProgressCannotBeUsed) {
  network_.set_polls(2);
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make<float>({1});
    ASSERT_EQ(self.nccl.all_reduce(x, x, 1, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclInProgress);
    EXPECT_EQ(self.nccl.all_reduce(x, x, 1, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclInvalidArgument);
    EXPECT_EQ(self.Settle(self.comm), ncclSuccess);
    EXPECT_EQ(self.Get(x, 1)[0], 2);
  });
}

TEST_P(FakeNcclTest, InitStaysInProgressUntilAllRanksJoin) {
  network_.HangInit(1);
  const ncclUniqueId id = Id();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (const int rank : {0, 1}) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(network_.api().init(&comm, 2, id, rank, &config), ncclInProgress);
    ncclResult_t state = ncclSuccess;
    ASSERT_EQ(network_.api().async_error(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);
    EXPECT_EQ(network_.api().abort(comm), ncclSuccess);
    EXPECT_EQ(network_.api().abort(comm), ncclInvalidArgument) << "it was aborted";
  }
  EXPECT_EQ(network_.live_communicators(), 0);
}

TEST_P(FakeNcclTest, InvalidInits) {
  const NcclApi& nccl = network_.api();
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id = Id();
  EXPECT_EQ(nccl.init(&comm, 2, id, 2, &config), ncclInvalidArgument);
  ncclConfig_t garbage = {};
  EXPECT_EQ(nccl.init(&comm, 2, id, 0, &garbage), ncclInvalidArgument);
  ncclUniqueId spoiled = id;
  spoiled.internal[127] ^= 1;
  EXPECT_EQ(nccl.init(&comm, 2, spoiled, 0, &config), ncclInvalidArgument);
  network_.FailNext("init", ncclSystemError);
  EXPECT_EQ(nccl.init(&comm, 1, id, 0, &config), ncclSystemError);
  EXPECT_EQ(nccl.init(&comm, 1, id, 0, &config), ncclSuccess);
  EXPECT_EQ(nccl.init(&comm, 1, id, 0, &config), ncclInvalidArgument) << "the rank has joined";
  EXPECT_EQ(network_.live_communicators(), 1);
}

TEST_P(FakeNcclTest, AbortEndsWaitingOperations) {
  aborted_ = true;
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make<float>({5});
    if (self.rank() == 1) return;
    std::thread watcher([&] {
      AwaitWaiting(1);
      EXPECT_EQ(self.nccl.abort(self.comm), ncclSuccess);
    });
    EXPECT_EQ(self.nccl.all_reduce(x, x, 1, ncclFloat32, ncclSum, self.comm, self.stream),
              ncclSuccess);
    EXPECT_EQ(EmulatedCuda::Drain(self.stream), cudaSuccess);
    watcher.join();
    EXPECT_EQ(self.Get(x, 1)[0], 5);
  });
}

TEST_P(FakeNcclTest, OperationsOfALostRankHaveNoEffect) {
  aborted_ = true;
  OnRanks(2, [&](Rank& self) {
    float* x = self.Make<float>({5});
    if (self.rank() == 1) {
      AwaitWaiting(1);
      network_.Kill(1);
      EXPECT_EQ(self.nccl.send(x, 1, ncclFloat32, 0, self.comm, self.stream), ncclSuccess);
      EXPECT_EQ(EmulatedCuda::Drain(self.stream), cudaSuccess);
      network_.Break(0, ncclRemoteError);
      return;
    }
    std::thread watcher([&] {
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess) {
        EXPECT_EQ(self.nccl.async_error(self.comm, &state), ncclSuccess);
        std::this_thread::yield();
      }
      EXPECT_EQ(state, ncclRemoteError);
      EXPECT_EQ(self.nccl.abort(self.comm), ncclSuccess);
    });
    EXPECT_EQ(self.nccl.receive(x, 1, ncclFloat32, 1, self.comm, self.stream), ncclSuccess);
    EXPECT_EQ(EmulatedCuda::Drain(self.stream), cudaSuccess);
    watcher.join();
    EXPECT_EQ(self.Get(x, 1)[0], 5);
  });
}

// --- failures of the test -----------------------------------------------------------------------

void Mismatch(FakeNccl* network, Mode mode, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  EXPECT_EQ(network->api().unique_id(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([=] {
      Rank self(*network, mode, rank, 2);
      self.Init(id);
      body(self);
      EXPECT_EQ(EmulatedCuda::Drain(self.stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(FakeNcclTest, MismatchedMessageFailsTheTest) {
  SetStatics();
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      Mismatch(network, mode,
               [](Rank& self) {
                 float* x = self.Make(std::vector<float>(8));
                 if (self.rank() == 0) {
                   self.nccl.send(x, 5, ncclFloat32, 1, self.comm, self.stream);
                 } else {
                   self.nccl.receive(x, 4, ncclFloat32, 0, self.comm, self.stream);
                 }
               }),
      "rank 1 receives 4 fp32 from 0, but rank 0 sends 5 fp32 to 1");
}

TEST_P(FakeNcclTest, MismatchedCollectiveFailsTheTest) {
  SetStatics();
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(Mismatch(network, mode,
                                                  [](Rank& self) {
                                                    float* x = self.Make(std::vector<float>(8));
                                                    self.nccl.all_reduce(x, x, 4 + self.rank(),
                                                                         ncclFloat32, ncclSum,
                                                                         self.comm, self.stream);
                                                  }),
                                         " all-reduces 5 fp32");
}

TEST_P(FakeNcclTest, HostMemoryFailsTheTest) {
  SetStatics();
  EXPECT_NONFATAL_FAILURE(
      {
        Rank self(*network, mode, 0, 1);
        ncclUniqueId id;
        network->api().unique_id(&id);
        self.Init(id);
        float x = 0;
        self.nccl.all_reduce(&x, &x, 1, ncclFloat32, ncclSum, self.comm, self.stream);
      },
      "does not lie within an allocation");
}

TEST(FakeNcclDevice, CommunicatorBelongsToTheCurrentDevice) {
  FakeNccl network;
  EmulatedCuda machine(Mode::kInline, 2);
  const CudaApi& cuda = machine.api();
  ncclUniqueId id = {};
  ncclUniqueId other = {};
  ASSERT_EQ(network.api().unique_id(&id), ncclSuccess);
  ASSERT_EQ(network.api().unique_id(&other), ncclSuccess);
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  ncclComm_t good = nullptr;
  ncclComm_t bad = nullptr;
  ASSERT_EQ(cuda.set_device(1), cudaSuccess);
  ASSERT_EQ(cuda.stream_create(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cuda.malloc(&memory, 16), cudaSuccess);
  ASSERT_EQ(network.api().init(&good, 1, id, 0, nullptr), ncclSuccess);
  // The current device of a new thread is the first one.
  std::thread([&] {
    EXPECT_EQ(network.api().init(&bad, 1, other, 0, nullptr), ncclSuccess);
  }).join();
  const auto sum = [&](ncclComm_t comm) {
    return network.api().all_reduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream);
  };
  EXPECT_EQ(sum(good), ncclSuccess);
  EXPECT_NONFATAL_FAILURE(EXPECT_NE(sum(bad), ncclSuccess), "another device");
  EXPECT_EQ(network.api().abort(good), ncclSuccess);
  EXPECT_EQ(network.api().abort(bad), ncclSuccess);
  EXPECT_EQ(cuda.free(memory), cudaSuccess);
  EXPECT_EQ(cuda.stream_destroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace cadre
