// The table in worker/comm/README.md says what the counters say.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <map>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "tests/worker/comm/ranks.h"
#include "worker/comm/communicator.h"

namespace cadre {
namespace {

// Evaluates sums and products of numbers, p, n and log2p.
class Formula {
 public:
  Formula(std::string text, double p, double n) : text_(std::move(text)), p_(p), n_(n) {}

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
    if (word == "p") return p_;
    if (word == "n") return n_;
    if (word == "log2p") return std::ceil(std::log2(p_));
    EXPECT_FALSE(word.empty()) << text_ << " at " << at_;
    return word.empty() ? 0.0 : std::stod(word);
  }

  const std::string text_;
  const double p_;
  const double n_;
  size_t at_ = 0;
};

struct Row {
  std::string steps;
  std::string busiest;
  std::string all;
};

std::string Cell(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  absl::ConsumePrefix(&text, "`");
  absl::ConsumeSuffix(&text, "`");
  return std::string(text);
}

std::map<std::string, Row> ReadTable() {
  const auto text = ReadFile(CADRE_COMM_README);
  EXPECT_TRUE(text.ok()) << text.status();
  std::map<std::string, Row> rows;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() != 7 || !absl::StrContains(cells[3], '`')) continue;
    rows[Cell(cells[1])] = {Cell(cells[3]), Cell(cells[4]), Cell(cells[5])};
  }
  return rows;
}

constexpr size_t kElements = 840;  // divisible by every number of members below

using Collective = std::function<absl::Status(Communicator&)>;

std::map<std::string, Collective> Collectives() {
  const auto offsets = [](const Communicator& among) {
    std::vector<int64_t> even;
    for (int i = 0; i <= among.size(); ++i) {
      even.push_back(static_cast<int64_t>(kElements) * i / among.size());
    }
    return even;
  };
  return {
      {"ReduceScatterSum",
       [offsets](Communicator& among) {
         std::vector<float> data(kElements);
         return among.ReduceScatterSum(data, offsets(among));
       }},
      {"AllGather",
       [offsets](Communicator& among) {
         std::vector<float> data(kElements);
         return among.AllGather(data, offsets(among));
       }},
      {"AllReduceSum (float)",
       [](Communicator& among) {
         std::vector<float> data(kElements);
         return among.AllReduceSum(std::span(data));
       }},
      {"AllToAll",
       [offsets](Communicator& among) {
         std::vector<float> out(kElements), in(kElements);
         const std::vector<int64_t> even = offsets(among);
         std::vector<std::span<const std::byte>> send;
         std::vector<std::span<std::byte>> receive;
         for (size_t i = 0; i + 1 < even.size(); ++i) {
           const auto begin = static_cast<size_t>(even[i]);
           const auto size = static_cast<size_t>(even[i + 1]) - begin;
           send.push_back(std::as_bytes(std::span(out).subspan(begin, size)));
           receive.push_back(std::as_writable_bytes(std::span(in).subspan(begin, size)));
         }
         return among.AllToAll(send, receive);
       }},
      {"Broadcast",
       [](Communicator& among) {
         std::vector<float> data(kElements);
         return among.Broadcast(std::as_writable_bytes(std::span(data)), 0);
       }},
      {"AllReduceSum (few numbers)",
       [](Communicator& among) {
         std::vector<double> data(kElements / 2);
         return among.AllReduceSum(std::span(data));
       }},
      {"Barrier", [](Communicator& among) { return among.Barrier(); }},
  };
}

// Counts the longest chain of messages: a message carries one more than its sender has seen.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  absl::Status Send(int to, uint64_t tag, std::span<const std::byte> data) override {
    // A sender is busy while it sends, so its next message comes after this one.
    const uint64_t depth = ++depth_;
    const absl::Status status = inner_.Send(to, tag, std::as_bytes(std::span(&depth, 1)));
    return status.ok() ? inner_.Send(to, tag, data) : status;
  }
  absl::Status Receive(int from, uint64_t tag, std::span<std::byte> data) override {
    uint64_t depth = 0;
    const absl::Status status =
        inner_.Receive(from, tag, std::as_writable_bytes(std::span(&depth, 1)));
    // A receiver takes in one message at a time.
    depth_ = std::max(depth, depth_ + 1);
    return status.ok() ? inner_.Receive(from, tag, data) : status;
  }
  absl::Status Exchange(int to, std::span<const std::byte> send, int from,
                        std::span<std::byte> receive, uint64_t tag) override {
    const uint64_t out = ++depth_;
    uint64_t in = 0;
    const absl::Status status = inner_.Exchange(to, std::as_bytes(std::span(&out, 1)), from,
                                                std::as_writable_bytes(std::span(&in, 1)), tag);
    depth_ = std::max(depth_, in);
    return status.ok() ? inner_.Exchange(to, send, from, receive, tag) : status;
  }
  void Abort(absl::Status reason) override { inner_.Abort(reason); }
  absl::Status status() const override { return inner_.status(); }

  uint64_t depth() const { return depth_; }

 private:
  Transport& inner_;
  uint64_t depth_ = 0;
};

struct Measured {
  uint64_t steps = 0;
  uint64_t busiest = 0;
  uint64_t all = 0;
};

Measured Measure(int ranks, const Collective& collective) {
  const Transports group = MakeThreadTransports(ranks, absl::Seconds(30));
  std::vector<Measured> each(static_cast<size_t>(ranks));
  OnRanks(ranks, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    CountingTransport counting(*group[i]);
    std::vector<int> members(static_cast<size_t>(ranks));
    for (int k = 0; k < ranks; ++k) members[static_cast<size_t>(k)] = k;
    Communicator among(counting, members);
    const absl::Status status = collective(among);
    EXPECT_TRUE(status.ok()) << status;
    each[i] = {counting.depth(), among.bytes_sent(), 0};
  });
  Measured measured;
  for (const Measured& one : each) {
    measured.steps = std::max(measured.steps, one.steps);
    measured.busiest = std::max(measured.busiest, one.busiest);
    measured.all += one.busiest;
  }
  return measured;
}

TEST(TableTest, HoldsForEveryCollective) {
  std::map<std::string, Row> table = ReadTable();
  const auto collectives = Collectives();
  ASSERT_EQ(table.size(), collectives.size());
  for (const auto& [name, collective] : collectives) {
    ASSERT_EQ(table.count(name), 1U) << name;
    const Row& row = table[name];
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(name + " among " + std::to_string(ranks));
      const Measured measured = Measure(ranks, collective);
      const auto value = [&](const std::string& formula) {
        return Formula(formula, ranks, kElements * sizeof(float)).Value();
      };
      EXPECT_DOUBLE_EQ(static_cast<double>(measured.steps), value(row.steps));
      EXPECT_DOUBLE_EQ(static_cast<double>(measured.busiest), value(row.busiest));
      EXPECT_DOUBLE_EQ(static_cast<double>(measured.all), value(row.all));
    }
  }
}

}  // namespace
}  // namespace cadre
