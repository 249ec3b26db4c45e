// Ranks that disagree about what comes next find out at once, and the error names both sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"

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
Call ReduceScatter(std::vector<int64_t> offsets) {
  return [offsets = std::move(offsets)](Communicator& all) {
    std::vector<float> data(100);
    return all.ReduceScatterSum(data, offsets);
  };
}
Call AllGather(std::vector<int64_t> offsets) {
  return [offsets = std::move(offsets)](Communicator& all) {
    std::vector<float> data(100);
    return all.AllGather(data, offsets);
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
Call InTurn(Call first, Call second) {
  return [=](Communicator& all) {
    const absl::Status status = first(all);
    return status.ok() ? second(all) : status;
  };
}

struct Case {
  std::string name;
  Call one;
  Call other;
  // What the error says of each side.
  std::string of_one;
  std::string of_other;
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
      {"Collective", ReduceScatter({0, 30, 60, 100}), AllGather({0, 30, 60, 100}), "reduce-scatter",
       "all-gather"},
      {"Intervals", AllGather({0, 30, 60, 100}), AllGather({0, 40, 60, 100}), "all-gather",
       "all-gather"},
      {"Broadcast", Broadcast(10), Broadcast(11), "broadcast", "broadcast"},
      {"Order", InTurn(AllReduce(kRing, kFloat, 400), Barrier()),
       InTurn(Barrier(), AllReduce(kRing, kFloat, 400)), "all-reduce", "barrier"},
      {"OneMore", InTurn(Barrier(), Barrier()), InTurn(Barrier(), AllReduce(kRing, kFloat, 400)),
       "barrier", "all-reduce"},
  };
}

class DisagreementTest : public ::testing::TestWithParam<std::tuple<Case, Wire>> {};

TEST_P(DisagreementTest, FailsAndNamesBothSides) {
  const Case& given = std::get<0>(GetParam());
  // Longer than the test may take: it cannot be what ends the wait.
  const Transports group = MakeTransports(std::get<1>(GetParam()), 3, absl::Minutes(10));
  std::vector<absl::Status> statuses(3);
  OnRanks(3, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    Communicator all(*group[i], {0, 1, 2});
    statuses[i] = (rank == 1 ? given.other : given.one)(all);
    // Whoever has got through hears of it at the next call.
    while (statuses[i].ok()) statuses[i] = all.Barrier();
  });
  int found = 0;
  for (const absl::Status& status : statuses) {
    if (status.code() == absl::StatusCode::kInternal) {
      ++found;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(given.of_one), HasSubstr(given.of_other), HasSubstr("rank 1")));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
  EXPECT_GE(found, 1);
}

INSTANTIATE_TEST_SUITE_P(Cases, DisagreementTest,
                         ::testing::Combine(::testing::ValuesIn(Cases()),
                                            ::testing::Values(Wire::kThreads, Wire::kSharedMemory,
                                                              Wire::kTcp)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + WireName(std::get<1>(info.param));
                         });

// Every algorithm against every other, whoever the odd one is: with more than a few ranks the odd
// one's messages may go to somebody who expects nothing of it, and everybody waits for somebody
// else.
class EveryPairTest : public ::testing::TestWithParam<int> {};

TEST_P(EveryPairTest, DetectsAnyDifferingRank) {
  const int ranks = GetParam();
  const std::vector<Call> calls = {
      AllReduce(Algorithm::kRing, DType::kFloat32, 400),
      AllReduce(Algorithm::kButterfly, DType::kFloat32, 400),
      AllReduce(Algorithm::kHalvingDoubling, DType::kFloat32, 400),
      AllReduce(Algorithm::kHierarchical, DType::kFloat32, 400),
      Barrier(),
  };
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  for (size_t usual = 0; usual < calls.size(); ++usual) {
    for (size_t odd = 0; odd < calls.size(); ++odd) {
      if (odd == usual) continue;
      for (int who = 0; who < ranks; ++who) {
        SCOPED_TRACE(::testing::Message() << usual << " but " << odd << " at rank " << who);
        const Transports group = MakeThreadTransports(ranks, absl::Minutes(10));
        std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
        OnRanks(ranks, [&](int rank) {
          const auto i = static_cast<size_t>(rank);
          Communicator all(*group[i], members);
          statuses[i] = calls[rank == who ? odd : usual](all);
          while (statuses[i].ok()) statuses[i] = all.Barrier();
        });
        EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& status) {
          return status.code() == absl::StatusCode::kInternal;
        })) << statuses[0];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryPairTest, ::testing::Values(2, 3, 4, 5));

// Different ideas of who takes part, too.
TEST(DisagreementTest, DifferentMembers) {
  const Transports group = MakeThreadTransports(3, absl::Minutes(10));
  std::vector<absl::Status> statuses(3);
  OnRanks(3, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    Communicator some(*group[i], rank == 0   ? std::vector<int>{0, 1}
                                 : rank == 1 ? std::vector<int>{1, 0}
                                             : std::vector<int>{0, 1, 2});
    while (statuses[i].ok()) statuses[i] = some.Barrier();
  });
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
  EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kInternal;
  }));
}

}  // namespace
}  // namespace cadre
