#include "coordinator/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_THAT(members.Expired(kStart + kLease), ElementsAre("w2", "w9", "w10"));
}

}  // namespace
}  // namespace cadre
