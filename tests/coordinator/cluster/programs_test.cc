#include "coordinator/cluster/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Member MakeRank(const std::string& program, uint32_t rank, absl::Time last_heard) {
  Member member;
  member.record.set_member_id(absl::StrCat("w", rank + 1));
  member.record.set_role(v1::ROLE_WORKER);
  member.record.set_name(absl::StrCat("name-", rank));
  member.record.set_host("host");
  member.record.set_incarnation(absl::StrCat("process-", rank));
  v1::Reservation& reservation = *member.record.mutable_reservation();
  reservation.set_run("run");
  reservation.set_program(program);
  reservation.set_ranks(100);
  reservation.set_rank(rank);
  member.last_heard = last_heard;
  return member;
}

TEST(ProgramsTest, OldestEndedProgramIsForgotten) {
  const Membership members(absl::Seconds(10));
  Programs programs(members);
  // The newest has the smallest identity.
  const auto name = [](size_t i) { return absl::StrFormat("program-%05d", kMaxEndedPrograms - i); };
  for (size_t i = 0; i < kMaxEndedPrograms; ++i) programs.NoteEnded(name(i), absl::StrCat(i));
  programs.NoteEnded(name(5), "again");
  ASSERT_NE(programs.ReasonOfEnd(name(0)), nullptr) << "a repetition needs no room";
  EXPECT_EQ(*programs.ReasonOfEnd(name(5)), "5");
  programs.NoteEnded(name(kMaxEndedPrograms), "the newest");
  EXPECT_EQ(programs.ReasonOfEnd(name(0)), nullptr);
  for (size_t i = 1; i <= kMaxEndedPrograms; ++i) {
    EXPECT_NE(programs.ReasonOfEnd(name(i)), nullptr) << i;
  }
  programs.NoteEnded("one more", "the newest");
  EXPECT_EQ(programs.ReasonOfEnd(name(1)), nullptr);
  EXPECT_NE(programs.ReasonOfEnd(name(2)), nullptr);
}

TEST(ProgramsTest, OldestLostRankIsForgotten) {
  const absl::Time begin = absl::UnixEpoch();
  const Membership members(absl::Seconds(10));
  Programs programs(members);
  Outbox out;
  std::map<std::string, std::string> store;
  const auto commit = [&] {
    for (const Action& action : out.Take()) {
      testing::ApplyTo(store, std::get<Store::Op>(action));
    }
  };
  for (size_t i = 0; i <= kMaxLostRanks; ++i) {
    // The one that was added as the fifth was heard first.
    const absl::Duration heard = absl::Seconds(i == 4 ? 0 : i + 1);
    programs.AddLost(MakeRank(absl::StrCat("program-", i), 0, begin + heard),
                     begin + absl::Seconds(i), out);
    commit();
  }
  EXPECT_EQ(store.size(), kMaxLostRanks);
  EXPECT_FALSE(store.contains(LostRankKey("program-4", 0)));
  EXPECT_EQ(programs.NextDeadline(), begin);
  for (size_t i = 0; i <= kMaxLostRanks; ++i) programs.Forget(absl::StrCat("program-", i), out);
  commit();
  EXPECT_TRUE(store.empty());
  EXPECT_EQ(programs.NextDeadline(), absl::InfiniteFuture());
}

// A process that has lost its stream, and its successor, in the order of their ids.
TEST(ProgramsTest, RankWithAConnectedProcessIsNotMissing) {
  for (const bool first_connected : {false, true}) {
    Membership members(absl::Seconds(10));
    const Programs programs(members);
    for (const bool first : {true, false}) {
      Member rank = MakeRank("program", 0, absl::UnixEpoch());
      rank.record.mutable_reservation()->set_ranks(1);
      rank.record.set_member_id(first ? "w1" : "w2");
      rank.record.set_incarnation(first ? "p1" : "p2");
      Member& member = members.Add(rank.record, absl::UnixEpoch());
      if (first == first_connected) members.Attach(member, 1, absl::UnixEpoch());
    }
    EXPECT_EQ(programs.MissingRanks(members.Find("w1")->record.reservation()), "");
    members.Detach(1);
    EXPECT_THAT(programs.MissingRanks(members.Find("w1")->record.reservation()),
                StartsWith("rank 0 ('name-0' on host, no message since 1970-01-01 00:00:00 UTC)"));
  }
}

TEST(ProgramsTest, EndOfTheProgramIsThatOfItsFirstLimit) {
  const absl::Time begin = absl::UnixEpoch();
  Membership members(absl::Seconds(10));
  Programs programs(members);
  Outbox out;
  Member rank = MakeRank("program", 0, begin);
  rank.record.mutable_reservation()->set_ranks(2);
  programs.AddLost(rank, absl::InfiniteFuture(), out);
  rank.record.mutable_reservation()->set_rank(1);
  programs.AddLost(rank, absl::InfiniteFuture(), out);
  EXPECT_EQ(programs.NextDeadline(), absl::InfiniteFuture());
  programs.SetLimit("another", begin);
  EXPECT_EQ(programs.NextDeadline(), absl::InfiniteFuture());
  programs.SetLimit("program", begin + absl::Minutes(2));
  EXPECT_EQ(programs.NextDeadline(), begin + absl::Minutes(2));
  EXPECT_THAT(programs.MissingRanks(rank.record.reservation()),
              HasSubstr(" of 2; the program ends at 1970-01-01 00:02:00 UTC without them"));
  EXPECT_TRUE(programs.Due(begin + absl::Minutes(2) - absl::Seconds(1)).empty());
  EXPECT_EQ(programs.Due(begin + absl::Minutes(2)).size(), 2U);
  // One of them has returned: the other one has more time.
  programs.OnJoined(rank.record.reservation(), begin + absl::Minutes(3), out);
  EXPECT_EQ(programs.NextDeadline(), begin + absl::Minutes(3));
  programs.OnJoined(rank.record.reservation(), begin + absl::Minutes(1), out);
  EXPECT_EQ(programs.NextDeadline(), begin + absl::Minutes(3)) << "not less";
}

// The process that was lost has a successor, which may return until its lease ends.
TEST(ProgramsTest, LimitOfALostProcessIsNotThatOfItsSuccessor) {
  Membership members(absl::Seconds(10));
  Programs programs(members);
  Outbox out;
  const Member rank = MakeRank("program", 0, absl::UnixEpoch());
  programs.AddLost(rank, absl::UnixEpoch() + absl::Minutes(2), out);
  v1::Reservation one = rank.record.reservation();
  one.set_ranks(1);
  EXPECT_THAT(programs.MissingRanks(one), HasSubstr("the program ends at"));
  members.Add(rank.record, absl::UnixEpoch());
  EXPECT_THAT(programs.MissingRanks(one), ::testing::Not(HasSubstr("the program ends at")));
}

TEST(ProgramsTest, ManyMissingRanksAreCounted) {
  Membership members(absl::Seconds(10));
  const Programs programs(members);
  const Member rank = MakeRank("program", 3, absl::UnixEpoch());
  Member& member = members.Add(rank.record, absl::UnixEpoch());
  members.Attach(member, 1, absl::UnixEpoch());
  const std::string missing = programs.MissingRanks(rank.record.reservation());
  EXPECT_THAT(missing, StartsWith("ranks 0 (has not joined), 1 (has not joined), 2 (has not "
                                  "joined), 4 (has not joined)"));
  EXPECT_THAT(missing, HasSubstr("8 (has not joined) and 91 more of 100"));
  v1::Reservation smaller = rank.record.reservation();
  smaller.set_ranks(10);
  EXPECT_THAT(programs.MissingRanks(smaller), HasSubstr("8 (has not joined) and 1 more of 10"));
  smaller.set_ranks(9);
  EXPECT_THAT(programs.MissingRanks(smaller), HasSubstr("8 (has not joined) of 9"));
}

}  // namespace
}  // namespace cadre
