// The numbers, keys and counters that a coordinator continues with after a restart.
#include "coordinator/cluster/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

#include "coordinator/store/keys.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// A gap that depends on the time adds nothing at this one.
const absl::Time kNow = absl::FromUnixMillis(int64_t{kBackupGap} * 100'000);

std::optional<v1::MetaRecord> StoredMeta(Journal& journal) {
  std::optional<v1::MetaRecord> meta;
  for (const Action& action : journal.Take()) {
    const auto* const op = std::get_if<Store::Op>(&action);
    if (op == nullptr || op->key != kMetaKey) continue;
    EXPECT_TRUE(meta.emplace().ParseFromString(op->value));
  }
  return meta;
}

class JournalTest : public ::testing::Test {
 protected:
  // A coordinator that starts with the record of the one before.
  Journal& Start(const v1::MetaRecord& meta, uint64_t epoch = 1, absl::Time now = kNow) {
    Journal& journal = journal_.emplace(options_);
    journal.Begin(now);
    journal.Restore(meta, epoch);
    return journal;
  }

  CoordinatorOptions options_;
  std::optional<Journal> journal_;
};

TEST_F(JournalTest, NewStoreBeginsWithTheFirstNumbers) {
  Journal& journal = Start({}, 7);
  EXPECT_EQ(journal.meta().starts(), 1U);
  EXPECT_EQ(journal.meta().epoch(), 7U);
  EXPECT_EQ(journal.NewGeneration(), 1U);
  EXPECT_EQ(journal.NewRun(), 1U);
  EXPECT_EQ(journal.NewMember(), 1U);
  EXPECT_EQ(journal.NewMember(), 2U);
  EXPECT_THAT(journal.event_log().Read({}).events(0).text(),
              HasSubstr("the coordinator has started, start 1"));
}

// Another coordinator with a copy of the store may assign the numbers that are left out.
TEST_F(JournalTest, RestartLeavesOutGenerations) {
  v1::MetaRecord meta = Start({}).meta();
  meta.set_generation(5);
  meta.set_run(3);
  Journal& second = Start(meta, 1);
  EXPECT_EQ(second.meta().epoch(), 2U) << "an epoch is never repeated";
  EXPECT_EQ(second.meta().starts(), 2U);
  EXPECT_EQ(second.NewGeneration(), 5 + kGenerationGap + 1);
  EXPECT_EQ(second.NewRun(), 4U);
  EXPECT_EQ(Start(meta, 9).meta().epoch(), 9U);
  EXPECT_EQ(Start(meta, 1, kNow + absl::Milliseconds(12)).meta().generation(),
            5 + kGenerationGap + 12);
}

TEST_F(JournalTest, BackupLeavesOutMore) {
  v1::MetaRecord meta = Start({}).meta();
  meta.set_generation(5);
  meta.set_run(3);
  meta.set_backup(true);
  Journal& journal = Start(meta);
  EXPECT_EQ(journal.meta().generation(), 5 + kBackupGap);
  EXPECT_EQ(journal.NewRun(), 3 + kBackupRuns + 1);
  EXPECT_FALSE(journal.meta().backup()) << "the next start is one with its own store";
}

TEST_F(JournalTest, UpperHalfOfTheNumbersHasNoGaps) {
  v1::MetaRecord meta = Start({}).meta();
  meta.set_generation(kMaxReportedNumber);
  EXPECT_EQ(Start(meta).meta().generation(), kMaxReportedNumber + kGenerationGap);
  meta.set_generation(kMaxReportedNumber + 1);
  EXPECT_EQ(Start(meta).meta().generation(), kMaxReportedNumber + 1);
}

// The aggregators have the keys of generations that were formed before the restart.
TEST_F(JournalTest, KeysAreTheSameAfterARestart) {
  options_.key_seed = std::string(16, 'a');
  Journal& first = Start({});
  const std::string key = first.KeyOf(7);
  EXPECT_EQ(key.size(), 16U);
  EXPECT_NE(first.KeyOf(8), key);
  const v1::MetaRecord meta = first.meta();
  options_.key_seed = std::string(16, 'b');
  EXPECT_EQ(Start(meta).KeyOf(7), key);
  EXPECT_NE(Start({}).KeyOf(7), key) << "another store has other keys";
}

TEST_F(JournalTest, ChangesAreStoredOnce) {
  Journal& journal = Start({});
  EXPECT_TRUE(StoredMeta(journal).has_value());
  EXPECT_FALSE(StoredMeta(journal).has_value()) << "nothing has changed";
  journal.NewGeneration();
  EXPECT_EQ(StoredMeta(journal)->generation(), 1U);
  journal.NewRun();
  EXPECT_EQ(StoredMeta(journal)->run(), 1U);
  journal.NewMember();
  EXPECT_EQ(StoredMeta(journal)->member(), 1U);
  journal.Count("runs_submitted", 2);
  journal.CountRefusal(v1::REFUSAL_MALFORMED);
  const auto counted = StoredMeta(journal);
  EXPECT_EQ(counted->counters().at("runs_submitted"), 2U);
  EXPECT_EQ(counted->counters().at("refused_malformed"), 1U);
  journal.NoteRemovedRun(4);
  journal.NoteRemovedRun(2);
  EXPECT_EQ(StoredMeta(journal)->removed_run(), 4U);
  journal.SkipRuns(20);
  journal.SkipRuns(19);
  EXPECT_EQ(StoredMeta(journal)->run(), 20U);
  journal.SkipGenerations(10);
  journal.SkipGenerations(9);
  EXPECT_EQ(StoredMeta(journal)->generation(), 10 + kUnknownGenerations);
}

// A coordinator that runs with another copy of the store may have had the same report.
TEST_F(JournalTest, GenerationsAfterAReportDependOnTheTime) {
  Journal& journal = Start({}, 1, kNow + absl::Milliseconds(12));
  journal.SkipGenerations(10);
  EXPECT_EQ(journal.NewGeneration(), 10 + kUnknownGenerations + 12 + 1);
}

TEST_F(JournalTest, TimeNeverDecreases) {
  Journal& journal = Start({});
  journal.Begin(kNow + absl::Seconds(2));
  journal.Begin(kNow + absl::Seconds(1));
  EXPECT_EQ(journal.now(), kNow + absl::Seconds(2));
  EXPECT_EQ(journal.started(), kNow);
}

TEST_F(JournalTest, EventsNameWhatTheyConcern) {
  Journal& journal = Start({});
  journal.ReportRun(v1::EVENT_KIND_RUN_STATE, "run-1", "it runs");
  v1::RankSlot group;
  group.set_run("run-2");
  group.set_group(3);
  journal.ReportGroup(v1::EVENT_KIND_MESSAGE_REFUSED, group, "it is refused");
  const v1::EventsReply reply = journal.event_log().Read({});
  ASSERT_EQ(reply.events_size(), 3);
  EXPECT_EQ(reply.events(1).kind(), v1::EVENT_KIND_RUN_STATE);
  EXPECT_EQ(reply.events(1).run(), "run-1");
  EXPECT_EQ(reply.events(1).text(), "it runs");
  EXPECT_EQ(reply.events(1).time_ms(), absl::ToUnixMillis(kNow));
  EXPECT_EQ(reply.events(2).kind(), v1::EVENT_KIND_MESSAGE_REFUSED);
  EXPECT_EQ(reply.events(2).run(), "run-2");
  EXPECT_EQ(reply.events(2).group(), 3U);
  EXPECT_EQ(reply.events(2).text(), "it is refused");
}

TEST_F(JournalTest, LimitsAreCountedWhenTheyAreReached) {
  Journal& journal = Start({});
  journal.SetLimitReached("no file is left");
  EXPECT_EQ(journal.limit_reached(), "no file is left");
  EXPECT_EQ(journal.meta().counters().at("limits_reached"), 1U);
  EXPECT_EQ(journal.event_log().Read({}).events(1).text(), "no file is left");
  journal.SetLimitReached("");
  EXPECT_EQ(journal.limit_reached(), "");
  EXPECT_EQ(journal.meta().counters().at("limits_reached"), 1U);
  EXPECT_THAT(journal.event_log().Read({}).events(2).text(), HasSubstr("has room"));
}

}  // namespace
}  // namespace cadre
