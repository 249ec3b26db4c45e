// Records of failures: waits, quarantine, hosts, cordons.
#include "coordinator/cluster/standing.h"

#include <gtest/gtest.h>

namespace cadre::testing {
namespace {

constexpr v1::FailureCause kDevice = v1::FAILURE_CAUSE_DEVICE;
constexpr v1::FailureCause kData = v1::FAILURE_CAUSE_DATA;
constexpr v1::FailureCause kLease = v1::FAILURE_CAUSE_LEASE;

class StandingTest : public ::testing::Test {
 protected:
  void Fail(const Standings::Worker& worker, v1::FailureCause cause, int times = 1) {
    for (int i = 0; i < times; ++i) standings_.Fail(worker, cause, "the reason", now_);
  }
  absl::Duration WaitOf(const Standings::Worker& worker) const {
    return std::max(absl::ZeroDuration(), standings_.AvailableAt(worker) - now_);
  }

  const Standings::Worker a1_{"a", "w1"};
  const Standings::Worker a2_{"a", "w2"};
  const Standings::Worker a3_{"a", "w3"};
  const Standings::Worker b1_{"b", "w1"};
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Standings standings_;
};

TEST_F(StandingTest, WaitsDouble) {
  EXPECT_EQ(standings_.AvailableAt(a1_), absl::InfinitePast());
  for (const int seconds : {1, 2, 4, 8}) {
    Fail(a1_, kDevice);
    EXPECT_EQ(WaitOf(a1_), absl::Seconds(seconds));
  }
  EXPECT_EQ(standings_.AvailableAt(b1_), absl::InfinitePast());
  EXPECT_EQ(standings_.AvailableAt(a2_), absl::InfinitePast()) << "a device is not its host's";
  EXPECT_EQ(WaitAfter(0), absl::ZeroDuration());
  EXPECT_EQ(WaitAfter(1000), kMaxWait);
}

TEST_F(StandingTest, QuarantineEnds) {
  Fail(a1_, kDevice, 5);
  EXPECT_EQ(WaitOf(a1_), kQuarantine);
  const v1::Standing status = Standings::StatusOf(standings_.records().at({"a", "w1"}), now_);
  EXPECT_EQ(status.failures(), 5u);
  EXPECT_EQ(status.cause(), kDevice);
  EXPECT_EQ(status.reason(), "the reason");
  EXPECT_TRUE(status.quarantined());
  EXPECT_EQ(status.wait_seconds(), 3600);
  now_ += kQuarantine;
  EXPECT_EQ(WaitOf(a1_), absl::ZeroDuration());
  EXPECT_EQ(standings_.CountMarks(a1_, now_), 5u) << "workers without a record are preferred";
  EXPECT_FALSE(Standings::StatusOf(standings_.records().at({"a", "w1"}), now_).quarantined());
  Fail(a1_, kDevice);
  EXPECT_EQ(WaitOf(a1_), kQuarantine);
}

// Lost leases alone never lead to a quarantine, so they do not count towards one.
TEST_F(StandingTest, LostLeasesDoNotCountTowardsQuarantine) {
  Fail(a1_, kLease, 4);
  Fail(a1_, kDevice);
  EXPECT_LT(WaitOf(a1_), kMaxWait);
}

TEST_F(StandingTest, LostLeasesOfAHostDoNotCountTowardsItsQuarantine) {
  for (int incident = 0; incident < 4; ++incident) {
    Fail(a1_, kLease);
    Fail(a2_, kLease);
    now_ += absl::Minutes(1);
  }
  Fail(a3_, kData);
  EXPECT_LT(WaitOf(a1_), kMaxWait);
}

TEST_F(StandingTest, TrustReturnsAfterAMinute) {
  EXPECT_TRUE(standings_.IsTrusted(a1_, now_));
  Fail(a1_, kLease);
  EXPECT_TRUE(standings_.IsTrusted(a1_, now_));
  Fail(b1_, kDevice);
  EXPECT_FALSE(standings_.IsTrusted(b1_, now_ + absl::Seconds(60)));
  EXPECT_TRUE(standings_.IsTrusted(b1_, now_ + absl::Seconds(61)));
}

TEST_F(StandingTest, SuccessErasesRecords) {
  Fail(a1_, kData);
  Fail(a2_, kData);
  Fail(b1_, kDevice);
  standings_.Succeed(a1_);
  EXPECT_EQ(standings_.AvailableAt(a1_), absl::InfinitePast());
  EXPECT_EQ(WaitOf(a2_), absl::Seconds(1));
  EXPECT_EQ(WaitOf(a3_), absl::ZeroDuration()) << "the host's record is erased as well";
  EXPECT_EQ(WaitOf(b1_), absl::Seconds(1));
}

TEST_F(StandingTest, HostIsExcludedAfterTwoWorkers) {
  Fail(a1_, kData, 3);
  EXPECT_EQ(WaitOf(a3_), absl::ZeroDuration());
  Fail(a2_, kData);
  EXPECT_GT(WaitOf(a3_), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(b1_), absl::ZeroDuration());
}

TEST_F(StandingTest, FailuresOfDevicesAreNotTheHosts) {
  Fail(a1_, kDevice);
  Fail(a2_, v1::FAILURE_CAUSE_MEMORY);
  EXPECT_EQ(standings_.AvailableAt(a3_), absl::InfinitePast());
}

// A host that was away for a moment loses all its leases.
TEST_F(StandingTest, LeasesOfOneHostAreOneIncident) {
  for (const auto& worker : {a1_, a2_, a3_}) {
    Fail(worker, kLease);
    EXPECT_EQ(WaitOf(worker), absl::ZeroDuration());
  }
  EXPECT_GT(standings_.CountMarks(a1_, now_), 0u);
  EXPECT_EQ(standings_.records().at({"a", ""}).failed().failures(), 1u);
  EXPECT_GT(standings_.CountMarks({"a", "w4"}, now_), 0u) << "other hosts are preferred";
  now_ += absl::Minutes(1);
  Fail(a1_, kLease);
  EXPECT_EQ(standings_.records().at({"a", ""}).failed().failures(), 2u);
  EXPECT_EQ(WaitOf(a1_), absl::Seconds(1));
  EXPECT_EQ(WaitOf(a2_), absl::ZeroDuration());
  Fail(a1_, kLease, 100);
  EXPECT_EQ(WaitOf(a1_), absl::Seconds(30));
}

TEST_F(StandingTest, FailuresOfAHostWithin15SecondsAreOneIncident) {
  const auto of_host = [&] { return standings_.records().at({"a", ""}).failed().failures(); };
  Fail(a1_, kData);
  now_ += absl::Milliseconds(14'999);
  Fail(a1_, kData);
  EXPECT_EQ(of_host(), 1U) << "the same worker, for the same cause";
  now_ += absl::Seconds(15);
  Fail(a1_, kData);
  EXPECT_EQ(of_host(), 2U);
  Fail(a1_, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_EQ(of_host(), 3U) << "another cause";
  Fail(a2_, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_EQ(of_host(), 4U) << "another worker";
  EXPECT_EQ(standings_.records().at({"a", ""}).workers_size(), 2);
}

TEST_F(StandingTest, WhatIsKeptOfAFailureIsLimited) {
  standings_.Fail(a1_, kData, std::string(600, 'x'), now_);
  EXPECT_EQ(standings_.records().at({"a", "w1"}).failed().reason().size(), 500U);
  for (int i = 0; i < 70; ++i) Fail({"a", std::to_string(i)}, kData);
  EXPECT_EQ(standings_.records().at({"a", ""}).workers_size(), 64);
}

TEST_F(StandingTest, LostLeasesCostUpToHalfAMinute) {
  for (const int seconds : {0, 1, 2, 4, 8, 16, 30, 30}) {
    Fail(a1_, kLease);
    EXPECT_EQ(WaitOf(a1_), absl::Seconds(seconds));
  }
  EXPECT_TRUE(standings_.IsTrusted(a1_, now_ + absl::Seconds(30)));
  EXPECT_FALSE(standings_.IsTrusted(a1_, now_ + absl::Seconds(29)));
}

TEST_F(StandingTest, CauseThatWasWrongIsForgiven) {
  Fail(a1_, kData);
  Fail(b1_, kDevice);
  standings_.Cordon(a2_);
  Fail(a2_, kData);
  standings_.Forgive(kData);
  EXPECT_EQ(WaitOf(a1_), absl::ZeroDuration());
  EXPECT_FALSE(standings_.records().contains({"a", ""}));
  EXPECT_EQ(WaitOf(b1_), absl::Seconds(1));
  EXPECT_EQ(standings_.records().at({"a", "w2"}).failed().failures(), 0U);
  EXPECT_TRUE(standings_.IsCordoned(a2_));
  standings_.TakeChanged();
  standings_.Forgive(kData);
  standings_.Succeed(a2_);
  EXPECT_TRUE(standings_.TakeChanged().empty()) << "nothing is recorded of it";
}

TEST_F(StandingTest, CordonedHostForgetsItsWorkers) {
  standings_.Cordon({"a", ""});
  Fail(a1_, kData);
  Fail(a2_, kData);
  standings_.Succeed(a1_);
  EXPECT_EQ(standings_.records().at({"a", ""}).workers_size(), 0);
  EXPECT_TRUE(standings_.IsCordoned(a1_));
}

TEST_F(StandingTest, DrainIsThatOfOneProcess) {
  EXPECT_EQ(standings_.DrainedUntil(a1_, "p1"), std::nullopt);
  standings_.Drain(a1_, "p1", now_ + absl::Seconds(5));
  EXPECT_TRUE(standings_.IsCordoned(a1_));
  EXPECT_EQ(standings_.DrainedUntil(a1_, "p1"), now_ + absl::Seconds(5));
  EXPECT_EQ(standings_.DrainedUntil(a1_, "p2"), std::nullopt);
  standings_.Drain(a1_, "p2", absl::InfiniteFuture());
  EXPECT_EQ(standings_.DrainedUntil(a1_, "p2"), absl::InfiniteFuture());
}

TEST_F(StandingTest, DoubtsThatAreOverDoNotAddUp) {
  const auto doubt = [&] { standings_.Doubt(a1_, now_, now_ + absl::Seconds(2)); };
  doubt();
  now_ += absl::Seconds(2);
  doubt();
  EXPECT_EQ(standings_.CountMarks(a1_, now_), 1U);
  standings_.Succeed(a1_);
  EXPECT_EQ(standings_.CountMarks(a1_, now_), 0U);
  doubt();
  standings_.Clear(a1_);
  EXPECT_EQ(standings_.CountMarks(a1_, now_), 0U);
}

TEST_F(StandingTest, FailuresOfOneWorkerAreNoMarkOfItsHost) {
  Fail(a1_, kData, 2);
  EXPECT_EQ(standings_.CountMarks(a1_, now_), 2U);
  EXPECT_EQ(standings_.CountMarks(a2_, now_), 0U);
  Fail(a2_, kData);
  EXPECT_EQ(standings_.CountMarks(a3_, now_), 2U) << "two workers have failed";
}

TEST_F(StandingTest, StatusOfARecordWhoseWaitIsOver) {
  Fail(a1_, kDevice);
  const v1::StandingRecord record = standings_.records().at({"a", "w1"});
  EXPECT_EQ(Standings::StatusOf(record, now_).wait_seconds(), 1);
  EXPECT_FALSE(Standings::StatusOf(record, now_).quarantined());
  EXPECT_EQ(Standings::StatusOf(record, now_ + absl::Seconds(1)).wait_seconds(), 0);
  EXPECT_EQ(Standings::StatusOf(record, now_ + absl::Seconds(1)).failures(), 1U);
  standings_.Cordon(a1_);
  EXPECT_EQ(Standings::StatusOf(standings_.records().at({"a", "w1"}), now_).wait_seconds(), 1)
      << "beside the cordon";
}

TEST(FailureCauseTest, WhoIsToBlame) {
  const struct {
    v1::FailureCause cause;
    bool of_sender, permanent;
  } cases[] = {
      {v1::FAILURE_CAUSE_DATA, true, true},       {v1::FAILURE_CAUSE_DATA_DIFFERS, true, true},
      {v1::FAILURE_CAUSE_CHECKPOINT, true, true}, {v1::FAILURE_CAUSE_MEMORY, true, true},
      {v1::FAILURE_CAUSE_PLAN, true, true},       {v1::FAILURE_CAUSE_DEVICE, true, false},
      {v1::FAILURE_CAUSE_DIGEST, true, false},    {v1::FAILURE_CAUSE_CLAIM, true, false},
      {v1::FAILURE_CAUSE_PEER, false, false},     {v1::FAILURE_CAUSE_LEASE, false, false},
      {v1::FAILURE_CAUSE_DIVERGED, false, false},
  };
  for (const auto& [cause, of_sender, permanent] : cases) {
    EXPECT_EQ(IsOfSender(cause), of_sender) << cause;
    EXPECT_EQ(IsPermanent(cause), permanent) << cause;
  }
}

TEST_F(StandingTest, CordonOfWorkerAndOfHost) {
  standings_.Cordon(a1_);
  EXPECT_TRUE(standings_.IsCordoned(a1_));
  EXPECT_FALSE(standings_.IsCordoned(a2_));
  Fail(a1_, kDevice);
  standings_.Succeed(a1_);
  EXPECT_TRUE(standings_.IsCordoned(a1_)) << "only an operator ends a cordon";
  EXPECT_EQ(standings_.records().at({"a", "w1"}).failed().failures(), 0u);
  standings_.Clear(a1_);
  EXPECT_FALSE(standings_.IsCordoned(a1_));
  standings_.Cordon({"a", ""});
  EXPECT_TRUE(standings_.IsCordoned(a1_));
  EXPECT_TRUE(standings_.IsCordoned(a2_));
  EXPECT_FALSE(standings_.IsCordoned(b1_));
}

TEST_F(StandingTest, DoubtOnlyChangesThePreference) {
  standings_.Doubt(a1_, now_, now_ + absl::Seconds(2));
  EXPECT_GT(standings_.CountMarks(a1_, now_), 0u);
  EXPECT_EQ(standings_.AvailableAt(a1_), absl::InfinitePast());
  EXPECT_EQ(standings_.CountMarks(a1_, now_ + absl::Seconds(2)), 0u);
  EXPECT_TRUE(standings_.records().empty());
}

// Otherwise two ranks that hang would be chosen forever before a worker that has failed once.
TEST_F(StandingTest, RepeatedDoubtsExceedFailures) {
  Fail(b1_, kData, 2);
  standings_.Doubt(a1_, now_, now_ + absl::Minutes(1));
  EXPECT_LT(standings_.CountMarks(a1_, now_), standings_.CountMarks(b1_, now_));
  standings_.Doubt(a1_, now_, now_ + absl::Minutes(1));
  standings_.Doubt(a1_, now_, now_ + absl::Seconds(1));
  now_ += absl::Seconds(2);
  EXPECT_GT(standings_.CountMarks(a1_, now_), standings_.CountMarks(b1_, now_));
}

TEST_F(StandingTest, RecordsAreRestored) {
  Fail(a1_, kData, 2);
  standings_.Cordon(b1_);
  Standings restored;
  for (const auto& key : standings_.TakeChanged()) restored.Load(standings_.records().at(key));
  EXPECT_EQ(restored.AvailableAt(a1_), standings_.AvailableAt(a1_));
  EXPECT_TRUE(restored.IsCordoned(b1_));
  EXPECT_TRUE(restored.TakeChanged().empty());
  standings_.Clear(b1_);
  EXPECT_EQ(standings_.TakeChanged(), (std::set<Standings::Key>{{"b", "w1"}}));
  EXPECT_TRUE(standings_.TakeChanged().empty());
}

// Otherwise names that are never used again would fill the store.
TEST_F(StandingTest, OldestRecordsAreErased) {
  standings_.Cordon(b1_);
  for (int i = 0; i < 10'005; ++i) {
    Fail({"c", std::to_string(i)}, kDevice);
    now_ += absl::Seconds(1);
  }
  EXPECT_EQ(standings_.records().size(), 10'000U);
  EXPECT_TRUE(standings_.IsCordoned(b1_)) << "only an operator ends a cordon";
  EXPECT_FALSE(standings_.records().contains({"c", "5"}));
  EXPECT_TRUE(standings_.records().contains({"c", "6"}));
  const auto changed = standings_.TakeChanged();
  EXPECT_TRUE(changed.contains({"c", "0"})) << "its record is erased from the store";
}

}  // namespace
}  // namespace cadre::testing
