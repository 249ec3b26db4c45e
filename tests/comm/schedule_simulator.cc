#include "tests/comm/schedule_simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/rounds.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

// The messages from one member to another: positions of their sends and receives.
struct Pair {
  int from = 0;
  int to = 0;
  std::vector<int> sends;
  std::vector<int> receives;
};

std::vector<Pair> FindPairs(const std::vector<Schedule>& schedules) {
  std::map<std::pair<int, int>, Pair> pairs;
  for (int member = 0; member < std::ssize(schedules); ++member) {
    for (int at = 0; at < std::ssize(schedules[member]); ++at) {
      const ScheduleStep& step = schedules[member][at];
      const bool sends = step.kind == Kind::kSend;
      const auto key = sends ? std::pair(member, step.peer) : std::pair(step.peer, member);
      Pair& pair = pairs[key];
      std::tie(pair.from, pair.to) = key;
      (sends ? pair.sends : pair.receives).push_back(at);
    }
  }
  std::vector<Pair> found;
  for (auto& [key, pair] : pairs) found.push_back(std::move(pair));
  return found;
}

class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, std::vector<MemberData>& data, uint64_t seed,
             int absent)
      : schedules_(schedules), data_(data), random_(seed), absent_(absent) {
    for (const Schedule& schedule : schedules) progress_.emplace_back(schedule.size());
    for (Pair& pair : FindPairs(schedules)) {
      ends_.push_back({links_.size(), true});
      ends_.push_back({links_.size(), false});
      links_.push_back({std::move(pair)});
    }
    // A link holds at least one element in flight.
    const int64_t capacities[] = {1, 2, 7, 1000};
    capacity_ = capacities[random_() % 4];
    max_move_ = random_() % 2 == 0 ? 1 : 1 + random_() % 9;
  }

  Played Run() {
    Shuffle();
    while (Turn()) {
    }
    Played played;
    for (size_t member = 0; member < schedules_.size(); ++member) {
      played.finished.push_back(true);
      for (size_t at = 0; at < schedules_[member].size(); ++at) {
        if (progress_[member][at].complete) continue;
        played.finished.back() = false;
        if (!played.error.empty()) continue;
        played.error = absl::StrCat("member ", member, ", step ", at, " with ",
                                    schedules_[member][at].peer, " does not complete");
      }
    }
    return played;
  }

 private:
  struct Progress {
    int64_t done = 0;
    bool complete = false;
  };
  struct Link {
    Pair pair;
    size_t sent = 0;
    size_t received = 0;
    std::deque<uint64_t> in_flight;
    // Number of messages whose headers were sent.
    size_t headers = 0;
  };
  struct End {
    size_t link = 0;
    bool sends = false;
  };

  // Changes the order in which ends are tried. The first end that can move does so until the next
  // shuffle, so some members run far ahead.
  void Shuffle() {
    std::shuffle(ends_.begin(), ends_.end(), random_);
    until_shuffle_ = 1 + random_() % 40;
  }

  bool Turn() {
    if (until_shuffle_-- == 0) Shuffle();
    return std::any_of(ends_.begin(), ends_.end(), [this](const End& end) {
      return end.sends ? Send(links_[end.link]) : Receive(links_[end.link]);
    });
  }

  // Number of elements that the dependency of the step permits to move.
  int64_t Allowed(int member, const ScheduleStep& step) const {
    if (IsUnblocked(member, step)) return step.interval.size();
    const Interval& before = schedules_[member][step.after].interval;
    const int64_t passed = before.begin + progress_[member][step.after].done;
    if (step.interval.begin < before.begin || step.interval.begin >= passed) return 0;
    return std::min(step.interval.size(), passed - step.interval.begin);
  }
  bool IsUnblocked(int member, const ScheduleStep& step) const {
    return step.after == ScheduleStep::kNone || progress_[member][step.after].complete;
  }
  // Moves elements of a step, at most `limit`. Returns false if none can move.
  template <typename MoveElement>
  bool Move(int member, int at, int64_t limit, size_t& finished, const MoveElement& move) {
    const ScheduleStep& step = schedules_[member][at];
    Progress& progress = progress_[member][at];
    if (step.interval.size() == 0) {
      if (!IsUnblocked(member, step)) return false;
    } else {
      const int64_t possible = std::min(Allowed(member, step) - progress.done, limit);
      const int64_t attempted = 1 + random_() % max_move_;
      const int64_t count = std::min(possible, attempted);
      if (count <= 0) return false;
      for (int64_t i = 0; i < count; ++i) {
        move(data_[member].at(step.interval.begin + progress.done++));
      }
    }
    if (progress.done == step.interval.size()) {
      progress.complete = true;
      ++finished;
    }
    return true;
  }

  bool Send(Link& link) {
    const int member = link.pair.from;
    if (member == absent_ || link.sent == link.pair.sends.size()) return false;
    const int at = link.pair.sends[link.sent];
    const bool begins = progress_[member][at].done == 0;
    const bool moved = Move(member, at, capacity_ - std::ssize(link.in_flight), link.sent,
                            [&](uint64_t element) { link.in_flight.push_back(element); });
    if (moved && begins) ++link.headers;
    return moved;
  }

  bool Receive(Link& link) {
    const int member = link.pair.to;
    if (member == absent_ || link.received == link.pair.receives.size()) return false;
    if (link.headers <= link.received) return false;
    const int at = link.pair.receives[link.received];
    const bool sums = schedules_[member][at].kind == Kind::kReceiveSum;
    return Move(member, at, std::ssize(link.in_flight), link.received, [&](uint64_t& element) {
      element = link.in_flight.front() + (sums ? element : 0);
      link.in_flight.pop_front();
    });
  }

  const std::vector<Schedule>& schedules_;
  std::vector<MemberData>& data_;
  std::mt19937_64 random_;
  const int absent_;
  std::vector<std::vector<Progress>> progress_;
  std::vector<Link> links_;
  std::vector<End> ends_;
  int64_t capacity_ = 1;
  // Maximum number of elements that one turn moves.
  uint64_t max_move_ = 1;
  uint64_t until_shuffle_ = 0;
};

// Computes the times of messages, each of which takes one unit and waits for its dependencies.
class Chains {
 public:
  explicit Chains(const std::vector<Schedule>& schedules) : schedules_(schedules) {
    for (const Schedule& schedule : schedules) {
      steps_.emplace_back(schedule.size());
      std::optional<int> last[2];
      for (int at = 0; at < std::ssize(schedule); ++at) {
        std::optional<int>& before = last[schedule[at].kind == Kind::kSend ? 0 : 1];
        steps_.back()[at].before = before;
        before = at;
      }
    }
    for (const Pair& pair : FindPairs(schedules)) {
      for (size_t i = 0; i < std::min(pair.sends.size(), pair.receives.size()); ++i) {
        At(pair.from, pair.sends[i]).other_end = pair.receives[i];
        At(pair.to, pair.receives[i]).other_end = pair.sends[i];
      }
    }
  }

  int64_t Longest() {
    int64_t longest = 0;
    for (int member = 0; member < std::ssize(schedules_); ++member) {
      for (int at = 0; at < std::ssize(schedules_[member]); ++at) {
        longest = std::max(longest, Time(member, at));
      }
    }
    return longest;
  }

 private:
  struct Step {
    // The previous step of the same kind and member.
    std::optional<int> before;
    int other_end = 0;
    // Time of its message; 0 if not computed yet.
    int64_t time = 0;
  };

  Step& At(int member, int at) { return steps_[member][at]; }

  int64_t Time(int member, int at) {
    Step& step = At(member, at);
    if (step.time > 0) return step.time;
    const int peer = schedules_[member][at].peer;
    const int64_t time = std::max(Earliest(member, at), Earliest(peer, step.other_end));
    At(peer, step.other_end).time = time;
    return step.time = time;
  }

  int64_t Earliest(int member, int at) {
    const Schedule& schedule = schedules_[member];
    const ScheduleStep& step = schedule[at];
    int64_t earliest = 1;
    if (const auto before = At(member, at).before) earliest = 1 + Time(member, *before);
    if (step.after == ScheduleStep::kNone) return earliest;
    // A receive that overwrites data being sent begins together with the send.
    const bool concurrent = step.kind != Kind::kSend && schedule[step.after].kind == Kind::kSend;
    return std::max(earliest,
                    concurrent ? Earliest(member, step.after) : 1 + Time(member, step.after));
  }

  const std::vector<Schedule>& schedules_;
  std::vector<std::vector<Step>> steps_;
};

// A message, executed in rounds.
struct Message {
  int round = 0;
  int from = 0;
  int to = 0;
  // Position of the receive.
  int step = 0;
  bool sum = false;
  Interval interval;
};

// Checks the guarantees of RoundsOf.
std::vector<Message> MessagesOf(const std::vector<Schedule>& schedules) {
  const std::vector<std::vector<int>> rounds = RoundsOf(schedules);
  for (size_t member = 0; member < schedules.size(); ++member) {
    const Schedule& schedule = schedules[member];
    for (size_t i = 0; i < schedule.size(); ++i) {
      const int after = schedule[i].after;
      if (after == ScheduleStep::kNone) continue;
      const bool same =
          schedule[i].kind == Kind::kReceiveSum && schedule[after].kind == Kind::kSend;
      EXPECT_GE(rounds[member][i], rounds[member][after] + (same ? 0 : 1));
    }
  }
  std::vector<Message> messages;
  for (const Pair& pair : FindPairs(schedules)) {
    for (size_t i = 0; i < pair.sends.size(); ++i) {
      const int step = pair.receives[i];
      const int round = rounds[pair.to][step];
      EXPECT_EQ(round, rounds[pair.from][pair.sends[i]]) << "different rounds at both ends";
      EXPECT_GE(round, i > 0 ? messages.back().round : 0) << "messages are reordered";
      const ScheduleStep& receive = schedules[pair.to][step];
      messages.push_back(
          {round, pair.from, pair.to, step, receive.kind == Kind::kReceiveSum, receive.interval});
    }
  }
  return messages;
}

}  // namespace

std::string CheckMessages(const std::vector<Schedule>& schedules) {
  for (const Pair& pair : FindPairs(schedules)) {
    const std::string names = absl::StrCat(pair.from, " to ", pair.to, ": ");
    if (pair.sends.size() != pair.receives.size()) {
      return absl::StrCat(names, pair.sends.size(), " sends, ", pair.receives.size(), " receives");
    }
    for (size_t i = 0; i < pair.sends.size(); ++i) {
      const Interval& sent = schedules[pair.from][pair.sends[i]].interval;
      const Interval& received = schedules[pair.to][pair.receives[i]].interval;
      if (sent != received) return absl::StrCat(names, "message ", i, " has different intervals");
    }
  }
  return "";
}

Played Play(const std::vector<Schedule>& schedules, std::vector<MemberData>& data, uint64_t seed,
            int absent) {
  Played played = Simulation(schedules, data, seed, absent).Run();
  if (std::string error = CheckMessages(schedules); !error.empty()) played.error = error;
  return played;
}

void PlayRounds(const std::vector<Schedule>& schedules, std::vector<MemberData>& data,
                uint64_t seed) {
  std::vector<Message> messages = MessagesOf(schedules);
  std::mt19937_64 random(seed);
  std::shuffle(messages.begin(), messages.end(), random);
  std::stable_sort(messages.begin(), messages.end(),
                   [](const Message& a, const Message& b) { return a.round < b.round; });
  for (auto begin = messages.begin(), end = begin; begin != messages.end(); begin = end) {
    // Addends are received into separate memory and added after the round, in the order of steps.
    std::map<std::pair<int, int>, std::pair<const Message*, MemberData>> addends;
    for (; end != messages.end() && end->round == begin->round; ++end) {
      const auto from = data[end->from].begin();
      MemberData values(from + end->interval.begin, from + end->interval.end);
      if (end->sum) {
        addends[{end->to, end->step}] = {&*end, std::move(values)};
      } else {
        std::copy(values.begin(), values.end(), data[end->to].begin() + end->interval.begin);
      }
    }
    for (const auto& [key, addend] : addends) {
      const auto& [message, values] = addend;
      uint64_t* const sum = data[message->to].data() + message->interval.begin;
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
}

int64_t LongestChain(const std::vector<Schedule>& schedules) { return Chains(schedules).Longest(); }

}  // namespace cadre
