// Which workers are counted as idle, as usable and as those of a run.
#include "coordinator/cluster/worker_counts.h"

#include <gtest/gtest.h>

#include <functional>

namespace cadre {
namespace {

// A connected worker without a rank.
Member IdleWorker() {
  Member member;
  member.record.set_role(v1::ROLE_WORKER);
  member.record.set_host("host");
  member.record.set_device_kind(v1::Cluster::CPU);
  member.connection = 1;
  return member;
}

TEST(WorkerCountsTest, WhatIsCountedOfAMember) {
  const auto place = [](Member& member) { member.place.emplace().set_run("run-1"); };
  const struct {
    const char* what;
    std::function<void(Member&)> change;
    size_t idle, usable, placed_in;
    int placed_on, idle_on;
  } cases[] = {
      {"idle", [](Member&) {}, 1, 1, 0, 0, 1},
      {"without a stream", [](Member& m) { m.connection = 0; }, 0, 1, 0, 0, 0},
      {"with a rank", place, 0, 1, 1, 1, 0},
      {"withdrawn", [](Member& m) { m.excluded = m.withdrawn = true; }, 0, 0, 0, 0, 0},
      {"excluded for a while", [](Member& m) { m.excluded = true; }, 0, 1, 0, 0, 0},
      {"withdrawn with a rank", [&](Member& m) { place(m), m.excluded = m.withdrawn = true; }, 0, 0,
       0, 1, 0},
      {"rank of a program", [](Member& m) { m.record.mutable_reservation(); }, 0, 0, 0, 0, 1},
      {"rank of a program in a group", [&](Member& m) { m.record.mutable_reservation(), place(m); },
       0, 0, 0, 1, 0},
      {"aggregator", [](Member& m) { m.record.set_role(v1::ROLE_AGGREGATOR); }, 0, 0, 0, 0, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Member member = IdleWorker();
    c.change(member);
    WorkerCounts counts;
    counts.Add(member);
    EXPECT_EQ(counts.Idle(v1::Cluster::CPU), c.idle);
    EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::FP32), c.usable);
    EXPECT_EQ(counts.PlacedIn("run-1", v1::Cluster::CPU), c.placed_in);
    EXPECT_EQ(counts.PlacedOn("host"), c.placed_on);
    EXPECT_EQ(counts.IdleOn("host"), c.idle_on);
    EXPECT_EQ(counts.Idle(v1::Cluster::CUDA), 0U);
    counts.Add(member);
    counts.Remove(member);
    EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::FP32), c.usable);
    EXPECT_EQ(counts.PlacedOn("host"), c.placed_on);
  }
}

TEST(WorkerCountsTest, PrecisionsOfAWorkerCountOnce) {
  Member member = IdleWorker();
  for (const auto precision : {v1::RunSpec::BF16, v1::RunSpec::FP32, v1::RunSpec::BF16}) {
    member.record.add_precisions(precision);
  }
  WorkerCounts counts;
  counts.Add(member);
  EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::FP32), 1U);
  EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::BF16), 1U);
  EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::TF32), 0U);
  EXPECT_EQ(counts.Usable(v1::Cluster::CPU, v1::RunSpec::PRECISION_UNSPECIFIED), 1U)
      << "the default is FP32";
}

}  // namespace
}  // namespace cadre
