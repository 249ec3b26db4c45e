#include "comm/rounds.h"

#include <glog/logging.h>

#include <map>
#include <utility>

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

class Rounds {
 public:
  explicit Rounds(std::span<const Schedule> schedules) : schedules_(schedules) {
    NumberSends();
    NumberReceives();
    for (const auto& [pair, messages] : between_) {
      for (size_t i = 1; i < messages.size(); ++i) AddEdge(messages[i - 1], messages[i], 0);
    }
    for (int member = 0; member < std::ssize(schedules_); ++member) OrderSteps(member);
  }

  std::vector<std::vector<int>> Solve() {
    // Longest paths from the sources by relaxation (Bellman-Ford). Every pass that changes a round
    // makes at least one of them final.
    bool changed = true;
    for (size_t pass = 0; changed; ++pass) {
      CHECK_LE(pass, round_.size()) << "cyclic dependency between messages";
      changed = false;
      for (const Edge& edge : edges_) {
        const int earliest = round_[edge.before] + edge.distance;
        if (round_[edge.after] >= earliest) continue;
        round_[edge.after] = earliest;
        changed = true;
      }
    }
    std::vector<std::vector<int>> rounds;
    for (const std::vector<size_t>& steps : message_) {
      std::vector<int>& own = rounds.emplace_back();
      for (const size_t message : steps) own.push_back(round_[message]);
    }
    return rounds;
  }

 private:
  // Message `after` is at least `distance` rounds later than `before`.
  struct Edge {
    size_t before = 0;
    size_t after = 0;
    int distance = 0;
  };

  void AddEdge(size_t before, size_t after, int distance) {
    edges_.push_back({before, after, distance});
  }

  void NumberSends() {
    for (int member = 0; member < std::ssize(schedules_); ++member) {
      std::vector<size_t>& own = message_.emplace_back();
      for (const ScheduleStep& step : schedules_[member]) {
        own.push_back(round_.size());
        if (step.kind != Kind::kSend) continue;
        between_[{member, step.peer}].push_back(round_.size());
        round_.push_back(0);
      }
    }
  }

  void NumberReceives() {
    std::map<std::pair<int, int>, size_t> received;
    for (int member = 0; member < std::ssize(schedules_); ++member) {
      for (size_t i = 0; i < schedules_[member].size(); ++i) {
        const ScheduleStep& step = schedules_[member][i];
        if (step.kind == Kind::kSend) continue;
        const std::pair<int, int> pair = {step.peer, member};
        const std::vector<size_t>& sent = between_[pair];
        size_t& number = received[pair];
        CHECK_LT(number, sent.size())
            << "member " << member << " expects a message that no member sends";
        message_[member][i] = sent[number++];
      }
    }
    for (const auto& [pair, sent] : between_) {
      CHECK_EQ(received[pair], sent.size())
          << "member " << pair.second << " expects fewer messages than are sent";
    }
  }

  void OrderSteps(int member) {
    const Schedule& schedule = schedules_[member];
    for (size_t i = 0; i < schedule.size(); ++i) {
      if (schedule[i].after == ScheduleStep::kNone) continue;
      const int after = schedule[i].after;
      const bool same_round =
          schedule[i].kind == Kind::kReceiveSum && schedule[after].kind == Kind::kSend;
      AddEdge(message_[member][after], message_[member][i], same_round ? 0 : 1);
    }
  }

  const std::span<const Schedule> schedules_;
  // Round of each message.
  std::vector<int> round_;
  // The message that a step of a member sends or receives.
  std::vector<std::vector<size_t>> message_;
  // Messages from one member to another, in order.
  std::map<std::pair<int, int>, std::vector<size_t>> between_;
  std::vector<Edge> edges_;
};

}  // namespace

std::vector<std::vector<int>> RoundsOf(std::span<const Schedule> schedules) {
  return Rounds(schedules).Solve();
}

}  // namespace cadre
