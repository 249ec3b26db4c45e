// Ranks that make different calls fail immediately, with an error that names both calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "comm/communicator.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Call = std::function<absl::Status(Communicator&)>;

Call AllReduce(Algorithm algorithm, DType type, size_t bytes) {
  return [=](Communicator& all) {
    std::vector<double> data(bytes / sizeof(double));
    return all.AllReduce(algorithm, type, std::as_writable_bytes(std::span(data)));
  };
}
Call ReduceScatter(std::vector<Interval> intervals) {
  return [=](Communicator& all) {
    std::vector<float> data(100);
    return all.ReduceScatter(Algorithm::kRing, DType::kFloat32,
                             std::as_writable_bytes(std::span(data)), intervals);
  };
}
Call AllGather(std::vector<Interval> intervals) {
  return [=](Communicator& all) {
    std::vector<float> data(100);
    return all.AllGather(Algorithm::kRing, DType::kFloat32, std::as_writable_bytes(std::span(data)),
                         intervals);
  };
}
Call Broadcast(size_t bytes) {
  return [=](Communicator& all) {
    std::vector<std::byte> data(bytes);
    return all.Broadcast(data, 0);
  };
}
Call Barrier() {
  return [](Communicator& all) { return all.Barrier(); };
}
Call InSequence(Call first, Call second) {
  return [=](Communicator& all) {
    const absl::Status status = first(all);
    return status.ok() ? second(all) : status;
  };
}

struct Case {
  std::string name;
  // The call of ranks 0 and 2, and the different call of rank 1.
  Call call;
  Call other;
  // Descriptions of both in the error.
  std::string text;
  std::string other_text;
};

std::vector<Case> Cases() {
  constexpr Algorithm kRing = Algorithm::kRing;
  constexpr DType kFloat = DType::kFloat32;
  return {
      {"Length", AllReduce(kRing, kFloat, 400), AllReduce(kRing, kFloat, 480), "100 float32",
       "120 float32"},
      {"NoLength", AllReduce(kRing, kFloat, 400), AllReduce(kRing, kFloat, 0), "100 float32",
       "0 float32"},
      {"Type", AllReduce(kRing, kFloat, 400), AllReduce(kRing, DType::kFloat16, 200), "100 float32",
       "100 float16"},
      {"Algorithm", AllReduce(kRing, kFloat, 400), AllReduce(Algorithm::kButterfly, kFloat, 400),
       "by ring", "by butterfly"},
      {"Collective", ReduceScatter({{0, 30}, {30, 60}, {60, 100}}),
       AllGather({{0, 30}, {30, 60}, {60, 100}}), "reduce-scatter", "all-gather"},
      {"Intervals", AllGather({{0, 30}, {30, 60}, {60, 100}}),
       AllGather({{0, 40}, {40, 60}, {60, 100}}), "all-gather", "all-gather"},
      {"Broadcast", Broadcast(10), Broadcast(11), "broadcast", "broadcast"},
      {"Order", InSequence(AllReduce(kRing, kFloat, 400), Barrier()),
       InSequence(Barrier(), AllReduce(kRing, kFloat, 400)), "all-reduce", "barrier"},
      {"OneMore", InSequence(Barrier(), Barrier()),
       InSequence(Barrier(), AllReduce(kRing, kFloat, 400)), "barrier", "all-reduce"},
  };
}

class DisagreementTest : public ::testing::TestWithParam<std::tuple<Case, Wire>> {};

// Longer than the timeout of the test, so it cannot end a wait.
constexpr absl::Duration kTimeout = absl::Minutes(10);

// Calls barriers after `call` until an error, since a rank may complete a call that others do not.
absl::Status ErrorAfter(Communicator comm, const Call& call) {
  absl::Status status = call(comm);
  while (status.ok()) status = comm.Barrier();
  return status;
}

bool AnyIsInternal(const std::vector<absl::Status>& statuses) {
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const absl::Status& status) { return absl::IsInternal(status); });
}

TEST_P(DisagreementTest, FailsAndNamesBothCalls) {
  const Case& given = std::get<0>(GetParam());
  const Transports group = MakeTransports(std::get<1>(GetParam()), 3, kTimeout);
  const auto statuses = StatusesOnRanks(3, [&](int rank) {
    return ErrorAfter({*group[rank], AllRanks(3)}, rank == 1 ? given.other : given.call);
  });
  EXPECT_TRUE(AnyIsInternal(statuses));
  for (const absl::Status& status : statuses) {
    if (absl::IsInternal(status)) {
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(given.text), HasSubstr(given.other_text), HasSubstr("rank 1")));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DisagreementTest,
                         ::testing::Combine(::testing::ValuesIn(Cases()),
                                            ::testing::Values(Wire::kThreads, Wire::kSharedMemory,
                                                              Wire::kTcp)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + WireName(std::get<1>(info.param));
                         });

// Tests every pair of algorithms, with the differing call on each rank in turn. In larger groups
// that rank may send messages to ranks that expect none from it, and all ranks may wait for others.
class EveryPairTest : public ::testing::TestWithParam<int> {};

TEST_P(EveryPairTest, DetectsAnyDifferingRank) {
  const int ranks = GetParam();
  const std::vector<Call> calls = {
      AllReduce(Algorithm::kRing, DType::kFloat32, 400),
      AllReduce(Algorithm::kButterfly, DType::kFloat32, 400),
      AllReduce(Algorithm::kHalvingDoubling, DType::kFloat32, 400),
      Barrier(),
  };
  for (size_t call = 0; call < calls.size(); ++call) {
    for (size_t other = 0; other < calls.size(); ++other) {
      for (int differing = 0; differing < ranks && other != call; ++differing) {
        SCOPED_TRACE(::testing::Message() << call << " but " << other << " at rank " << differing);
        const Transports group = MakeThreadTransports(ranks, kTimeout);
        const auto statuses = StatusesOnRanks(ranks, [&](int rank) {
          return ErrorAfter({*group[rank], AllRanks(ranks)},
                            calls[rank == differing ? other : call]);
        });
        EXPECT_TRUE(AnyIsInternal(statuses)) << statuses[0];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryPairTest, ::testing::Values(2, 3, 4, 5));

TEST(DisagreementTest, DifferentMembers) {
  const Transports group = MakeThreadTransports(3, kTimeout);
  const std::vector<std::vector<int>> members = {{0, 1}, {1, 0}, {0, 1, 2}};
  const auto statuses = StatusesOnRanks(3, [&](int rank) {
    return ErrorAfter({*group[rank], members[rank]}, Barrier());
  });
  EXPECT_TRUE(AnyIsInternal(statuses));
}

}  // namespace
}  // namespace cadre
