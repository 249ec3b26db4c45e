// Schedules, played in memory in thousands of orders: right sums, no hang, nothing read that was
// overwritten, nothing overwritten that was still to be read.
#include "worker/comm/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tests/worker/comm/schedule_simulator.h"

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

std::vector<MemberData> RandomData(std::mt19937_64& dice, int members, int64_t elements) {
  std::vector<MemberData> data(static_cast<size_t>(members));
  for (MemberData& row : data) {
    for (int64_t i = 0; i < elements; ++i) row.push_back(dice());
  }
  return data;
}

MemberData Sum(const std::vector<MemberData>& data) {
  MemberData sum(data[0].size());
  for (const MemberData& row : data) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
  }
  return sum;
}

// None, one, fewer than members, and more.
int64_t RandomElements(std::mt19937_64& dice, int members) {
  const int64_t sizes[] = {0, 1, static_cast<int64_t>(dice() % static_cast<uint64_t>(members)),
                           static_cast<int64_t>(dice() % 70)};
  return sizes[dice() % 4];
}

// Intervals of any size, in any order, some with gaps between them.
std::vector<Interval> RandomPieces(std::mt19937_64& dice, int members, int64_t elements) {
  std::vector<int64_t> borders = {0, elements};
  const bool gaps = dice() % 2 == 0;
  const int intervals = gaps ? 2 * members : members;
  for (int i = 1; i < intervals; ++i) {
    borders.push_back(static_cast<int64_t>(dice() % static_cast<uint64_t>(elements + 1)));
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Interval> all;
  for (size_t i = 1; i < borders.size(); ++i) all.push_back({borders[i - 1], borders[i]});
  if (dice() % 2 == 0) std::shuffle(all.begin(), all.end(), dice);
  all.resize(static_cast<size_t>(members));
  return all;
}

class AlgorithmTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(AlgorithmTest, AllReduce) {
  std::mt19937_64 dice(1);
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int round = 0; round < 40; ++round) {
      const int64_t elements = RandomElements(dice, members);
      SCOPED_TRACE(testing::Message() << elements << " among " << members << ", " << round);
      std::vector<MemberData> data = RandomData(dice, members, elements);
      const MemberData sum = Sum(data);
      const auto schedules = Schedules(members, [&](int index) {
        return AllReduceSchedule(GetParam(), index, members, elements);
      });
      ASSERT_EQ(Play(schedules, data, dice()).error, "");
      for (const MemberData& row : data) ASSERT_EQ(row, sum);
    }
  }
}

TEST_P(AlgorithmTest, ReduceScatter) {
  std::mt19937_64 dice(2);
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int round = 0; round < 40; ++round) {
      const int64_t elements = RandomElements(dice, members);
      SCOPED_TRACE(testing::Message() << elements << " among " << members << ", " << round);
      const std::vector<Interval> intervals = RandomPieces(dice, members, elements);
      std::vector<MemberData> data = RandomData(dice, members, elements);
      const MemberData sum = Sum(data);
      const auto schedules = Schedules(
          members, [&](int index) { return ReduceScatterSchedule(GetParam(), index, intervals); });
      ASSERT_EQ(Play(schedules, data, dice()).error, "");
      for (size_t member = 0; member < intervals.size(); ++member) {
        for (int64_t i = intervals[member].begin; i < intervals[member].end; ++i) {
          ASSERT_EQ(data[member][i], sum[i]);
        }
      }
    }
  }
}

TEST_P(AlgorithmTest, AllGather) {
  std::mt19937_64 dice(3);
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int round = 0; round < 40; ++round) {
      const int64_t elements = RandomElements(dice, members);
      SCOPED_TRACE(testing::Message() << elements << " among " << members << ", " << round);
      const std::vector<Interval> intervals = RandomPieces(dice, members, elements);
      std::vector<MemberData> data = RandomData(dice, members, elements);
      std::vector<MemberData> expected = data;
      for (size_t owner = 0; owner < intervals.size(); ++owner) {
        for (MemberData& row : expected) {
          std::copy(data[owner].begin() + intervals[owner].begin,
                    data[owner].begin() + intervals[owner].end,
                    row.begin() + intervals[owner].begin);
        }
      }
      const auto schedules = Schedules(
          members, [&](int index) { return AllGatherSchedule(GetParam(), index, intervals); });
      ASSERT_EQ(Play(schedules, data, dice()).error, "");
      // Also that what is in no interval stays as it was.
      for (size_t member = 0; member < data.size(); ++member) {
        ASSERT_EQ(data[member], expected[member]) << member;
      }
    }
  }
}

TEST_P(AlgorithmTest, HierarchicalAllReduce) {
  std::mt19937_64 dice(4);
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int round = 0; round < 40; ++round) {
      const int64_t elements = RandomElements(dice, members);
      SCOPED_TRACE(testing::Message() << elements << " among " << members << ", " << round);
      // Every second time the same number on each host, if there is one that goes.
      const uint64_t wanted = 1 + dice() % 5;
      const bool equal = round % 2 == 0 && static_cast<uint64_t>(members) % wanted == 0;
      std::vector<uint64_t> hosts;
      for (int i = 0; i < members; ++i) {
        hosts.push_back(1000 + (equal ? static_cast<uint64_t>(i) % wanted : dice() % wanted) * 77);
      }
      if (equal) std::shuffle(hosts.begin(), hosts.end(), dice);
      std::vector<MemberData> data = RandomData(dice, members, elements);
      const MemberData sum = Sum(data);
      const auto schedules = Schedules(members, [&](int index) {
        return HierarchicalAllReduceSchedule(index, hosts, elements, GetParam());
      });
      ASSERT_EQ(Play(schedules, data, dice()).error, "");
      for (const MemberData& row : data) ASSERT_EQ(row, sum);
    }
  }
}

std::string Name(const ::testing::TestParamInfo<Algorithm>& info) {
  std::string name(AlgorithmName(info.param));
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Algorithms, AlgorithmTest, ::testing::ValuesIn(kAlgorithms), Name);

TEST(BroadcastTest, AllMembersReceiveRootData) {
  std::mt19937_64 dice(5);
  for (int members = 1; members <= kMaxMembers; ++members) {
    for (int root = 0; root < members; ++root) {
      const int64_t elements = RandomElements(dice, members);
      std::vector<MemberData> data = RandomData(dice, members, elements);
      const MemberData whole = data[root];
      const auto schedules = Schedules(
          members, [&](int index) { return BroadcastSchedule(index, members, elements, root); });
      ASSERT_EQ(Play(schedules, data, dice()).error, "");
      for (const MemberData& row : data) ASSERT_EQ(row, whole);
    }
  }
}

TEST(BarrierTest, WaitsForAllMembers) {
  for (int members = 1; members <= kMaxMembers; ++members) {
    const auto schedules =
        Schedules(members, [&](int index) { return BarrierSchedule(index, members); });
    std::vector<MemberData> data(static_cast<size_t>(members));
    EXPECT_EQ(Play(schedules, data, 1).error, "");
    for (int absent = 0; members > 1 && absent < members; ++absent) {
      const Played played = Play(schedules, data, static_cast<uint64_t>(absent), absent);
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

// Neighbouring intervals travel together: one message a step, whatever the number of members.
TEST(MessagesTest, AdjacentIntervalsShareMessage) {
  for (const int members : {2, 4, 8, 16}) {
    int doublings = 0;
    while (1 << doublings < members) ++doublings;
    for (int index = 0; index < members; ++index) {
      const auto messages = [&](Algorithm algorithm) {
        return WorkOf(AllReduceSchedule(algorithm, index, members, 480)).messages;
      };
      EXPECT_EQ(messages(Algorithm::kRing), 2 * (members - 1));
      EXPECT_EQ(messages(Algorithm::kButterfly), doublings);
      EXPECT_EQ(messages(Algorithm::kHalvingDoubling), 2 * doublings);
      const std::vector<Interval> intervals = EqualIntervals(480, members);
      EXPECT_EQ(
          WorkOf(ReduceScatterSchedule(Algorithm::kHalvingDoubling, index, intervals)).messages,
          doublings);
    }
  }
}

// Members that are wrong about what comes are found.
TEST(SimulatorTest, DetectsMismatchedMessages) {
  auto schedules =
      Schedules(3, [](int index) { return AllReduceSchedule(Algorithm::kRing, index, 3, 9); });
  EXPECT_EQ(CheckMessages(schedules), "");
  schedules[1][1].interval.end -= 1;
  EXPECT_NE(CheckMessages(schedules), "");
  schedules[1].pop_back();
  EXPECT_NE(CheckMessages(schedules), "");
}

bool SomeOrderGoesWrong(const std::vector<Schedule>& schedules, int64_t elements) {
  std::mt19937_64 dice(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<MemberData> data = RandomData(dice, std::ssize(schedules), elements);
    const MemberData sum = Sum(data);
    if (!Play(schedules, data, dice()).error.empty()) return true;
    for (const MemberData& row : data) {
      if (row != sum) return true;
    }
  }
  return false;
}

// Every wait of what is passed on is needed, and so is every wait for what is being sent; the
// simulator is unfriendly enough to show it. Receives that wait for receives keep the order of
// sums, which whole numbers do not show, or stand for others in what waits for them.
TEST(SimulatorTest, DetectsMissingDependency) {
  constexpr int64_t kElements = 24;
  for (const Algorithm algorithm : kAlgorithms) {
    const auto schedules =
        Schedules(4, [&](int index) { return AllReduceSchedule(algorithm, index, 4, kElements); });
    EXPECT_FALSE(SomeOrderGoesWrong(schedules, kElements));
    for (size_t at = 0; at < schedules[0].size(); ++at) {
      const ScheduleStep& step = schedules[0][at];
      if (step.after == ScheduleStep::kNone) continue;
      const bool sends = step.kind == Kind::kSend;
      const bool waits_for_send = schedules[0][step.after].kind == Kind::kSend;
      if (!sends && !waits_for_send) continue;
      auto broken = schedules;
      broken[0][at].after = ScheduleStep::kNone;
      EXPECT_TRUE(SomeOrderGoesWrong(broken, kElements)) << AlgorithmName(algorithm) << " " << at;
    }
  }
}

// Two members that overwrite what they send need a link that holds something.
TEST(SimulatorTest, DetectsDeadlock) {
  auto schedules =
      Schedules(2, [](int index) { return AllReduceSchedule(Algorithm::kRing, index, 2, 8); });
  // Each waits to send for what the other sends.
  for (Schedule& schedule : schedules) schedule[0].after = 1;
  std::vector<MemberData> data(2, MemberData(8));
  EXPECT_NE(Play(schedules, data, 1).error, "");
}

TEST(EqualIntervalsTest, CoverDataInOrder) {
  for (const int64_t elements : {0, 1, 5, 1000}) {
    for (int members = 1; members < 9; ++members) {
      const std::vector<Interval> intervals = EqualIntervals(elements, members);
      ASSERT_EQ(intervals.size(), static_cast<size_t>(members));
      EXPECT_EQ(intervals.front().begin, 0);
      EXPECT_EQ(intervals.back().end, elements);
      for (size_t i = 1; i < intervals.size(); ++i)
        EXPECT_EQ(intervals[i].begin, intervals[i - 1].end);
      for (const Interval& interval : intervals) {
        EXPECT_GE(interval.size(), elements / members);
        EXPECT_LE(interval.size(), elements / members + 1);
      }
    }
  }
}

}  // namespace
}  // namespace cadre
