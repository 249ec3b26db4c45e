#include "tests/worker/comm/schedule_simulator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <utility>

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

std::string Describe(int member, size_t at, const ScheduleStep& step) {
  return "member " + std::to_string(member) + ", step " + std::to_string(at) + " with " +
         std::to_string(step.peer);
}

// Messages from one member to another: where each is sent and where it is received.
struct Pair {
  int from = 0;
  int to = 0;
  std::vector<size_t> sends;
  std::vector<size_t> receives;
};

std::vector<Pair> FindPairs(const std::vector<Schedule>& schedules) {
  std::map<std::pair<int, int>, Pair> pairs;
  for (size_t member = 0; member < schedules.size(); ++member) {
    const int self = static_cast<int>(member);
    for (size_t at = 0; at < schedules[member].size(); ++at) {
      const ScheduleStep& step = schedules[member][at];
      const bool sends = step.kind == Kind::kSend;
      const auto key = sends ? std::pair(self, step.peer) : std::pair(step.peer, self);
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
      : schedules_(schedules), data_(data), dice_(seed), absent_(absent) {
    for (const Schedule& schedule : schedules) progress_.emplace_back(schedule.size());
    for (Pair& pair : FindPairs(schedules)) {
      const auto link = links_.size();
      links_.push_back({std::move(pair)});
      ends_.push_back({link, true});
      ends_.push_back({link, false});
    }
    // One element in flight is the least that a link can be.
    const size_t rooms[] = {1, 2, 7, 1000};
    room_ = rooms[dice_() % 4];
    max_ = dice_() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(dice_() % 9);
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
        played.error = Describe(static_cast<int>(member), at, schedules_[member][at]) + " hangs";
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
    // Messages whose headers are on the way or were read.
    size_t headers = 0;
  };
  struct End {
    size_t link = 0;
    bool sends = false;
  };

  // Whoever stands first goes first, until the dice put somebody else there: some run far ahead.
  void Shuffle() {
    std::shuffle(ends_.begin(), ends_.end(), dice_);
    until_shuffle_ = 1 + dice_() % 40;
  }

  bool Turn() {
    if (until_shuffle_-- == 0) Shuffle();
    for (const End& end : ends_) {
      if (end.sends ? Send(links_[end.link]) : Receive(links_[end.link])) return true;
    }
    return false;
  }

  const ScheduleStep& StepOf(int member, size_t at) const { return schedules_[member][at]; }
  Progress& ProgressOf(int member, size_t at) { return progress_[member][at]; }

  // Elements that the step may have moved by now.
  int64_t Allowed(int member, const ScheduleStep& step) {
    if (step.after == ScheduleStep::kNone) return step.interval.size();
    const auto after = static_cast<size_t>(step.after);
    const Progress& other = ProgressOf(member, after);
    if (other.complete) return step.interval.size();
    const Interval& interval = StepOf(member, after).interval;
    const int64_t passed = interval.begin + other.done;
    if (step.interval.begin < interval.begin || step.interval.begin >= passed) return 0;
    return std::min(step.interval.size(), passed - step.interval.begin);
  }
  bool IsFree(int member, const ScheduleStep& step) {
    return step.after == ScheduleStep::kNone ||
           ProgressOf(member, static_cast<size_t>(step.after)).complete;
  }
  int64_t Some(int64_t possible) {
    return std::min(possible, 1 + static_cast<int64_t>(dice_() % static_cast<uint64_t>(max_)));
  }

  bool Send(Link& link) {
    const int member = link.pair.from;
    if (member == absent_ || link.sent == link.pair.sends.size()) return false;
    const size_t at = link.pair.sends[link.sent];
    const ScheduleStep& step = StepOf(member, at);
    Progress& progress = ProgressOf(member, at);
    int64_t count = 0;
    if (step.interval.size() == 0) {
      if (!IsFree(member, step)) return false;
    } else {
      const auto room = static_cast<int64_t>(room_ - std::min(room_, link.in_flight.size()));
      count = Some(std::min(Allowed(member, step) - progress.done, room));
      if (count <= 0) return false;
    }
    if (progress.done == 0) ++link.headers;
    for (int64_t i = 0; i < count; ++i) {
      link.in_flight.push_back(Element(member, step.interval.begin + progress.done++));
    }
    if (progress.done == step.interval.size()) {
      progress.complete = true;
      ++link.sent;
    }
    return true;
  }

  bool Receive(Link& link) {
    const int member = link.pair.to;
    if (member == absent_ || link.received == link.pair.receives.size()) return false;
    const size_t at = link.pair.receives[link.received];
    const ScheduleStep& step = StepOf(member, at);
    Progress& progress = ProgressOf(member, at);
    if (link.headers <= link.received) return false;
    if (step.interval.size() == 0) {
      if (!IsFree(member, step)) return false;
    } else {
      const int64_t count =
          Some(std::min(Allowed(member, step) - progress.done, std::ssize(link.in_flight)));
      if (count <= 0) return false;
      for (int64_t i = 0; i < count; ++i) {
        uint64_t& element = Element(member, step.interval.begin + progress.done++);
        element = link.in_flight.front() + (step.kind == Kind::kReceiveSum ? element : 0);
        link.in_flight.pop_front();
      }
    }
    if (progress.done == step.interval.size()) {
      progress.complete = true;
      ++link.received;
    }
    return true;
  }

  uint64_t& Element(int member, int64_t at) { return data_[member].at(static_cast<size_t>(at)); }

  const std::vector<Schedule>& schedules_;
  std::vector<MemberData>& data_;
  std::mt19937_64 dice_;
  const int absent_;
  std::vector<std::vector<Progress>> progress_;
  std::vector<Link> links_;
  std::vector<End> ends_;
  size_t room_ = 1;
  int64_t max_ = 1;
  uint64_t until_shuffle_ = 0;
};

// Times of messages, each a unit long, by what they wait for.
class Chains {
 public:
  explicit Chains(const std::vector<Schedule>& schedules) : schedules_(schedules) {
    for (const Schedule& schedule : schedules) {
      steps_.emplace_back(schedule.size());
      std::optional<size_t> last[2];
      for (size_t at = 0; at < schedule.size(); ++at) {
        std::optional<size_t>& before = last[schedule[at].kind == Kind::kSend ? 0 : 1];
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
    for (size_t member = 0; member < schedules_.size(); ++member) {
      for (size_t at = 0; at < schedules_[member].size(); ++at) {
        longest = std::max(longest, Time(static_cast<int>(member), at));
      }
    }
    return longest;
  }

 private:
  struct Step {
    // The one of its kind before it, in this member.
    std::optional<size_t> before;
    size_t other_end = 0;
    // Of its message, once it is known.
    int64_t time = 0;
  };

  Step& At(int member, size_t at) { return steps_[member][at]; }

  int64_t Time(int member, size_t at) {
    Step& step = At(member, at);
    if (step.time > 0) return step.time;
    const int peer = schedules_[member][at].peer;
    const int64_t time = std::max(Earliest(member, at), Earliest(peer, step.other_end));
    At(peer, step.other_end).time = time;
    return step.time = time;
  }

  int64_t Earliest(int member, size_t at) {
    const Schedule& schedule = schedules_[member];
    const ScheduleStep& step = schedule[at];
    int64_t earliest = 1;
    if (const auto before = At(member, at).before) earliest = 1 + Time(member, *before);
    if (step.after == ScheduleStep::kNone) return earliest;
    const auto after = static_cast<size_t>(step.after);
    // What is overwritten while it is being sent takes no time of its own; both begin together.
    const bool beside = step.kind != Kind::kSend && schedule[after].kind == Kind::kSend;
    return std::max(earliest, beside ? Earliest(member, after) : 1 + Time(member, after));
  }

  const std::vector<Schedule>& schedules_;
  std::vector<std::vector<Step>> steps_;
};

}  // namespace

std::string CheckMessages(const std::vector<Schedule>& schedules) {
  for (const Pair& pair : FindPairs(schedules)) {
    const std::string names = std::to_string(pair.from) + " to " + std::to_string(pair.to);
    if (pair.sends.size() != pair.receives.size()) {
      return names + ": " + std::to_string(pair.sends.size()) + " sends, " +
             std::to_string(pair.receives.size()) + " receives";
    }
    for (size_t i = 0; i < pair.sends.size(); ++i) {
      const Interval& sent = schedules[pair.from][pair.sends[i]].interval;
      const Interval& got = schedules[pair.to][pair.receives[i]].interval;
      if (sent != got) return names + ": message " + std::to_string(i) + " is not what is expected";
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

int64_t LongestChain(const std::vector<Schedule>& schedules) { return Chains(schedules).Longest(); }

}  // namespace cadre
