#include "plan/placement/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/placement/packing.h"
#include "plan/placement/placement_problem.h"
#include "plan/placement/schedule.h"
#include "tests/plan/placement/brute_force.h"
#include "tests/plan/placement/random_graph.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Long enough that a busy machine does not affect results.
constexpr PlacerOptions kPatient = {.solver_seconds = 60};

// a -> {b, c} -> d on two devices, with `bytes` on every edge and one byte per second.
std::string Diamond(int bytes) {
  std::string text = R"(
    op { name: "a" seconds: 2 } op { name: "b" seconds: 4 }
    op { name: "c" seconds: 3 } op { name: "d" seconds: 2 }
    device { name: "one" } device { name: "two" }
    link { from: "one" to: "two" bandwidth: 1 })";
  for (const char* edge : {"'a' to: 'b'", "'a' to: 'c'", "'b' to: 'd'", "'c' to: 'd'"}) {
    absl::StrAppend(&text, " edge { from: ", edge, " bytes: ", bytes, " }");
  }
  return text;
}

PlacementProblem Problem(const std::string& text) {
  absl::StatusOr<PlacementProblem> problem = ParseOperatorGraph("graph", text);
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

// Operators start after their inputs have arrived and one at a time on a device, end by the
// makespan, and fit into memory.
void ExpectLegal(const PlacementProblem& problem, const OperatorSchedule& schedule) {
  const auto finish = [&](int i) {
    return schedule.start[i] + problem.Seconds(i, schedule.device[i]);
  };
  const double slack = 1e-9 * schedule.makespan;
  for (int e = 0; e < std::ssize(problem.edges); ++e) {
    const auto& [from, to, bytes] = problem.edge(e);
    const double transfer = problem.TransferSeconds(e, schedule.device[from], schedule.device[to]);
    EXPECT_LE(finish(from) + transfer, schedule.start[to] + slack) << problem.op(to).name;
  }
  for (int i = 0; i < problem.size(); ++i) {
    EXPECT_LE(finish(i), schedule.makespan + slack) << problem.op(i).name;
    for (int j = 0; j < i; ++j) {
      if (schedule.device[i] != schedule.device[j]) continue;
      EXPECT_TRUE(finish(i) <= schedule.start[j] + slack || finish(j) <= schedule.start[i] + slack)
          << problem.op(i).name << " overlaps " << problem.op(j).name;
    }
  }
  EXPECT_TRUE(FitsMemory(problem, schedule.device));
}

TEST(PlacerTest, DiamondByTransferTime) {
  const double makespans[] = {8, 9, 10, 11, 11};
  for (int x = 0; x <= 4; ++x) {
    const PlacementProblem problem = Problem(Diamond(x));
    const auto placement = PlaceGraph(problem, kPatient);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_DOUBLE_EQ(placement->schedule.makespan, makespans[x]) << x;
    EXPECT_DOUBLE_EQ(placement->lower_bound, makespans[x]) << x;
    EXPECT_EQ(placement->method, PlacementMethod::kExact);
    EXPECT_DOUBLE_EQ(placement->serial_seconds, 11);
    ExpectLegal(problem, placement->schedule);
    EXPECT_DOUBLE_EQ(placement->speedup(), 11 / makespans[x]);
  }
}

// 500 random graphs, compared with all placements and orders.
TEST(PlacerTest, EqualsBruteForce) {
  int without_placement = 0;
  int beyond_lists = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed);
    const std::optional<double> minimum = testing::OptimalMakespan(graph);
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", graph.DebugString()));
    if (!FindGraphProblems(graph).empty()) {
      EXPECT_FALSE(minimum.has_value());
      ++without_placement;
      continue;
    }
    const PlacementProblem problem = PlacementProblemOf(graph);
    const auto placement = PlaceGraph(problem, kPatient);
    if (!minimum) {
      EXPECT_EQ(placement.status().code(), absl::StatusCode::kResourceExhausted);
      ++without_placement;
      continue;
    }
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_NEAR(placement->schedule.makespan, *minimum, 1e-9 * *minimum);
    EXPECT_EQ(placement->method, PlacementMethod::kExact);
    EXPECT_NEAR(placement->gap(), 0, 1e-9);
    ExpectLegal(problem, placement->schedule);
    const double bound = LowerBound(problem, WindowsOf(problem));
    EXPECT_LE(bound, *minimum * (1 + 1e-9));
    EXPECT_GE(placement->list_makespan, *minimum * (1 - 1e-9));
    if (placement->list_makespan > *minimum * (1 + 1e-9)) ++beyond_lists;
  }
  // The test covers graphs for which list scheduling is not optimal, and infeasible graphs.
  EXPECT_GT(beyond_lists, 25);
  EXPECT_GT(without_placement, 5);
}

// List scheduling gives a legal schedule whose gap bounds its distance from the optimum.
TEST(PlacerTest, ListSchedulingGap) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed);
    const std::optional<double> minimum = testing::OptimalMakespan(graph);
    if (!minimum) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const PlacementProblem problem = PlacementProblemOf(graph);
    const auto placement = PlaceGraph(problem, {.max_program_size = 0});
    ASSERT_TRUE(placement.ok()) << placement.status();
    ExpectLegal(problem, placement->schedule);
    EXPECT_GE(placement->schedule.makespan, *minimum * (1 - 1e-9));
    EXPECT_LE(placement->schedule.makespan * (1 - placement->gap()), *minimum * (1 + 1e-9));
    EXPECT_EQ(placement->method == PlacementMethod::kExact, placement->gap() < 1e-9);
  }
}

TEST(PlacerTest, LargeGraphsUseListScheduling) {
  const v1::OperatorGraph graph =
      testing::RandomGraph(11, {.min_ops = 300, .max_ops = 300, .max_devices = 4});
  const PlacementProblem problem = PlacementProblemOf(graph);
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->method, PlacementMethod::kListScheduling);
  ExpectLegal(problem, placement->schedule);
  EXPECT_LE(placement->schedule.makespan, placement->serial_seconds);
  EXPECT_GT(placement->lower_bound, 0);
}

TEST(PlacerTest, TimeLimitGivesBestFound) {
  const v1::OperatorGraph graph =
      testing::RandomGraph(1003, {.min_ops = 30, .max_ops = 30, .max_devices = 4});
  const PlacementProblem problem = PlacementProblemOf(graph);
  const auto placement =
      PlaceGraph(problem, {.solver_seconds = 0.02, .max_program_size = 1'000'000});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->method, PlacementMethod::kTimeLimit);
  ExpectLegal(problem, placement->schedule);
  EXPECT_LE(placement->schedule.makespan, placement->list_makespan);
  EXPECT_GT(placement->gap(), 0);
  EXPECT_LT(placement->gap(), 1);
  EXPECT_GE(placement->lower_bound, LowerBound(problem, WindowsOf(problem)));
}

TEST(PlacerTest, Deterministic) {
  for (const uint64_t seed : {5, 23, 61, 104}) {
    const PlacementProblem problem = PlacementProblemOf(testing::RandomGraph(seed));
    const auto one = PlaceGraph(problem, kPatient);
    const auto other = PlaceGraph(problem, kPatient);
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_EQ(one->schedule.device, other->schedule.device);
    EXPECT_EQ(one->schedule.start, other->schedule.start);
  }
}

TEST(PlacerTest, TransfersHaveRoutes) {
  // Two operators feed a third; a switch connects the devices.
  const PlacementProblem problem = Problem(R"(
    op { name: "a" seconds: 5 } op { name: "b" seconds: 5 } op { name: "c" seconds: 1 }
    edge { from: "a" to: "c" bytes: 4 } edge { from: "b" to: "c" bytes: 4 }
    device { name: "one" } device { name: "two" } switch: "s"
    link { from: "one" to: "s" alpha: 0.25 bandwidth: 8 }
    link { from: "s" to: "two" alpha: 0.25 bandwidth: 16 })");
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 5 + 1.25 + 1);
  ASSERT_EQ(placement->transfers.size(), 1u);
  EXPECT_DOUBLE_EQ(placement->transfers[0].start, 5);
  EXPECT_DOUBLE_EQ(placement->transfers[0].seconds, 1.25);
  EXPECT_THAT(placement->transfers[0].links, UnorderedElementsAre(0, 1));
}

TEST(PlacerTest, OneDeviceIsSerial) {
  const PlacementProblem problem =
      Problem("op { name: 'a' seconds: 2 } op { name: 'b' seconds: 3 } device { name: 'one' }");
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok());
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 5);
  EXPECT_DOUBLE_EQ(placement->speedup(), 1);
  EXPECT_EQ(placement->method, PlacementMethod::kExact);
}

TEST(PlacerTest, OperatorsWithoutDuration) {
  const PlacementProblem problem =
      Problem("op { name: 'a' seconds: 0 } op { name: 'b' seconds: 0 } device { name: 'one' }");
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok());
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 0);
  EXPECT_DOUBLE_EQ(placement->speedup(), 1);
  EXPECT_DOUBLE_EQ(placement->gap(), 0);
}

TEST(PlacerTest, AvoidsSlowDevice) {
  const PlacementProblem problem = Problem(R"(
    op { name: "a" seconds: 2 on { device: "slow" seconds: 20 } }
    op { name: "b" seconds: 2 on { device: "slow" seconds: 20 } }
    device { name: "slow" } device { name: "fast" } link { from: "slow" to: "fast" bandwidth: 1 })");
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok());
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 4);
  EXPECT_EQ(placement->serial_device, 1);
}

TEST(PlacerTest, UnitsDoNotMatter) {
  v1::OperatorGraph graph = testing::RandomGraph(42);
  const auto plain = PlaceGraph(PlacementProblemOf(graph), kPatient);
  ASSERT_TRUE(plain.ok());
  for (const double unit : {1e-7, 1e5}) {
    v1::OperatorGraph scaled = graph;
    for (auto& op : *scaled.mutable_op()) {
      op.set_seconds(op.seconds() * unit);
      for (auto& on : *op.mutable_on()) on.set_seconds(on.seconds() * unit);
    }
    for (auto& link : *scaled.mutable_link()) {
      link.set_alpha(link.alpha() * unit);
      link.set_bandwidth(link.bandwidth() / unit);
    }
    const auto placement = PlaceGraph(PlacementProblemOf(scaled), kPatient);
    ASSERT_TRUE(placement.ok());
    EXPECT_NEAR(placement->schedule.makespan / unit, plain->schedule.makespan, 1e-6);
    EXPECT_EQ(placement->method, PlacementMethod::kExact);
  }
}

// --- Memory ---

// First fit in decreasing size fails, although 6 + 4 and 5 + 3 + 2 fit.
TEST(PlacerTest, PackingBeyondFirstFit) {
  const std::string graph = R"(
    op { name: "a" seconds: 1 memory_bytes: 6 } op { name: "b" seconds: 1 memory_bytes: 5 }
    op { name: "c" seconds: 1 memory_bytes: 4 } op { name: "d" seconds: 1 memory_bytes: 3 }
    op { name: "e" seconds: 1 memory_bytes: 2 }
    device { name: "one" memory_bytes: 10 } device { name: "two" memory_bytes: 10 }
    link { from: "one" to: "two" bandwidth: 1 })";
  const PlacementProblem problem = Problem(graph);
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_TRUE(FitsMemory(problem, placement->schedule.device));
  EXPECT_FALSE(placement->serial_fits);
}

TEST(PlacerTest, ReportsInfeasibleMemory) {
  // Three operators of 5 bytes do not fit into two devices of 9.
  const PlacementProblem problem = Problem(R"(
    op { name: "a" seconds: 1 memory_bytes: 5 } op { name: "b" seconds: 1 memory_bytes: 5 }
    op { name: "c" seconds: 1 memory_bytes: 5 }
    device { name: "one" memory_bytes: 9 } device { name: "two" memory_bytes: 9 }
    link { from: "one" to: "two" bandwidth: 1 })");
  const auto placement = PlaceGraph(problem);
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(placement.status().message()), HasSubstr("no placement fits"));
}

TEST(PlacerTest, LargestOperators) {
  constexpr int64_t kLargest = int64_t{1} << 40;
  std::string ops;
  for (int i = 0; i < 16; ++i) {
    absl::StrAppend(&ops, "op { name: 'o", i, "' seconds: 1 memory_bytes: ", kLargest, " } ");
  }
  const auto devices = [](int64_t bytes) {
    return absl::StrCat("device { name: 'one' memory_bytes: ", bytes,
                        " } device { name: 'two' memory_bytes: ", bytes,
                        " } link { from: 'one' to: 'two' bandwidth: 1 }");
  };
  const PlacementProblem problem = Problem(ops + devices(8 * kLargest));
  const auto placement = PlaceGraph(problem, kPatient);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 8);
  EXPECT_EQ(MemoryOf(problem, placement->schedule.device),
            std::vector<int64_t>({8 * kLargest, 8 * kLargest}));
  const auto none = ParseOperatorGraph("graph", ops + devices(8 * kLargest - 1));
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("all operators need 17592186044416 bytes, 2 more than all devices have"));
  EXPECT_THAT(
      std::string(
          ParseOperatorGraph("graph", ops + devices((int64_t{1} << 50) + 1)).status().message()),
      HasSubstr("device[0].memory_bytes: is 1125899906842625; must be at most"));
}

TEST(PlacerTest, ReserveKeepsRemainderPackable) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed);
    if (!FindGraphProblems(graph).empty()) continue;
    const PlacementProblem problem = PlacementProblemOf(graph);
    const auto packing = PackMemory(problem, 10);
    if (!packing.ok()) continue;
    MemoryReserve reserve(problem, *packing);
    std::vector<int> device;
    for (int i = 0; i < problem.size(); ++i) {
      // The last allowed device is the worst choice for first fit.
      int chosen = -1;
      for (int d = 0; d < problem.device_count(); ++d) {
        if (reserve.Allows(i, d)) chosen = d;
      }
      ASSERT_GE(chosen, 0) << seed;
      reserve.Place(i, chosen);
      device.push_back(chosen);
    }
    EXPECT_TRUE(FitsMemory(problem, device)) << seed;
  }
}

}  // namespace
}  // namespace cadre
