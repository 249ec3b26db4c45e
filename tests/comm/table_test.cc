// The table in comm/README.md equals the planner's costs and the schedules that
// communicators execute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "comm/communicator.h"
#include "plan/cost/collective_cost.h"
#include "tests/comm/schedule_simulator.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using Variables = std::map<std::string, double>;

// The variables of the table's formulas.
Variables VariablesFor(int members, double bytes) {
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
    std::string name;
    while (at_ < text_.size() && absl::ascii_isalnum(text_[at_])) name += text_[at_++];
    if (const auto found = variables_.find(name); found != variables_.end()) return found->second;
    EXPECT_FALSE(name.empty()) << text_ << " at " << at_;
    return name.empty() ? 0.0 : std::stod(name);
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

// Divisible by all numbers of members and of intervals below.
constexpr int kMaxMembers = 12;
constexpr int64_t kFloats = 27'720 * 2;

void ExpectRow(const Row& row, const std::vector<Schedule>& schedules, const Variables& variables) {
  int64_t busiest = 0;
  int64_t all = 0;
  int64_t added = 0;
  for (const Schedule& schedule : schedules) {
    const ScheduleWork work = WorkOf(schedule);
    busiest = std::max(busiest, work.elements);
    added = std::max(added, work.added);
    all += work.elements;
  }
  const auto value = [&](const std::string& formula) {
    return Formula(formula, variables).Value();
  };
  EXPECT_DOUBLE_EQ(LongestChain(schedules), value(row.steps));
  EXPECT_DOUBLE_EQ(busiest, value(row.busiest));
  EXPECT_DOUBLE_EQ(all, value(row.all));
  EXPECT_DOUBLE_EQ(added, value(row.added));
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
        const Variables variables = VariablesFor(members, 1'000'003);
        EXPECT_DOUBLE_EQ(work.steps, Formula(row.steps, variables).Value());
        EXPECT_NEAR(work.bytes, Formula(row.busiest, variables).Value(), 1e-6);
        EXPECT_NEAR(work.added, Formula(row.added, variables).Value(), 1e-6);
      }
    }
  }
}

// Records the transfers that a communicator passes to its transport.
class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  LinkKind link(int peer) const override { return inner_.link(peer); }
  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override {
    for (const Transfer& transfer : transfers) {
      schedule_.push_back(
          {transfer.kind, transfer.peer, {0, std::ssize(transfer.data)}, transfer.after});
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

absl::Status AllToAllOfEqualIntervals(Communicator& among) {
  std::vector<float> out(kFloats), in(kFloats);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (const Interval& interval : EqualIntervals(kFloats, among.size())) {
    const auto part = [&](std::vector<float>& data) {
      return std::as_writable_bytes(std::span(data).subspan(interval.begin, interval.size()));
    };
    send.push_back(part(out));
    receive.push_back(part(in));
  }
  return among.AllToAll(send, receive);
}

using Call = std::function<absl::Status(Communicator&)>;

// All rows of the table.
std::map<std::string, Call> Calls() {
  // A call with kFloats floats and their bytes, in equal intervals.
  using FloatCall =
      std::function<absl::Status(Communicator&, std::span<std::byte>, std::span<const Interval>)>;
  const auto with_data = [](const FloatCall& call) {
    return [call](Communicator& among) {
      std::vector<float> data(kFloats);
      return call(among, std::as_writable_bytes(std::span(data)),
                  EqualIntervals(kFloats, among.size()));
    };
  };
  std::map<std::string, Call> calls = {
      {"all-to-all by pairwise", AllToAllOfEqualIntervals},
      {"broadcast by binomial tree",
       with_data([](auto& among, auto data, auto) { return among.Broadcast(data, 0); })},
      {"barrier by dissemination", [](Communicator& among) { return among.Barrier(); }},
  };
  constexpr DType kType = DType::kFloat32;
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
    const std::string by = absl::StrCat(" by ", AlgorithmName(algorithm));
    calls["reduce-scatter" + by] = with_data([=](auto& among, auto data, auto intervals) {
      return among.ReduceScatter(algorithm, kType, data, intervals);
    });
    calls["all-gather" + by] = with_data([=](auto& among, auto data, auto intervals) {
      return among.AllGather(algorithm, kType, data, intervals);
    });
    calls["all-reduce" + by] = with_data(
        [=](auto& among, auto data, auto) { return among.AllReduce(algorithm, kType, data); });
  }
  return calls;
}

TEST(TableTest, MatchesCommunicators) {
  const std::map<std::string, Row> table = ReadTable();
  const std::map<std::string, Call> calls = Calls();
  ASSERT_EQ(table.size(), calls.size());
  for (const auto& [name, call] : calls) {
    ASSERT_EQ(table.count(name), 1U) << name;
    for (int members = 1; members <= kMaxMembers; ++members) {
      SCOPED_TRACE(absl::StrCat(name, " among ", members));
      const Transports group = MakeThreadTransports(members, absl::Seconds(60));
      std::vector<Schedule> executed(members);
      OnRanks(members, [&, &call = call](int rank) {
        RecordingTransport recording(*group[rank]);
        Communicator among(recording, AllRanks(members));
        EXPECT_EQ(call(among), absl::OkStatus());
        executed[rank] = recording.schedule();
        EXPECT_TRUE(std::cmp_equal(among.bytes_sent(), WorkOf(executed[rank]).elements));
      });
      EXPECT_EQ(CheckMessages(executed), "");
      ExpectRow(table.at(name), executed, VariablesFor(members, kFloats * 4));
    }
  }
}

}  // namespace
}  // namespace cadre
