#include "coordinator/cluster/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "coordinator/machine/stall_monitor.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(100);
constexpr absl::Duration kLease = absl::Seconds(10);

v1::MemberRecord Record(const std::string& id, v1::Role role, const std::string& name,
                        const std::string& incarnation) {
  v1::MemberRecord record;
  record.set_member_id(id);
  record.set_role(role);
  record.set_name(name);
  record.set_incarnation(incarnation);
  record.set_host("host");
  return record;
}

TEST(MembershipTest, LeaseIsRenewed) {
  Membership members(kLease);
  Member& member = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  EXPECT_EQ(members.NextExpiry(), kStart + kLease);
  EXPECT_THAT(members.Expired(kStart + kLease - absl::Nanoseconds(1)), IsEmpty());
  EXPECT_THAT(members.Expired(kStart + kLease), ElementsAre("w1"));
  members.Renew(member, kStart + absl::Seconds(5));
  EXPECT_THAT(members.Expired(kStart + kLease), IsEmpty());
  EXPECT_THAT(members.Expired(kStart + absl::Seconds(15)), ElementsAre("w1"));
}

TEST(MembershipTest, ProgramOfARemovedRankHasChanged) {
  Membership members(kLease);
  v1::MemberRecord rank = Record("w1", v1::ROLE_WORKER, "a", "p1");
  rank.mutable_reservation()->set_program("program");
  members.Add(rank, kStart);
  EXPECT_THAT(members.TakeChangedPrograms(), ElementsAre("program"));
  EXPECT_THAT(members.TakeChangedPrograms(), IsEmpty());
  members.Remove("w1");
  EXPECT_THAT(members.TakeChangedPrograms(), ElementsAre("program"));
}

TEST(MembershipTest, OneStreamAtATime) {
  Membership members(kLease);
  Member& member = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  members.AddPending(5, kStart);
  EXPECT_TRUE(members.IsPending(5));
  EXPECT_EQ(members.Attach(member, 5, kStart), 0u);
  EXPECT_FALSE(members.IsPending(5));
  EXPECT_EQ(members.ByConnection(5), &member);
  EXPECT_EQ(members.Attach(member, 6, kStart), 5u);
  EXPECT_EQ(members.ByConnection(5), nullptr);
  EXPECT_EQ(members.Detach(5), nullptr) << "the replaced stream no longer belongs to the member";
  EXPECT_EQ(member.connection, 6u);
  EXPECT_EQ(members.Detach(6), &member);
  EXPECT_EQ(member.connection, 0u);
}

TEST(MembershipTest, StreamWithoutHelloExpires) {
  Membership members(kLease);
  members.AddPending(5, kStart);
  EXPECT_THAT(members.WithoutHello(kStart), IsEmpty());
  EXPECT_EQ(members.NextExpiry(), kStart + kLease);
  EXPECT_THAT(members.WithoutHello(kStart + kLease), ElementsAre(5u));
  members.Detach(5);
  EXPECT_EQ(members.NextExpiry(), absl::InfiniteFuture());
}

TEST(MembershipTest, FindsByNameAndProcess) {
  Membership members(kLease);
  members.Add(Record("w2", v1::ROLE_WORKER, "same", "p2"), kStart);
  members.Add(Record("a1", v1::ROLE_AGGREGATOR, "same", "p1"), kStart);
  EXPECT_EQ(members.Aggregator("same")->id(), "a1");
  EXPECT_EQ(members.Aggregator("other"), nullptr);
  EXPECT_EQ(members.ByIncarnation(v1::ROLE_WORKER, "p2")->id(), "w2");
  EXPECT_EQ(members.ByIncarnation(v1::ROLE_WORKER, "p1"), nullptr);
}

TEST(MembershipTest, ChangesOfIdleWorkersAreCounted) {
  Membership members(kLease);
  Member& aggregator = members.Add(Record("a1", v1::ROLE_AGGREGATOR, "a", "p0"), kStart);
  members.Attach(aggregator, 1, kStart);
  Member& worker = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  EXPECT_EQ(members.idle_changes(), 0U) << "none is idle";
  members.Attach(worker, 2, kStart);
  EXPECT_THAT(members.idle(), ElementsAre("w1"));
  EXPECT_EQ(members.idle_changes(), 1U);
  members.Place(worker, v1::RankSlot());
  EXPECT_THAT(members.idle(), IsEmpty());
  EXPECT_EQ(members.idle_changes(), 2U);
  members.Detach(2);
  EXPECT_EQ(members.idle_changes(), 2U);
  members.Attach(worker, 3, kStart);
  members.Place(worker, std::nullopt);
  EXPECT_EQ(members.idle_changes(), 3U);
  members.Exclude(worker, /*excluded=*/true, /*withdrawn=*/false);
  EXPECT_EQ(members.idle_changes(), 4U);
}

// An excluded worker may be usable later; one that is withdrawn is not.
TEST(MembershipTest, WorkerThatIsWithdrawnLaterDoesNotCount) {
  Membership members(kLease);
  Member& worker = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  members.Attach(worker, 1, kStart);
  const auto usable = [&] {
    return members.counts().Usable(worker.record.device_kind(), v1::RunSpec::FP32);
  };
  members.Exclude(worker, /*excluded=*/true, /*withdrawn=*/false);
  EXPECT_EQ(usable(), 1U);
  members.Exclude(worker, /*excluded=*/true, /*withdrawn=*/true);
  EXPECT_EQ(usable(), 0U);
}

TEST(MembershipTest, PredecessorsOfRestartedWorker) {
  Membership members(kLease);
  Member& old = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  v1::Hello hello;
  hello.set_name("a");
  hello.set_host("host");
  hello.set_incarnation("p2");
  EXPECT_THAT(members.Predecessors(hello), ElementsAre("w1"));
  members.Attach(old, 4, kStart);
  EXPECT_THAT(members.Predecessors(hello), IsEmpty())
      << "the worker is connected: another one has the same name";
  members.Detach(4);
  hello.set_host("elsewhere");
  EXPECT_THAT(members.Predecessors(hello), IsEmpty());
}

TEST(MembershipTest, IdsSortByAge) {
  Membership members(kLease);
  for (const char* id : {"w10", "w2", "w9"}) {
    members.Add(Record(id, v1::ROLE_WORKER, id, id), kStart);
  }
  members.Add(Record("w11", v1::ROLE_WORKER, "w11", "w11"), kStart + kLease / 2);
  EXPECT_THAT(members.Expired(kStart + kLease), ElementsAre("w2", "w9", "w10"));
}

// Otherwise a coordinator without a network would end all groups.
TEST(MembershipTest, LeasesDoNotEndWithoutAnyMessage) {
  Membership members(kLease);
  Member& one = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  members.Add(Record("w2", v1::ROLE_WORKER, "b", "p2"), kStart);
  members.Attach(one, 1, kStart);
  const absl::Time later = kStart + absl::Minutes(5);
  EXPECT_THAT(members.Expired(later), IsEmpty());
  EXPECT_EQ(members.NextExpiry(), absl::InfiniteFuture());
  members.Renew(one, later);
  EXPECT_THAT(members.Expired(later), IsEmpty()) << "w2 has the rest of its lease";
  members.Renew(one, later + kLease * 0.4);
  members.Renew(one, later + kLease * 0.8);
  EXPECT_EQ(members.NextExpiry(), later + kLease) << "of w2";
  EXPECT_THAT(members.Expired(later + kLease), ElementsAre("w2"));
}

TEST(MembershipTest, SingleMemberIsLostLikeAnyOther) {
  Membership members(kLease);
  members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  EXPECT_EQ(members.NextExpiry(), kStart + kLease);
  EXPECT_THAT(members.Expired(kStart + kLease), ElementsAre("w1"));
}

TEST(MembershipTest, StallExtendsLeasesOnce) {
  Membership members(kLease);
  Member& member = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  members.AddPending(5, kStart);
  members.Extend(absl::Seconds(7));
  EXPECT_EQ(members.NextExpiry(), kStart + kLease + absl::Seconds(7));
  EXPECT_THAT(members.WithoutHello(kStart + kLease), IsEmpty());
  members.Renew(member, kStart + absl::Seconds(9));
  EXPECT_THAT(members.Expired(kStart + absl::Seconds(19)), ElementsAre("w1"));
}

// A stall is no silence of the members as well.
TEST(MembershipTest, StallExtendsLeasesOfSeveralMembersOnce) {
  Membership members(kLease);
  Member& one = members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  Member& other = members.Add(Record("w2", v1::ROLE_WORKER, "b", "p2"), kStart);
  members.Attach(one, 1, kStart);
  members.Attach(other, 2, kStart);
  members.Extend(absl::Hours(1));
  members.Renew(one, kStart + absl::Hours(1));
  EXPECT_EQ(members.NextExpiry(), absl::InfiniteFuture()) << "no message follows";
  members.Renew(one, kStart + absl::Hours(1) + kLease * 0.4);
  members.Renew(one, kStart + absl::Hours(1) + kLease * 0.8);
  EXPECT_THAT(members.Expired(kStart + absl::Hours(1) + kLease), ElementsAre("w2"));
}

// Between stalls, the messages of the members that live are received.
TEST(MembershipTest, AlternatingStallsDoNotKeepALostMember) {
  Membership members(kLease);
  members.Add(Record("w1", v1::ROLE_WORKER, "a", "p1"), kStart);
  Member& live = members.Add(Record("w2", v1::ROLE_WORKER, "b", "p2"), kStart);
  absl::Time now = kStart;
  while (now < kStart + 3 * kLease) {
    now += absl::Seconds(2);
    members.Extend(absl::Seconds(3));
    members.Renew(live, now);
  }
  EXPECT_THAT(members.Expired(now), ElementsAre("w1"));
}

std::string HostName(uint64_t number) { return absl::StrCat("host", number); }

// A membership that changes at random.
class RandomMembership {
 public:
  // Performs one operation.
  void Step() {
    now_ += absl::Milliseconds(Dice(50));
    std::vector<std::string> ids;
    for (const auto& [id, member] : members_.all()) ids.push_back(id);
    Member* const member = ids.empty() ? nullptr : members_.Find(ids[Dice(ids.size())]);
    const uint64_t operation = Dice(7);
    if (member == nullptr || (operation == 0 && ids.size() < 30)) {
      const bool worker = Dice(4) != 0;
      const std::string id = absl::StrCat(worker ? "w" : "a", ++last_id_);
      v1::MemberRecord record =
          Record(id, worker ? v1::ROLE_WORKER : v1::ROLE_AGGREGATOR,
                 worker ? absl::StrCat("name", Dice(5)) : id, absl::StrCat("p", last_id_));
      record.set_host(HostName(Dice(3)));
      record.set_device_kind(Dice(2) == 0 ? v1::Cluster::CPU : v1::Cluster::CUDA);
      members_.Add(record, now_);
      heard_ = now_;
    } else if (operation == 1) {
      members_.Remove(std::string(member->id()));
    } else if (operation == 2) {
      members_.AddPending(++last_connection_, now_);
      members_.Attach(*member, last_connection_, now_);
      heard_ = now_;
    } else if (operation == 3) {
      members_.Detach(member->connection);
    } else if (operation == 4) {
      members_.Renew(*member, now_);
      heard_ = now_;
    } else if (operation == 5 && member->worker()) {
      members_.Place(*member, Dice(2) == 0 ? std::nullopt : std::optional(v1::RankSlot()));
    } else {
      v1::MemberRecord record = member->record;
      record.set_host(HostName(Dice(3)));
      record.set_incarnation(absl::StrCat("q", Dice(1000000)));
      members_.Update(*member, record);
    }
  }

  void ExpectIndexesEqualWalk() {
    std::vector<std::string> idle;
    std::map<v1::Cluster::Device, size_t> kinds;
    std::map<std::string, int> placed;
    std::vector<std::string> expired;
    std::vector<std::string> aggregators;
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, each] : members_.all()) {
      const v1::MemberRecord& record = each.record;
      if (each.worker() && each.connected() && !each.place.has_value()) {
        idle.push_back(id);
        ++kinds[record.device_kind()];
      }
      if (each.place.has_value()) ++placed[record.host()];
      if (now_ >= each.lease_until) expired.push_back(id);
      next = std::min(next, each.lease_until);
      ASSERT_EQ(members_.ByIncarnation(record.role(), record.incarnation()), &each);
      if (each.worker()) continue;
      aggregators.push_back(id);
      ASSERT_EQ(members_.Aggregator(record.name()), &each);
    }
    ASSERT_THAT(members_.idle(), ElementsAreArray(idle));
    ASSERT_THAT(members_.aggregators(), ElementsAreArray(aggregators));
    ASSERT_THAT(members_.Expired(now_), ElementsAreArray(expired));
    const bool cut_off = members_.all().size() > 1 && next - heard_ > kLease / 2 &&
                         std::any_of(members_.all().begin(), members_.all().end(),
                                     [](const auto& entry) { return entry.second.connected(); });
    ASSERT_EQ(members_.NextExpiry(), cut_off ? absl::InfiniteFuture() : next);
    for (const auto kind : {v1::Cluster::CPU, v1::Cluster::CUDA}) {
      ASSERT_EQ(members_.counts().Idle(kind), kinds[kind]);
    }
    for (uint64_t host = 0; host < 3; ++host) {
      ASSERT_EQ(members_.counts().PlacedOn(HostName(host)), placed[HostName(host)]);
    }
  }

 private:
  uint64_t Dice(uint64_t sides) {
    return RandomBits(1, RandomStream::kTest, 0, ++counter_) % sides;
  }

  Membership members_{kLease};
  absl::Time now_ = kStart;
  absl::Time heard_ = kStart;
  uint64_t counter_ = 0;
  uint64_t last_id_ = 0;
  ConnectionId last_connection_ = 0;
};

TEST(MembershipTest, IndexesEqualWalk) {
  RandomMembership random;
  for (int step = 0; step < 4000; ++step) {
    random.Step();
    ASSERT_NO_FATAL_FAILURE(random.ExpectIndexesEqualWalk());
  }
}

TEST(StallMonitorTest, SustainedOverloadDoesNotExtendLeases) {
  StallMonitor monitor;
  EXPECT_EQ(monitor.OnRead(kMinStall), absl::ZeroDuration());
  EXPECT_EQ(monitor.OnRead(absl::Seconds(30)), absl::Seconds(30) + kReceiveTime);
  EXPECT_EQ(monitor.OnRead(absl::Seconds(2)), absl::ZeroDuration());
  EXPECT_EQ(monitor.OnRead(absl::Seconds(2)), absl::ZeroDuration());
  EXPECT_EQ(monitor.OnRead(absl::Milliseconds(3)), absl::ZeroDuration());
  EXPECT_EQ(monitor.OnRead(absl::Seconds(2)), absl::Seconds(2) + kReceiveTime)
      << "this is another stall";
}

}  // namespace
}  // namespace cadre
