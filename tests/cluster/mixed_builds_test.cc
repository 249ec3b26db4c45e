// The members of a run are replaced, one after another, by those of another build, and back again,
// while the run trains; its bits are those of a run of one build.
//
//   CADRE_OTHER_BUILD=FOLDER build/tests/cluster_mixed_builds_test
//
// FOLDER has the programs of the other build (tests/upgrade.sh makes them from an earlier
// revision). Without it the other build is this one, and the test shows that planned restarts
// change no bit.
//
// Why the bits must be equal (docs/design/rounds.md, docs/design/membership.md):
//   - A round is one step (every_steps: 1), and waits for both groups (min_groups: 2). So the
//     contributions of a round are those of the same step, whenever a group leaves or catches up.
//   - A worker that is terminated finishes the round and gives its states, momentum and what codes
//     have left out, to the other rank of its group. A group waits for its second rank
//     (min_ranks_per_group: 2), which takes them over.
//   - The groups do not train while the coordinator is away (max_solo_steps: 0).
//   - Plans do not depend on measurements (keep_plan), and a sum over two ranks or two groups has
//     one order.
#include <signal.h>
#include <stdlib.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

// Limit of each wait: for the end of a process, and for the next versions.
constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr absl::Duration kReferenceLimit = absl::Minutes(15);
// Versions that the run makes between two replacements.
constexpr uint32_t kVersionsBetween = 3;
constexpr uint32_t kGroups = 2;
constexpr uint32_t kRanks = 2;
constexpr uint32_t kAggregators = 2;

v1::RunSpec CodedSpec(uint32_t steps) {
  v1::RunSpec spec = SmallSpec({.groups = kGroups,
                                .ranks = kRanks,
                                .aggregators = kAggregators,
                                .every_steps = 1,
                                .steps = steps,
                                .min_ranks = kRanks,
                                .rejoin_wait_ms = 60'000});
  spec.mutable_cluster()->set_keep_plan(true);
  v1::Averaging& averaging = *spec.mutable_averaging();
  averaging.set_min_groups(kGroups);
  averaging.mutable_up()->set_codec(v1::CODEC_INT8);
  averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
  averaging.mutable_outer()->mutable_nesterov()->set_learning_rate(0.7F);
  averaging.mutable_outer()->mutable_nesterov()->set_momentum(0.5F);
  return spec;
}

std::string OtherBuild() {
  const char* const folder = getenv("CADRE_OTHER_BUILD");
  return folder == nullptr ? CADRE_THIS_BUILD : folder;
}

void Report(const std::string& what) {
  static const absl::Time begin = absl::Now();
  std::cout << absl::StrFormat("mixed builds: [%3d s] ", absl::ToInt64Seconds(absl::Now() - begin))
            << what << std::endl;
}

// The last version of a run that had one build throughout.
std::string DigestOfOneBuild(const std::string& programs, uint32_t steps) {
  Cluster cluster;
  cluster.UsePrograms(programs);
  const auto run = cluster.StartRun(CodedSpec(steps));
  EXPECT_TRUE(run.ok()) << run.status();
  if (!run.ok()) return "";
  const auto done = cluster.AwaitDone(*run, kReferenceLimit);
  EXPECT_TRUE(done.ok()) << done.status();
  return done.ok() ? FindRun(*done, *run)->digest() : "";
}

class MixedBuildsTest : public ::testing::Test {
 protected:
  // Awaits that the run has made further versions.
  void AwaitVersions(const std::string& what) {
    const uint32_t last = version_ + kVersionsBetween;
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* const run = FindRun(seen, run_);
          if (run == nullptr) return false;
          version_ = run->version();
          const bool goes_on =
              run->state() == v1::RUN_STATE_QUEUED || run->state() == v1::RUN_STATE_RUNNING;
          return version_ >= last || !goes_on;
        },
        kLimit, absl::StrCat(what, ": version ", last));
    ASSERT_TRUE(status.ok()) << status.status();
    const v1::RunStatus& run = *FindRun(*status, run_);
    ASSERT_EQ(run.state(), v1::RUN_STATE_RUNNING) << what << ": " << run.reason();
    EXPECT_EQ(absl::StrJoin(run.warnings(), "; "), "") << what;
    Report(absl::StrCat(what, ": version ", version_));
  }

  // Ends the process as an upgrade does, and starts it again with the programs of the cluster.
  template <typename StartIt>
  void Replace(const std::string& name, int exit_code, const StartIt& start) {
    cluster_.Signal(name, SIGTERM);
    const auto ending = cluster_.process(name).WaitUntil(absl::Now() + kLimit);
    ASSERT_TRUE(ending.has_value()) << name << " does not end";
    EXPECT_EQ(*ending, (Ending{false, exit_code})) << name << ": " << ending->ToString();
    const absl::Status started = start();
    ASSERT_TRUE(started.ok()) << name << ": " << started;
    ASSERT_NO_FATAL_FAILURE(AwaitVersions(absl::StrCat(name, " was replaced")));
  }

  void ReplaceAll() {
    ASSERT_NO_FATAL_FAILURE(Replace("coordinator", 0, [&] { return cluster_.StartCoordinator(); }));
    for (uint32_t i = 0; i < kAggregators; ++i) {
      const std::string name = absl::StrCat("aggregator-", i);
      ASSERT_NO_FATAL_FAILURE(Replace(name, 0, [&] { return cluster_.StartAggregator(name); }));
    }
    for (uint32_t i = 0; i < kGroups * kRanks; ++i) {
      const std::string name = absl::StrCat("worker-", i);
      ASSERT_NO_FATAL_FAILURE(
          Replace(name, 128 + SIGTERM, [&] { return cluster_.StartWorker(name); }));
    }
  }

  Cluster cluster_;
  std::string run_;
  uint32_t version_ = 0;
};

TEST_F(MixedBuildsTest, ReplacedMembersChangeNoBit) {
  cluster_.UsePrograms(OtherBuild());
  const auto run = cluster_.StartRun(CodedSpec(/*steps=*/1'000'000));
  ASSERT_TRUE(run.ok()) << run.status();
  run_ = *run;
  ASSERT_NO_FATAL_FAILURE(AwaitVersions("the run trains"));
  for (const std::string& programs : {std::string(CADRE_THIS_BUILD), OtherBuild()}) {
    Report(absl::StrCat("members are replaced by those of ", programs));
    cluster_.UsePrograms(programs);
    ASSERT_NO_FATAL_FAILURE(ReplaceAll());
  }
  ASSERT_EQ(cluster_.client().Stop(run_, "all members were replaced"), absl::OkStatus());
  const auto ended = cluster_.AwaitEnd(run_, kLimit);
  ASSERT_TRUE(ended.ok()) << ended.status();
  const v1::RunStatus& mixed = *FindRun(*ended, run_);
  EXPECT_EQ(mixed.step(), mixed.version());
  Report(
      absl::StrCat("the run was stopped: version ", mixed.version(), ", digest ", mixed.digest()));

  const std::string other = DigestOfOneBuild(OtherBuild(), mixed.step());
  Report(absl::StrCat("the other build alone: digest ", other));
  const std::string same = DigestOfOneBuild(CADRE_THIS_BUILD, mixed.step());
  Report(absl::StrCat("this build alone: digest ", same));
  EXPECT_EQ(other, same) << "the two builds compute different bits, each by itself";
  EXPECT_EQ(mixed.digest(), other);
  EXPECT_EQ(mixed.digest(), same);
  std::cout << nlohmann::json({{"versions", mixed.version()},
                               {"digest", mixed.digest()},
                               {"digest_of_other_build", other},
                               {"digest_of_this_build", same}})
            << std::endl;
}

}  // namespace
}  // namespace cadre::testing
