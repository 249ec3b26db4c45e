// The history of a run: which entries are kept, and what is stored.
#include "coordinator/run/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/events/event_log.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

const absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

// Carries out the changes of records, as a store does.
void Commit(Outbox& out, std::map<std::string, std::string>& records) {
  for (const Action& action : out.Take()) {
    const auto* const op = std::get_if<Store::Op>(&action);
    if (op == nullptr) continue;
    if (op->kind == Store::Op::Kind::kPut) records[op->key] = op->value;
    if (op->kind == Store::Op::Kind::kErase) records.erase(op->key);
  }
}

v1::CommitPoint PointOf(uint32_t version) {
  v1::CommitPoint point;
  point.set_version(version);
  for (uint32_t group = 0; group < 2; ++group) point.add_participants()->set_group(group);
  return point;
}

std::vector<uint64_t> NumbersOf(const v1::HistoryReply& reply) {
  std::vector<uint64_t> numbers;
  for (const v1::HistoryEntry& entry : reply.entries()) numbers.push_back(entry.number());
  return numbers;
}

std::vector<uint64_t> NumbersOf(const v1::EventsReply& reply) {
  std::vector<uint64_t> numbers;
  for (const v1::ClusterEvent& event : reply.events()) numbers.push_back(event.number());
  return numbers;
}

TEST(HistoryTest, ReturnsEntriesAfterANumber) {
  History history("run-1", 100);
  Outbox out;
  for (uint32_t version = 1; version <= 5; ++version) history.Add(PointOf(version), kBegin, out);
  v1::HistoryRequest request;
  request.set_after(2);
  EXPECT_THAT(NumbersOf(history.Read(request)), ElementsAre(3, 4, 5));
  request.set_limit(1);
  EXPECT_THAT(NumbersOf(history.Read(request)), ElementsAre(3));
  EXPECT_EQ(history.Read(request).newest(), 5U);
  request.set_after(5);
  EXPECT_THAT(NumbersOf(history.Read(request)), ElementsAre());
}

TEST(HistoryTest, ReplyFitsIntoAMessage) {
  History many("run-1", 5000);
  Outbox out;
  for (uint32_t version = 1; version <= 1001; ++version) many.Add(PointOf(version), kBegin, out);
  EXPECT_EQ(many.Read({}).entries_size(), 1000) << "the default limit";
  v1::HistoryRequest request;
  request.set_limit(5000);
  EXPECT_EQ(many.Read(request).entries_size(), 1001);
  History large("run-1", 5000);
  for (uint32_t version = 1; version <= 50; ++version) {
    v1::CommitPoint point = PointOf(version);
    point.set_digest(std::string(100'000, 'x'));
    large.Add(point, kBegin, out);
  }
  const v1::HistoryReply reply = large.Read({});
  EXPECT_GE(reply.ByteSizeLong(), 4U << 20);
  EXPECT_LT(reply.ByteSizeLong(), (4U << 20) + 101'000);
  EXPECT_EQ(reply.newest(), 50U);
}

TEST(HistoryTest, ReplyIsFullWithFourMegabytes) {
  constexpr size_t kFull = 4 << 20;
  const auto read = [](size_t digest) {
    History history("run-1", 100);
    Outbox out;
    v1::CommitPoint large = PointOf(1);
    large.set_digest(std::string(digest, 'x'));
    history.Add(large, kBegin, out);
    history.Add(PointOf(2), kBegin, out);
    return history.Read({});
  };
  const size_t others = read(kFull).entries(0).ByteSizeLong() - kFull;
  EXPECT_EQ(read(kFull - others - 1).entries_size(), 2) << "a byte is left";
  EXPECT_EQ(read(kFull - others).entries_size(), 1);
}

TEST(HistoryTest, OldEntriesAreThinnedOut) {
  constexpr uint64_t kKeep = 32;
  constexpr uint32_t kVersions = 20'000;
  History history("run-1", kKeep);
  Outbox out;
  std::map<std::string, std::string> records;
  for (uint32_t version = 1; version <= kVersions; ++version) {
    if (version == 100) history.Add(v1::EvaluationResult(), kBegin, out);
    history.Add(PointOf(version), kBegin, out);
    Commit(out, records);
  }
  const v1::HistoryReply all = history.Read({});
  EXPECT_EQ(records.size(), static_cast<size_t>(all.entries_size()));
  // keep, plus nearly as many of each of two coarser levels.
  EXPECT_LE(records.size(), kKeep * 3);
  EXPECT_GE(records.size(), kKeep * 5 / 2);
  uint64_t newer = kVersions + 2;
  for (auto it = all.entries().rbegin(); it != all.entries().rend(); ++it) {
    const uint64_t age = kVersions + 1 - it->number();
    if (age < kKeep) {
      EXPECT_EQ(it->number() + 1, newer);
      EXPECT_EQ(it->commit().participants_size(), 2);
    } else {
      EXPECT_EQ(it->commit().participants_size(), 0);
      EXPECT_EQ(it->number() % 16, 0U);
    }
    newer = it->number();
  }
  EXPECT_LE(all.entries(0).number(), kVersions / 4U);
}

TEST(HistoryTest, OldEntriesLoseTheirParticipantsInTheStore) {
  History history("run-1", 1);
  Outbox out;
  std::map<std::string, std::string> records;
  for (uint32_t version = 1; version <= 17; ++version) {
    v1::CommitPoint point;
    point.set_version(version);
    point.add_participants()->set_group(3);
    history.Add(point, kBegin, out);
    Commit(out, records);
  }
  History restored("run-1", 1);
  ASSERT_TRUE(restored.Load(records).ok());
  for (const v1::HistoryReply& reply : {history.Read({}), restored.Read({})}) {
    ASSERT_THAT(NumbersOf(reply), ElementsAre(16, 17));
    EXPECT_EQ(reply.entries(0).commit().participants_size(), 0);
    EXPECT_EQ(reply.entries(1).commit().participants_size(), 1);
  }
}

TEST(HistoryTest, EvaluationsAreKeptLonger) {
  History history("run-1", 4);
  Outbox out;
  history.Add(PointOf(1), kBegin, out);
  v1::EvaluationResult result;
  result.set_accuracy(0.5);
  history.Add(result, kBegin, out);
  for (uint32_t version = 2; version <= 1000; ++version) history.Add(PointOf(version), kBegin, out);
  EXPECT_EQ(history.Read({}).entries(0).evaluation().accuracy(), 0.5);
  EXPECT_EQ(history.Read({}).entries(0).time_ms(), absl::ToUnixMillis(kBegin));
  for (uint32_t version = 1001; version <= 1100; ++version) {
    history.Add(PointOf(version), kBegin, out);
  }
  EXPECT_FALSE(history.Read({}).entries(0).has_evaluation());
}

TEST(HistoryTest, AdoptionCompletesTheParticipant) {
  History history("run-1", 100);
  Outbox out;
  std::map<std::string, std::string> records;
  history.Add(PointOf(1), kBegin, out);
  history.NoteAdopted(1, 1, 0.25F, 0.5F);
  history.NoteAdopted(1, 7, 1, 1);
  history.NoteAdopted(9, 1, 1, 1);
  history.NoteAdopted(1, 0, std::numeric_limits<float>::quiet_NaN(), -1);
  const v1::CommitPoint commit = history.Read({}).entries(0).commit();
  EXPECT_EQ(commit.participants(1).wait_seconds(), 0.25F);
  EXPECT_EQ(commit.participants(1).pull_seconds(), 0.5F);
  EXPECT_EQ(commit.participants(0).wait_seconds(), 0);
  EXPECT_EQ(commit.participants(0).pull_seconds(), 0);
  // Other entries may have been added since.
  history.Add(v1::EvaluationResult(), kBegin, out);
  history.Add(PointOf(4), kBegin, out);
  history.NoteAdopted(1, 0, 0.75F, 1);
  EXPECT_EQ(history.Read({}).entries(0).commit().participants(0).wait_seconds(), 0.75F);
  history.NoteAdopted(3, 0, 9, 9);
  const v1::HistoryReply all = history.Read({});
  for (const v1::HistoryEntry& entry : all.entries()) {
    for (const auto& times : entry.commit().participants()) EXPECT_LT(times.wait_seconds(), 1);
  }
  // Stored with the next entry.
  history.Add(PointOf(5), kBegin, out);
  Commit(out, records);
  History restored("run-1", 100);
  ASSERT_TRUE(restored.Load(records).ok());
  EXPECT_EQ(restored.Read({}).SerializeAsString(), history.Read({}).SerializeAsString());
}

TEST(HistoryTest, LoadsItsOwnEntriesOnly) {
  Outbox out;
  std::map<std::string, std::string> records;
  for (const char* run : {"run-1", "run-10"}) {
    History history(run, 100);
    history.Add(PointOf(1), kBegin, out);
  }
  Commit(out, records);
  History restored("run-1", 100);
  ASSERT_TRUE(restored.Load(records).ok());
  EXPECT_THAT(NumbersOf(restored.Read({})), ElementsAre(1));
  records[HistoryKey("run-1", 2)] = "\xff";
  EXPECT_TRUE(absl::IsDataLoss(History("run-1", 100).Load(records)));
}

TEST(EventLogTest, KeepsTheNewestEvents) {
  EventLog log(3);
  Outbox out;
  std::map<std::string, std::string> records;
  v1::ClusterEvent event;
  event.set_text("one\ntwo");
  for (int i = 0; i < 5; ++i) {
    event.set_run(i % 2 == 0 ? "run-1" : "run-2");
    log.Add(event, kBegin + absl::Seconds(i), out);
    Commit(out, records);
  }
  EXPECT_THAT(NumbersOf(log.Read({})), ElementsAre(3, 4, 5));
  EXPECT_EQ(log.Read({}).events(0).text(), "one\\ntwo");
  EXPECT_EQ(log.Read({}).events(0).time_ms(), absl::ToUnixMillis(kBegin + absl::Seconds(2)));
  v1::EventsRequest request;
  request.set_run("run-2");
  EXPECT_THAT(NumbersOf(log.Read(request)), ElementsAre(4));
  request.clear_run();
  request.set_after(3);
  request.set_limit(1);
  EXPECT_THAT(NumbersOf(log.Read(request)), ElementsAre(4));

  EventLog restored(3);
  for (const auto& [key, bytes] : records) ASSERT_TRUE(restored.Load(key, bytes).ok());
  EXPECT_EQ(restored.newest(), 5U);
  restored.Add(event, kBegin, out);
  EXPECT_THAT(NumbersOf(restored.Read({})), ElementsAre(4, 5, 6));
}

}  // namespace
}  // namespace cadre
