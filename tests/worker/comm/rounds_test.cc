// Rounds: every schedule, played round by round with the messages of a round in any order, gives
// what it says, and no round waits for a later one.
#include "worker/comm/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/worker/comm/schedule_simulator.h"
#include "worker/comm/schedule.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

constexpr RandomStream kTest = RandomStream::kTest;
constexpr Algorithm kFlat[] = {Algorithm::kRing, Algorithm::kButterfly,
                               Algorithm::kHalvingDoubling};

uint64_t Draw(uint64_t seed, uint64_t a, uint64_t b) { return RandomBits(seed, kTest, a, b); }

// Messages with both their ends.
struct Message {
  int round = 0;
  size_t from = 0;
  size_t to = 0;
  Interval interval;
  bool sum = false;
  // Place in the receiver's list.
  size_t step = 0;
};

std::vector<Message> MessagesOf(const std::vector<Schedule>& schedules,
                                const std::vector<std::vector<int>>& rounds) {
  std::map<std::pair<size_t, size_t>, std::vector<Message>> sent;
  for (size_t m = 0; m < schedules.size(); ++m) {
    for (size_t i = 0; i < schedules[m].size(); ++i) {
      const ScheduleStep& step = schedules[m][i];
      const auto peer = static_cast<size_t>(step.peer);
      if (step.kind == Kind::kSend)
        sent[{m, peer}].push_back({rounds[m][i], m, peer, step.interval});
    }
  }
  std::vector<Message> all;
  std::map<std::pair<size_t, size_t>, size_t> received;
  for (size_t m = 0; m < schedules.size(); ++m) {
    for (size_t i = 0; i < schedules[m].size(); ++i) {
      const ScheduleStep& step = schedules[m][i];
      if (step.kind == Kind::kSend) continue;
      const std::pair<size_t, size_t> pair = {static_cast<size_t>(step.peer), m};
      Message message = sent[pair].at(received[pair]++);
      EXPECT_EQ(message.round, rounds[m][i]) << "ends differ";
      EXPECT_EQ(message.interval, step.interval);
      message.sum = step.kind == Kind::kReceiveSum;
      message.step = i;
      all.push_back(message);
    }
  }
  return all;
}

// As a transport on a device does it, but with the messages of a round one after the other.
void PlayRounds(const std::vector<Schedule>& schedules, std::vector<MemberData>& data,
                uint64_t seed) {
  const std::vector<std::vector<int>> rounds = RoundsOf(schedules);
  std::vector<Message> messages = MessagesOf(schedules, rounds);
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < messages.size(); ++i) order.emplace_back(Draw(seed, 3, i), i);
  std::sort(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return messages[a.second].round < messages[b.second].round;
  });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::vector<std::pair<const Message*, MemberData>> arrived;
    for (; end < order.size() &&
           messages[order[end].second].round == messages[order[begin].second].round;
         ++end) {
      const Message& message = messages[order[end].second];
      const MemberData& from = data[message.from];
      MemberData values(from.begin() + message.interval.begin, from.begin() + message.interval.end);
      if (message.sum) {
        arrived.emplace_back(&message, std::move(values));
      } else {
        std::copy(values.begin(), values.end(), data[message.to].begin() + message.interval.begin);
      }
    }
    std::sort(arrived.begin(), arrived.end(),
              [](const auto& a, const auto& b) { return a.first->step < b.first->step; });
    for (const auto& [message, values] : arrived) {
      for (size_t i = 0; i < values.size(); ++i) {
        data[message->to][static_cast<size_t>(message->interval.begin) + i] += values[i];
      }
    }
  }
}

// What a transport on a device asks for.
void ExpectOrdered(const Schedule& schedule, const std::vector<int>& rounds) {
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].after == ScheduleStep::kNone) continue;
    const auto after = static_cast<size_t>(schedule[i].after);
    const bool beside =
        schedule[i].kind == Kind::kReceiveSum && schedule[after].kind == Kind::kSend;
    EXPECT_GE(rounds[i], rounds[after] + (beside ? 0 : 1));
  }
}

std::vector<MemberData> RandomData(int members, int64_t elements, uint64_t seed) {
  std::vector<MemberData> data(static_cast<size_t>(members));
  for (size_t m = 0; m < data.size(); ++m) {
    for (int64_t i = 0; i < elements; ++i) {
      data[m].push_back(Draw(seed, m + 10, static_cast<uint64_t>(i)));
    }
  }
  return data;
}

MemberData SumOfAll(const std::vector<MemberData>& data) {
  MemberData sum(data.front().size());
  for (const MemberData& each : data) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += each[i];
  }
  return sum;
}

// Uneven, some empty, with gaps, in any order.
std::vector<Interval> RandomPieces(uint64_t seed, int64_t elements, int members) {
  std::vector<int64_t> borders = {0, elements};
  for (int i = 1; i < members + 2; ++i) {
    const uint64_t draw = Draw(seed, 5, static_cast<uint64_t>(i));
    borders.push_back(
        draw % 4 == 0 ? borders.back()
                      : static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(elements + 1)));
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Interval> intervals;
  for (size_t i = 1; i < borders.size(); ++i) intervals.push_back({borders[i - 1], borders[i]});
  std::rotate(intervals.begin(), intervals.begin() + (seed % intervals.size()), intervals.end());
  intervals.resize(static_cast<size_t>(members));
  return intervals;
}

template <typename Make>
std::vector<Schedule> OfAll(int members, const Make& make) {
  std::vector<Schedule> schedules;
  for (int index = 0; index < members; ++index) schedules.push_back(make(index));
  const std::vector<std::vector<int>> rounds = RoundsOf(schedules);
  for (size_t m = 0; m < schedules.size(); ++m) ExpectOrdered(schedules[m], rounds[m]);
  return schedules;
}

class RoundsTest : public ::testing::TestWithParam<int> {
 protected:
  const int members_ = GetParam();
};

TEST_P(RoundsTest, AllReduce) {
  for (const Algorithm algorithm : kFlat) {
    for (const int64_t elements : {0, 1, 2, 7, 64}) {
      for (uint64_t seed = 0; seed < 5; ++seed) {
        std::vector<MemberData> data = RandomData(members_, elements, seed);
        const MemberData sum = SumOfAll(data);
        PlayRounds(OfAll(members_,
                         [&](int index) {
                           return AllReduceSchedule(algorithm, index, members_, elements);
                         }),
                   data, seed);
        for (const MemberData& each : data) {
          ASSERT_EQ(each, sum) << AlgorithmName(algorithm) << " of " << elements;
        }
      }
    }
  }
}

TEST_P(RoundsTest, HierarchicalAllReduce) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<uint64_t> hosts;
    for (int m = 0; m < members_; ++m) {
      hosts.push_back(seed % 2 == 0 ? static_cast<uint64_t>(m / 2)
                                    : Draw(seed, 9, static_cast<uint64_t>(m)) % 3);
    }
    std::vector<MemberData> data = RandomData(members_, 37, seed);
    const MemberData sum = SumOfAll(data);
    PlayRounds(OfAll(members_,
                     [&](int index) {
                       return HierarchicalAllReduceSchedule(index, hosts, 37,
                                                            Algorithm::kHalvingDoubling);
                     }),
               data, seed);
    for (const MemberData& each : data) ASSERT_EQ(each, sum) << seed;
  }
}

TEST_P(RoundsTest, ReduceScatterAndAllGather) {
  constexpr int64_t kElements = 53;
  for (const Algorithm algorithm : kFlat) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
      const std::vector<Interval> intervals = RandomPieces(seed, kElements, members_);
      std::vector<MemberData> data = RandomData(members_, kElements, seed);
      const MemberData sum = SumOfAll(data);
      PlayRounds(
          OfAll(members_,
                [&](int index) { return ReduceScatterSchedule(algorithm, index, intervals); }),
          data, seed);
      for (size_t m = 0; m < data.size(); ++m) {
        const Interval own = intervals[m];
        ASSERT_TRUE(
            std::equal(sum.begin() + own.begin, sum.begin() + own.end, data[m].begin() + own.begin))
            << AlgorithmName(algorithm) << " " << seed << " " << m;
        // What is not the own interval must not matter.
        std::fill(data[m].begin(), data[m].begin() + own.begin, 0x5555);
        std::fill(data[m].begin() + own.end, data[m].end(), 0x5555);
      }
      PlayRounds(OfAll(members_,
                       [&](int index) { return AllGatherSchedule(algorithm, index, intervals); }),
                 data, seed + 1);
      for (const MemberData& each : data) {
        for (const Interval& interval : intervals) {
          ASSERT_TRUE(std::equal(sum.begin() + interval.begin, sum.begin() + interval.end,
                                 each.begin() + interval.begin))
              << AlgorithmName(algorithm) << " " << seed;
        }
      }
    }
  }
}

TEST_P(RoundsTest, Broadcast) {
  for (int root = 0; root < members_; ++root) {
    std::vector<MemberData> data = RandomData(members_, 11, 1);
    const MemberData expected = data[root];
    PlayRounds(
        OfAll(members_, [&](int index) { return BroadcastSchedule(index, members_, 11, root); }),
        data, static_cast<uint64_t>(root));
    for (const MemberData& each : data) ASSERT_EQ(each, expected) << root;
  }
}

// Rounds are steps: no more than the table of README.md says, where members are a power of two.
TEST_P(RoundsTest, CountEqualsSteps) {
  const auto rounds_of = [&](const std::vector<Schedule>& schedules) {
    int most = 0;
    for (const std::vector<int>& rounds : RoundsOf(schedules)) {
      for (const int round : rounds) most = std::max(most, round + 1);
    }
    return most;
  };
  const auto all_reduce = [&](Algorithm algorithm) {
    return rounds_of(OfAll(
        members_, [&](int index) { return AllReduceSchedule(algorithm, index, members_, 64); }));
  };
  EXPECT_EQ(all_reduce(Algorithm::kRing), 2 * (members_ - 1));
  const bool power = (members_ & (members_ - 1)) == 0;
  int log2 = 0;
  while (2 << log2 <= members_) ++log2;
  const int folded = power ? 0 : 2;
  EXPECT_EQ(all_reduce(Algorithm::kButterfly), log2 + folded);
  EXPECT_EQ(all_reduce(Algorithm::kHalvingDoubling), 2 * log2 + folded);
}

INSTANTIATE_TEST_SUITE_P(Members, RoundsTest, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11, 16));

TEST(RoundsDeathTest, ReceiveWithoutSend) {
  const std::vector<Schedule> schedules = {{{Kind::kReceive, 1, {0, 1}}}, {}};
  EXPECT_DEATH(RoundsOf(schedules), "no member sends");
}

}  // namespace
}  // namespace cadre
