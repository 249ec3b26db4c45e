// Tests that a run continues undisturbed while all certificates are replaced and the old ones
// expire.
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/expect.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);
// Age of connections, which then have the same time again as a grace for their streams.
constexpr absl::Duration kAge = absl::Seconds(2);
// Time in which a busy host starts the cluster with the old certificates.
constexpr absl::Duration kOldValidity = absl::Seconds(25);

// The certificates of all programs.
void IssueAll(Cluster& cluster, absl::Time end) {
  EXPECT_THAT(cluster.Issue("operator", Role::kOperator, end), IsOk());
  EXPECT_THAT(cluster.Issue("coordinator", Role::kCoordinator, end), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(cluster.Issue(absl::StrCat("aggregator-", i), Role::kAggregator, end), IsOk());
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(cluster.Issue(absl::StrCat("worker-", i), Role::kWorker, end), IsOk());
  }
}

std::map<uint32_t, uint64_t> Generations(const v1::StatusReply& status) {
  std::map<uint32_t, uint64_t> generations;
  for (const v1::GroupStatus& group : status.groups()) {
    generations[group.group()] = group.generation();
  }
  return generations;
}

TEST(RotationTest, RunContinuesWhenCertificatesAreReplacedAndExpire) {
  Cluster cluster({.lease = absl::Seconds(4), .connection_age = kAge});
  const absl::Time old_end = absl::Now() + kOldValidity;
  IssueAll(cluster, old_end);
  // The plan is kept: otherwise the measured times of so small a model could cause groups to be
  // formed again.
  v1::RunSpec spec = SmallSpec({.every_steps = 8, .steps = 10'000'000});
  spec.mutable_cluster()->set_keep_plan(true);
  const absl::StatusOr<std::string> run = cluster.StartRun(spec);
  ASSERT_THAT(run, IsOk());
  const auto reached = [&](uint32_t version) {
    return [&, version](const v1::StatusReply& status) {
      const v1::RunStatus* found = FindRun(status, *run);
      return found != nullptr && found->version() >= version;
    };
  };
  const auto before = cluster.Await(reached(3), kLong, "version 3");
  ASSERT_THAT(before, IsOk());

  IssueAll(cluster, absl::Now() + absl::Hours(1));
  ASSERT_LT(absl::Now(), old_end) << "the host is too slow: the old certificates have expired";
  // All connections that were made with the old certificates have ended by then: after their age,
  // which gRPC varies by a tenth, and the grace.
  absl::SleepFor(old_end + 2.2 * kAge - absl::Now());
  const auto expired = cluster.client().Status();
  ASSERT_THAT(expired, IsOk());
  const uint32_t version = FindRun(*expired, *run)->version();
  const auto after = cluster.Await(reached(version + 5), kLong, "five further versions");
  ASSERT_THAT(after, IsOk());

  EXPECT_EQ(Generations(*after), Generations(*before)) << "a group was formed again";
  EXPECT_EQ(Counter(*after, "groups_left_out"), Counter(*before, "groups_left_out"));
  EXPECT_EQ(Counter(*after, "leases_lost"), 0u);
  EXPECT_THAT(cluster.client().Stop(*run, "the test ends"), IsOk());
  cluster.Kill("coordinator");
  const auto commits = cluster.Commits(*run);
  ASSERT_THAT(commits, IsOk());
  int incomplete = 0;
  for (const auto& [round, commit] : *commits) {
    if (round > 1 && commit.participants_size() != 2) ++incomplete;
  }
  EXPECT_EQ(incomplete, 0) << "of " << commits->size() << " rounds";
}

}  // namespace
}  // namespace cadre::testing
