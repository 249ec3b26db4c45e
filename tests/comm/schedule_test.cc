// Schedules, executed in memory in thousands of orders, element by element and by rounds: correct
// sums, no deadlock, and no data that is overwritten too early.
#include "comm/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <random>
#include <tuple>

#include "comm/rounds.h"
#include "tests/comm/random_intervals.h"
#include "tests/comm/schedule_simulator.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

constexpr int kMaxMembers = 17;
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kButterfly,
                                     Algorithm::kHalvingDoubling};

std::vector<Schedule> Schedules(int members, const std::function<Schedule(int index)>& make) {
  std::vector<Schedule> schedules;
  for (int index = 0; index < members; ++index) schedules.push_back(make(index));
  return schedules;
}

std::vector<MemberData> RandomData(std::mt19937_64& random, int members, int64_t elements) {
  std::vector<MemberData> data(members, MemberData(elements));
  for (MemberData& row : data) std::generate(row.begin(), row.end(), std::ref(random));
  return data;
}

MemberData Sum(const std::vector<MemberData>& data) {
  MemberData sum(data[0].size());
  for (const MemberData& row : data) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
  }
  return sum;
}

enum class Execution { kElements, kRounds };

class AlgorithmTest : public ::testing::TestWithParam<std::tuple<Algorithm, Execution>> {
 protected:
  // Calls `test` for groups of 1 to kMaxMembers members with random data: no elements, one, fewer
  // than members, or more.
  void ForRandomData(const std::function<void(int members, int64_t elements)>& test) {
    for (int members = 1; members <= kMaxMembers; ++members) {
      for (int round = 0; round < 40; ++round) {
        const uint64_t sizes[] = {0, 1, random_() % members, random_() % 70};
        const int64_t elements = sizes[random_() % 4];
        SCOPED_TRACE(testing::Message() << elements << " among " << members << ", " << round);
        data_ = RandomData(random_, members, elements);
        test(members, elements);
        if (HasFatalFailure()) return;
      }
    }
  }

  void Execute(const std::function<Schedule(int index)>& make) {
    const auto schedules = Schedules(std::ssize(data_), make);
    if (std::get<1>(GetParam()) == Execution::kElements) {
      ASSERT_EQ(Play(schedules, data_, random_()).error, "");
    } else {
      PlayRounds(schedules, data_, random_());
    }
  }

  const Algorithm algorithm_ = std::get<0>(GetParam());
  std::mt19937_64 random_{1};
  std::vector<MemberData> data_;
};

TEST_P(AlgorithmTest, AllReduce) {
  ForRandomData([&](int members, int64_t elements) {
    const MemberData sum = Sum(data_);
    Execute([&](int index) { return AllReduceSchedule(algorithm_, index, members, elements); });
    for (const MemberData& row : data_) ASSERT_EQ(row, sum);
  });
}

TEST_P(AlgorithmTest, ReduceScatter) {
  ForRandomData([&](int members, int64_t elements) {
    const auto intervals = RandomIntervals(random_, elements, members);
    const MemberData sum = Sum(data_);
    Execute([&](int index) { return ReduceScatterSchedule(algorithm_, index, intervals); });
    for (int member = 0; member < members; ++member) {
      for (int64_t i = intervals[member].begin; i < intervals[member].end; ++i) {
        ASSERT_EQ(data_[member][i], sum[i]);
      }
    }
  });
}

// Elements outside of all intervals do not change.
TEST_P(AlgorithmTest, AllGather) {
  ForRandomData([&](int members, int64_t elements) {
    const auto intervals = RandomIntervals(random_, elements, members);
    std::vector<MemberData> expected = data_;
    for (int owner = 0; owner < members; ++owner) {
      const auto [begin, end] = intervals[owner];
      for (MemberData& row : expected) {
        std::copy(data_[owner].begin() + begin, data_[owner].begin() + end, row.begin() + begin);
      }
    }
    Execute([&](int index) { return AllGatherSchedule(algorithm_, index, intervals); });
    for (int member = 0; member < members; ++member) ASSERT_EQ(data_[member], expected[member]);
  });
}

// The schedule of a broadcast does not depend on the algorithm.
TEST_P(AlgorithmTest, Broadcast) {
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int root = 0; root < members; ++root) {
      data_ = RandomData(random_, members, root % 12);
      const MemberData expected = data_[root];
      Execute([&](int index) { return BroadcastSchedule(index, members, root % 12, root); });
      for (const MemberData& row : data_) ASSERT_EQ(row, expected);
    }
  }
}

std::string Name(const ::testing::TestParamInfo<std::tuple<Algorithm, Execution>>& info) {
  std::string name(AlgorithmName(std::get<0>(info.param)));
  std::erase(name, '-');
  return name + (std::get<1>(info.param) == Execution::kElements ? "ByElement" : "ByRound");
}
INSTANTIATE_TEST_SUITE_P(Algorithms, AlgorithmTest,
                         ::testing::Combine(::testing::ValuesIn(kAlgorithms),
                                            ::testing::Values(Execution::kElements,
                                                              Execution::kRounds)),
                         Name);

TEST(BarrierTest, WaitsForAllMembers) {
  for (int members = 1; members <= kMaxMembers; ++members) {
    const auto schedules =
        Schedules(members, [&](int index) { return BarrierSchedule(index, members); });
    std::vector<MemberData> data(members);
    EXPECT_EQ(Play(schedules, data, 1).error, "");
    for (int absent = 0; members > 1 && absent < members; ++absent) {
      const Played played = Play(schedules, data, absent, absent);
      EXPECT_EQ(std::count(played.finished.begin(), played.finished.end(), true), 0)
          << absent << " of " << members;
    }
  }
}

// The documented order: interval k is ((x[k+1] + x[k+2]) + ...) + x[k].
TEST(RingTest, OrderOfAdditions) {
  const std::vector<Interval> intervals = EqualIntervals(40, 4);
  for (int index = 0; index < 4; ++index) {
    const Schedule schedule = ReduceScatterSchedule(Algorithm::kRing, index, intervals);
    ASSERT_EQ(schedule.size(), 6U);
    for (int step = 0; step < 3; ++step) {
      const ScheduleStep& send = schedule[2 * step];
      const ScheduleStep& receive = schedule[2 * step + 1];
      EXPECT_EQ(send.kind, Kind::kSend);
      EXPECT_EQ(send.peer, (index + 1) % 4);
      EXPECT_EQ(send.interval, intervals[(index + 7 - step) % 4]);
      EXPECT_EQ(send.after, step == 0 ? ScheduleStep::kNone : 2 * step - 1);
      EXPECT_EQ(receive.kind, Kind::kReceiveSum);
      EXPECT_EQ(receive.peer, (index + 3) % 4);
      EXPECT_EQ(receive.interval, intervals[(index + 6 - step) % 4]);
    }
  }
}

// Adjacent intervals are sent as one message, so each step has one message and one round for any
// number of members.
TEST(StepsTest, OneMessageAndRoundPerStep) {
  for (int members = 1; members <= kMaxMembers; ++members) {
    const unsigned count = members;
    const int doublings = std::bit_width(count) - 1;
    const bool power_of_two = 1 << doublings == members;
    const int extra = power_of_two ? 0 : 2;
    const auto expect_steps = [&](Algorithm algorithm, int steps) {
      const auto schedules = Schedules(
          members, [&](int index) { return AllReduceSchedule(algorithm, index, members, 480); });
      int rounds = 0;
      for (const std::vector<int>& own : RoundsOf(schedules)) {
        for (const int round : own) rounds = std::max(rounds, round + 1);
      }
      EXPECT_EQ(rounds, steps) << AlgorithmName(algorithm) << " among " << members;
      if (!power_of_two) return;
      for (const Schedule& schedule : schedules) EXPECT_EQ(WorkOf(schedule).messages, steps);
    };
    expect_steps(Algorithm::kRing, 2 * (members - 1));
    expect_steps(Algorithm::kButterfly, doublings + extra);
    expect_steps(Algorithm::kHalvingDoubling, 2 * doublings + extra);
  }
}

TEST(RoundsDeathTest, ReceiveWithoutSend) {
  const std::vector<Schedule> schedules = {{{Kind::kReceive, 1, {0, 1}}}, {}};
  EXPECT_DEATH(RoundsOf(schedules), "no member sends");
}

TEST(SimulatorTest, DetectsMismatchedMessages) {
  auto schedules =
      Schedules(3, [](int index) { return AllReduceSchedule(Algorithm::kRing, index, 3, 9); });
  EXPECT_EQ(CheckMessages(schedules), "");
  schedules[1][1].interval.end -= 1;
  EXPECT_NE(CheckMessages(schedules), "");
  schedules[1].pop_back();
  EXPECT_NE(CheckMessages(schedules), "");
}

bool FailsInSomeOrder(const std::vector<Schedule>& schedules, int64_t elements) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<MemberData> data = RandomData(random, std::ssize(schedules), elements);
    const MemberData sum = Sum(data);
    if (!Play(schedules, data, random()).error.empty()) return true;
    if (std::any_of(data.begin(), data.end(), [&](const auto& row) { return row != sum; })) {
      return true;
    }
  }
  return false;
}

// Every dependency of a send, and every dependency on a send, is necessary: without it the
// simulator finds an order with a wrong result. Dependencies between receives determine the order
// of additions, which does not change sums of integers, or are chained for later steps.
TEST(SimulatorTest, DetectsMissingDependency) {
  constexpr int64_t kElements = 24;
  for (const Algorithm algorithm : kAlgorithms) {
    const auto schedules =
        Schedules(4, [&](int index) { return AllReduceSchedule(algorithm, index, 4, kElements); });
    EXPECT_FALSE(FailsInSomeOrder(schedules, kElements));
    for (size_t at = 0; at < schedules[0].size(); ++at) {
      const ScheduleStep& step = schedules[0][at];
      if (step.after == ScheduleStep::kNone) continue;
      if (step.kind != Kind::kSend && schedules[0][step.after].kind != Kind::kSend) continue;
      auto broken = schedules;
      broken[0][at].after = ScheduleStep::kNone;
      EXPECT_TRUE(FailsInSomeOrder(broken, kElements)) << AlgorithmName(algorithm) << " " << at;
    }
  }
}

// Each member waits for the message of the other before it sends.
TEST(SimulatorTest, DetectsDeadlock) {
  auto schedules =
      Schedules(2, [](int index) { return AllReduceSchedule(Algorithm::kRing, index, 2, 8); });
  for (Schedule& schedule : schedules) schedule[0].after = 1;
  std::vector<MemberData> data(2, MemberData(8));
  EXPECT_NE(Play(schedules, data, 1).error, "");
}

TEST(EqualIntervalsTest, CoverDataInOrder) {
  for (const int64_t elements : {0, 1, 5, 1000}) {
    for (int members = 1; members < 9; ++members) {
      const std::vector<Interval> intervals = EqualIntervals(elements, members);
      ASSERT_EQ(std::ssize(intervals), members);
      EXPECT_EQ(intervals.back().end, elements);
      for (int i = 0; i < members; ++i) {
        EXPECT_EQ(intervals[i].begin, i > 0 ? intervals[i - 1].end : 0);
        EXPECT_GE(intervals[i].size(), elements / members);
        EXPECT_LE(intervals[i].size(), elements / members + 1);
      }
    }
  }
}

}  // namespace
}  // namespace cadre
