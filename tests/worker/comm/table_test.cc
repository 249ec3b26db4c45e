// The table in worker/comm/README.md, the planner's costs, the schedules and what communicators
// send say the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "plan/cost/collective_cost.h"
#include "tests/worker/comm/schedule_simulator.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"

namespace cadre {
namespace {

using Variables = std::map<std::string, double>;

// What the table's formulas may contain. `hosts`: for the hierarchical ones.
Variables VariablesFor(int members, int hosts, double bytes) {
  Variables v;
  const double p = members;
  v["p"] = p;
  v["n"] = bytes;
  v["q"] = std::floor(std::log2(p));
  v["log2p"] = std::ceil(std::log2(p));
  v["P"] = std::exp2(v["q"]);
  v["r"] = p - v["P"];
  v["f"] = v["r"] > 0 ? 1 : 0;
  v["w"] = 0;
  for (int t = 0; t < v["q"]; ++t) v["w"] += std::min(std::exp2(t), v["r"]);
  v["h"] = hosts;
  v["m"] = p / hosts;
  v["log2h"] = std::log2(hosts);
  return v;
}

// Evaluates sums and products of numbers and variables.
class Formula {
 public:
  Formula(std::string text, const Variables& variables)
      : text_(std::move(text)), variables_(variables) {}

  double Value() {
    const double value = Sum();
    EXPECT_EQ(at_, text_.size()) << text_;
    return value;
  }

 private:
  char Peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Skip(char c) { return Peek() == c && ++at_ > 0; }

  double Sum() {
    double value = Product();
    while (true) {
      if (Skip('+')) {
        value += Product();
      } else if (Skip('-')) {
        value -= Product();
      } else {
        return value;
      }
    }
  }
  double Product() {
    double value = Atom();
    while (true) {
      if (Skip('*')) {
        value *= Atom();
      } else if (Skip('/')) {
        value /= Atom();
      } else {
        return value;
      }
    }
  }
  double Atom() {
    if (Skip('(')) {
      const double value = Sum();
      EXPECT_TRUE(Skip(')')) << text_;
      return value;
    }
    Peek();
    std::string word;
    while (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_]))) {
      word += text_[at_++];
    }
    if (const auto found = variables_.find(word); found != variables_.end()) return found->second;
    EXPECT_FALSE(word.empty()) << text_ << " at " << at_;
    return word.empty() ? 0.0 : std::stod(word);
  }

  const std::string text_;
  const Variables& variables_;
  size_t at_ = 0;
};

struct Row {
  std::string steps;
  std::string busiest;
  std::string all;
  std::string added;
};

std::string Cell(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  absl::ConsumePrefix(&text, "`");
  absl::ConsumeSuffix(&text, "`");
  return std::string(text);
}

// By collective and algorithm.
std::map<std::string, Row> ReadTable() {
  const auto text = ReadFile(CADRE_COMM_README);
  EXPECT_TRUE(text.ok()) << text.status();
  std::map<std::string, Row> rows;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() != 8 || !absl::StrContains(cells[3], '`')) continue;
    rows[absl::StrCat(Cell(cells[1]), " by ", Cell(cells[2]))] = {Cell(cells[3]), Cell(cells[4]),
                                                                  Cell(cells[5]), Cell(cells[6])};
  }
  return rows;
}

// Elements of a byte: divisible by every number of members below, and by what these are cut into.
constexpr int64_t kElements = 720'720 * 16;
constexpr int kMaxMembers = 16;

struct Counted {
  double steps = 0;
  double busiest = 0;
  double all = 0;
  double added = 0;
};

Counted Count(const std::vector<Schedule>& schedules) {
  Counted counted;
  counted.steps = static_cast<double>(LongestChain(schedules));
  for (const Schedule& schedule : schedules) {
    const ScheduleWork work = WorkOf(schedule);
    counted.busiest = std::max(counted.busiest, static_cast<double>(work.elements));
    counted.added = std::max(counted.added, static_cast<double>(work.added));
    counted.all += static_cast<double>(work.elements);
  }
  return counted;
}

void ExpectRow(const Row& row, const Counted& counted, const Variables& variables) {
  const auto value = [&](const std::string& formula) {
    return Formula(formula, variables).Value();
  };
  EXPECT_DOUBLE_EQ(counted.steps, value(row.steps));
  EXPECT_DOUBLE_EQ(counted.busiest, value(row.busiest));
  EXPECT_DOUBLE_EQ(counted.all, value(row.all));
  EXPECT_DOUBLE_EQ(counted.added, value(row.added));
}

using MakeSchedule = std::function<Schedule(int index, int members, int64_t elements)>;

// The ones with a schedule of their own, by their rows' names.
std::map<std::string, MakeSchedule> Makers() {
  std::map<std::string, MakeSchedule> makers = {
      {"broadcast by binomial tree",
       [](int index, int members, int64_t n) { return BroadcastSchedule(index, members, n, 0); }},
      {"barrier by dissemination",
       [](int index, int members, int64_t) { return BarrierSchedule(index, members); }},
  };
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
    const std::string by = absl::StrCat(" by ", AlgorithmName(algorithm));
    makers["reduce-scatter" + by] = [=](int index, int members, int64_t n) {
      return ReduceScatterSchedule(algorithm, index, EqualIntervals(n, members));
    };
    makers["all-gather" + by] = [=](int index, int members, int64_t n) {
      return AllGatherSchedule(algorithm, index, EqualIntervals(n, members));
    };
    makers["all-reduce" + by] = [=](int index, int members, int64_t n) {
      return AllReduceSchedule(algorithm, index, members, n);
    };
  }
  return makers;
}

std::vector<Schedule> MakeAll(const MakeSchedule& make, int members, int64_t elements) {
  std::vector<Schedule> schedules;
  for (int index = 0; index < members; ++index) schedules.push_back(make(index, members, elements));
  return schedules;
}

TEST(TableTest, MatchesSchedules) {
  const std::map<std::string, Row> table = ReadTable();
  for (const auto& [name, make] : Makers()) {
    ASSERT_EQ(table.count(name), 1U) << name;
    for (int members = 1; members <= kMaxMembers; ++members) {
      SCOPED_TRACE(absl::StrCat(name, " among ", members));
      ExpectRow(table.at(name), Count(MakeAll(make, members, kElements)),
                VariablesFor(members, 1, kElements));
    }
  }
}

TEST(TableTest, MatchesHierarchicalSchedules) {
  const Row row = ReadTable()["all-reduce by hierarchical"];
  for (const int hosts : {1, 2, 4}) {
    for (const int per_host : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(per_host, " on each of ", hosts, " hosts"));
      const int members = hosts * per_host;
      std::vector<uint64_t> host_of;
      for (int i = 0; i < members; ++i) host_of.push_back(static_cast<uint64_t>(i / per_host));
      const auto schedules = MakeAll(
          [&](int index, int, int64_t elements) {
            return HierarchicalAllReduceSchedule(index, host_of, elements,
                                                 Algorithm::kHalvingDoubling);
          },
          members, kElements);
      ExpectRow(row, Count(schedules), VariablesFor(members, hosts, kElements));
    }
  }
}

TEST(TableTest, MatchesCosts) {
  const std::map<std::string, Row> table = ReadTable();
  for (const Collective collective :
       {Collective::kReduceScatter, Collective::kAllGather, Collective::kAllReduce}) {
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
      const Row& row =
          table.at(absl::StrCat(CollectiveName(collective), " by ", AlgorithmName(algorithm)));
      for (int members = 1; members <= 70; ++members) {
        SCOPED_TRACE(absl::StrCat(CollectiveName(collective), " by ", AlgorithmName(algorithm),
                                  " among ", members));
        const CollectiveWork work = WorkOf(collective, algorithm, members, 1'000'003);
        const Variables variables = VariablesFor(members, 1, 1'000'003);
        EXPECT_DOUBLE_EQ(work.steps, Formula(row.steps, variables).Value());
        EXPECT_NEAR(work.bytes, Formula(row.busiest, variables).Value(), 1e-6);
        EXPECT_NEAR(work.added, Formula(row.added, variables).Value(), 1e-6);
      }
    }
  }
}

// Keeps what a communicator hands to its transport.
class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  LinkKind link(int peer) const override { return inner_.link(peer); }
  uint64_t host(int peer) const override { return inner_.host(peer); }
  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override {
    for (const Transfer& transfer : transfers) {
      ScheduleStep step{.peer = transfer.peer,
                        .interval = {0, static_cast<int64_t>(transfer.data.size())},
                        .after = transfer.after};
      if (transfer.kind == Transfer::Kind::kReceive) step.kind = ScheduleStep::Kind::kReceive;
      if (transfer.kind == Transfer::Kind::kReceiveSum) step.kind = ScheduleStep::Kind::kReceiveSum;
      schedule_.push_back(step);
    }
    return inner_.Run(channel, tag, transfers, combine);
  }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }
  absl::Status status() const override { return inner_.status(); }

  const Schedule& schedule() const { return schedule_; }

 private:
  Transport& inner_;
  Schedule schedule_;
};

constexpr int64_t kFloats = 840 * 8;

std::vector<int64_t> Offsets(const Communicator& among) {
  std::vector<int64_t> offsets;
  for (int i = 0; i <= among.size(); ++i) offsets.push_back(kFloats * i / among.size());
  return offsets;
}

absl::Status AllToAllOfEqualPieces(Communicator& among) {
  std::vector<float> out(kFloats), in(kFloats);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (const Interval& interval : EqualIntervals(kFloats, among.size())) {
    const auto begin = static_cast<size_t>(interval.begin);
    const auto size = static_cast<size_t>(interval.size());
    send.push_back(std::as_bytes(std::span(out).subspan(begin, size)));
    receive.push_back(std::as_writable_bytes(std::span(in).subspan(begin, size)));
  }
  return among.AllToAll(send, receive);
}

using Call = std::function<absl::Status(Communicator&)>;

// Every row of the table that any members can carry out.
std::map<std::string, Call> Calls() {
  std::map<std::string, Call> calls = {
      {"all-to-all by pairwise", AllToAllOfEqualPieces},
      {"broadcast by binomial tree",
       [](Communicator& among) {
         std::vector<float> data(kFloats);
         return among.Broadcast(std::as_writable_bytes(std::span(data)), 0);
       }},
      {"barrier by dissemination", [](Communicator& among) { return among.Barrier(); }},
  };
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
    const std::string by = absl::StrCat(" by ", AlgorithmName(algorithm));
    calls["reduce-scatter" + by] = [=](Communicator& among) {
      std::vector<float> data(kFloats);
      return among.ReduceScatterSum(data, Offsets(among), algorithm);
    };
    calls["all-gather" + by] = [=](Communicator& among) {
      std::vector<float> data(kFloats);
      return among.AllGather(data, Offsets(among), algorithm);
    };
    calls["all-reduce" + by] = [=](Communicator& among) {
      std::vector<float> data(kFloats);
      return among.AllReduceSum(std::span(data), algorithm);
    };
  }
  return calls;
}

TEST(TableTest, MatchesCommunicators) {
  const std::map<std::string, Row> table = ReadTable();
  const std::map<std::string, Call> calls = Calls();
  // The hierarchical row needs hosts.
  ASSERT_EQ(table.size(), calls.size() + 1);
  for (const auto& [name, call] : calls) {
    ASSERT_EQ(table.count(name), 1U) << name;
    for (int members = 1; members <= 8; ++members) {
      SCOPED_TRACE(absl::StrCat(name, " among ", members));
      const Transports group = MakeThreadTransports(members, absl::Seconds(60));
      std::vector<Schedule> executed(static_cast<size_t>(members));
      std::vector<int> all(executed.size());
      std::iota(all.begin(), all.end(), 0);
      OnRanks(members, [&, &call = call](int rank) {
        const auto i = static_cast<size_t>(rank);
        RecordingTransport recording(*group[i]);
        Communicator among(recording, all);
        const absl::Status status = call(among);
        EXPECT_TRUE(status.ok()) << status;
        executed[i] = recording.schedule();
        // The counters count what went.
        const ScheduleWork work = WorkOf(executed[i]);
        EXPECT_EQ(among.bytes_sent(), static_cast<uint64_t>(work.elements));
        EXPECT_EQ(among.messages_sent(), static_cast<uint64_t>(work.messages));
      });
      EXPECT_EQ(CheckMessages(executed), "");
      ExpectRow(table.at(name), Count(executed),
                VariablesFor(members, 1, static_cast<double>(kFloats * 4)));
    }
  }
}

}  // namespace
}  // namespace cadre
