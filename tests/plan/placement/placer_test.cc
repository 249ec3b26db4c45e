#include "plan/placement/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lab/placement_program.h"
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
const PlacementProgram kProgram({.seconds = 60});
const PlacerOptions kPatient = {.solver = &kProgram};
// The program packs operators into memory, but every graph is too large for it to place them.
const PlacementProgram kPacking({.max_size = 0});
const PlacerOptions kListsWithPacking = {.solver = &kPacking};

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

// A device sends one message at a time, and receives one at a time.
void ExpectMessagesInTurn(const PlacementProblem& problem, const OperatorSchedule& schedule) {
  const double slack = 1e-9 * schedule.makespan;
  const auto seconds = [&](int e) {
    const PlacementProblem::Edge& edge = problem.edge(e);
    return problem.TransferSeconds(e, schedule.device[edge.from], schedule.device[edge.to]);
  };
  for (int e = 0; e < std::ssize(problem.edges); ++e) {
    for (int f = 0; f < e; ++f) {
      if (seconds(e) == 0 || seconds(f) == 0) continue;
      const auto device = [&](int op) { return schedule.device[op]; };
      if (device(problem.edge(e).from) != device(problem.edge(f).from) &&
          device(problem.edge(e).to) != device(problem.edge(f).to)) {
        continue;
      }
      EXPECT_TRUE(schedule.sent[e] + seconds(e) <= schedule.sent[f] + slack ||
                  schedule.sent[f] + seconds(f) <= schedule.sent[e] + slack)
          << "messages " << e << " and " << f << " overlap";
    }
  }
}

// Operators start after their inputs have arrived and one at a time on a device, end by the
// makespan, and fit into memory; so do messages, on the links of a device.
void ExpectLegal(const PlacementProblem& problem, const OperatorSchedule& schedule) {
  const auto finish = [&](int i) {
    return schedule.start[i] + problem.Seconds(i, schedule.device[i]);
  };
  const double slack = 1e-9 * schedule.makespan;
  for (int e = 0; e < std::ssize(problem.edges); ++e) {
    const auto& [from, to, bytes] = problem.edge(e);
    const double transfer = problem.TransferSeconds(e, schedule.device[from], schedule.device[to]);
    EXPECT_LE(finish(from), schedule.sent[e] + slack) << problem.op(from).name;
    EXPECT_LE(schedule.sent[e] + transfer, schedule.start[to] + slack) << problem.op(to).name;
  }
  ExpectMessagesInTurn(problem, schedule);
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

// 500 random graphs, compared with all placements and orders of operators whose messages do not
// wait for one another. This minimum is the bound of the integer program.
TEST(PlacerTest, BoundEqualsBruteForce) {
  int without_placement = 0;
  int beyond_lists = 0;
  int exact = 0;
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
    EXPECT_NEAR(placement->lower_bound, *minimum, 2e-6 * *minimum);
    EXPECT_GE(placement->schedule.makespan, *minimum * (1 - 1e-9));
    EXPECT_EQ(placement->method, placement->schedule.makespan <= *minimum * (1 + 1e-9)
                                     ? PlacementMethod::kExact
                                     : PlacementMethod::kSharedLinks);
    if (placement->method == PlacementMethod::kExact) ++exact;
    ExpectLegal(problem, placement->schedule);
    const double bound = LowerBound(problem, WindowsOf(problem));
    EXPECT_LE(bound, *minimum * (1 + 1e-9));
    EXPECT_GE(placement->list_makespan, placement->schedule.makespan);
    if (placement->list_makespan > placement->schedule.makespan) ++beyond_lists;
  }
  // The test covers graphs for which list scheduling is not optimal, graphs whose messages wait for
  // one another in any schedule, and infeasible graphs.
  EXPECT_GT(beyond_lists, 10);
  EXPECT_GT(exact, 300);
  EXPECT_LT(exact, 490);
  EXPECT_GT(without_placement, 5);
}

// Small graphs, compared with all placements and orders of operators and messages.
TEST(PlacerTest, NearBruteForceWithSharedLinks) {
  int optimal = 0;
  int graphs = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed, {.max_ops = 5});
    const std::optional<double> minimum = testing::OptimalMakespanWithSharedLinks(graph);
    if (!minimum) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", graph.DebugString()));
    const PlacementProblem problem = PlacementProblemOf(graph);
    const auto placement = PlaceGraph(problem, kPatient);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_GE(placement->schedule.makespan, *minimum * (1 - 1e-9));
    EXPECT_LE(placement->lower_bound, *minimum * (1 + 1e-9));
    ++graphs;
    if (placement->schedule.makespan <= *minimum * (1 + 1e-9)) ++optimal;
  }
  EXPECT_GT(graphs, 150);
  EXPECT_GT(optimal, 0.95 * graphs);
}

// List scheduling gives a legal schedule whose gap bounds its distance from the optimum.
TEST(PlacerTest, ListSchedulingGap) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed);
    const std::optional<double> minimum = testing::OptimalMakespan(graph);
    if (!minimum) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const PlacementProblem problem = PlacementProblemOf(graph);
    const auto placement = PlaceGraph(problem, kListsWithPacking);
    ASSERT_TRUE(placement.ok()) << placement.status();
    ExpectLegal(problem, placement->schedule);
    EXPECT_GE(placement->schedule.makespan, *minimum * (1 - 1e-9));
    EXPECT_LE(placement->schedule.makespan * (1 - placement->gap()), *minimum * (1 + 1e-9));
    EXPECT_EQ(placement->method == PlacementMethod::kExact, placement->gap() < 1e-9);
  }
}

// --- Messages that share a link ---

// Operators of a second that run fast on one device only, and edges whose tensor takes 3 s.
std::string Fixed(const std::vector<std::pair<const char*, const char*>>& device_of_op,
                  const std::vector<std::pair<const char*, const char*>>& edges) {
  std::string text;
  for (const auto& [op, device] : device_of_op) {
    absl::StrAppend(&text, "op { name: '", op, "' seconds: 1000 on { device: '", device,
                    "' seconds: 1 } } ");
  }
  for (const auto& [from, to] : edges) {
    absl::StrAppend(&text, "edge { from: '", from, "' to: '", to, "' bytes: 3 } ");
  }
  for (const char* device : {"one", "two", "three"}) {
    absl::StrAppend(&text, "device { name: '", device, "' } link { from: '", device,
                    "' to: 'switch' bandwidth: 2 } ");
  }
  return text + "switch: 'switch'";
}

double MakespanOf(const std::string& text) {
  const PlacementProblem problem = Problem(text);
  const auto placement = PlaceGraph(problem, kPatient);
  EXPECT_TRUE(placement.ok()) << placement.status();
  ExpectLegal(problem, placement->schedule);
  return placement->schedule.makespan;
}

// The tensor of a is sent from 1 to 4, that of b, which is ready at 2, from 4 to 7.
TEST(PlacerTest, MessagesBetweenTwoDevicesTakeTurns) {
  EXPECT_DOUBLE_EQ(MakespanOf(Fixed({{"a", "one"}, {"b", "one"}, {"c", "two"}, {"d", "two"}},
                                    {{"a", "c"}, {"b", "d"}})),
                   8);
}

TEST(PlacerTest, MessagesOfOneSenderTakeTurns) {
  EXPECT_DOUBLE_EQ(
      MakespanOf(Fixed({{"a", "one"}, {"b", "two"}, {"c", "three"}}, {{"a", "b"}, {"a", "c"}})),
      1 + 3 + 3 + 1);
}

TEST(PlacerTest, MessagesToOneReceiverTakeTurns) {
  EXPECT_DOUBLE_EQ(
      MakespanOf(Fixed({{"a", "one"}, {"b", "two"}, {"c", "three"}}, {{"a", "c"}, {"b", "c"}})),
      1 + 3 + 3 + 1);
}

TEST(PlacerTest, OppositeDirectionsDoNotShareALink) {
  EXPECT_DOUBLE_EQ(MakespanOf(Fixed({{"a", "one"}, {"b", "two"}, {"c", "two"}, {"d", "one"}},
                                    {{"a", "c"}, {"b", "d"}})),
                   1 + 3 + 1);
}

// Sixteen branches of a second. Each branch on the second device sends 2 s there and 2 s back, so
// that k branches there take 2k + 1 + 2 s; if messages did not wait for one another, 6 branches
// there and a step of 10 s would be possible.
TEST(PlacerTest, DividesLessWhereMessagesWait) {
  std::string text = R"(
    op { name: "first" seconds: 0 } op { name: "last" seconds: 0 }
    device { name: "one" } device { name: "two" }
    link { from: "one" to: "two" bandwidth: 1 } )";
  for (int i = 0; i < 16; ++i) {
    absl::StrAppend(&text, "op { name: 'b", i, "' seconds: 1 } ", "edge { from: 'first' to: 'b", i,
                    "' bytes: 2 } edge { from: 'b", i, "' to: 'last' bytes: 2 } ");
  }
  const PlacementProblem problem = Problem(text);
  const auto placement = PlaceGraph(problem, kListsWithPacking);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 12);
  ExpectLegal(problem, placement->schedule);
}

// --- Operators in the order of the graph ---

// The first device may compute c while it waits for the input of b, unless b comes before c.
TEST(PlacerTest, InOrderOperatorsWaitForEarlierOnes) {
  PlacementProblem problem = Problem(R"(
    op { name: "slow" seconds: 1000 on { device: "two" seconds: 8 } }
    op { name: "b" seconds: 1000 on { device: "one" seconds: 1 } }
    op { name: "c" seconds: 1000 on { device: "one" seconds: 5 } }
    edge { from: "slow" to: "b" bytes: 1 }
    device { name: "one" } device { name: "two" } link { from: "one" to: "two" bandwidth: 1 })");
  const auto free = PlaceGraph(problem, kPatient);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_DOUBLE_EQ(free->schedule.makespan, 10) << "c, then b";
  problem.in_order = true;
  const auto in_order = PlaceGraph(problem, kPatient);
  ASSERT_TRUE(in_order.ok()) << in_order.status();
  EXPECT_DOUBLE_EQ(in_order->schedule.makespan, 15) << "b, then c";
  ExpectLegal(problem, in_order->schedule);
}

TEST(PlacerTest, InOrderSchedulesAreLegal) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const v1::OperatorGraph graph = testing::RandomGraph(seed);
    if (!FindGraphProblems(graph).empty()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    PlacementProblem problem = PlacementProblemOf(graph);
    problem.in_order = true;
    const auto placement = PlaceGraph(problem);
    if (absl::IsDeadlineExceeded(placement.status())) continue;  // memory
    ASSERT_TRUE(placement.ok()) << placement.status();
    ExpectLegal(problem, placement->schedule);
    std::vector<double> last(problem.devices.size(), 0);
    for (const int i : problem.order) {
      double& start = last[placement->schedule.device[i]];
      EXPECT_GE(placement->schedule.start[i], start);
      start = placement->schedule.start[i];
    }
  }
}

// Moving one operator of a chain adds messages; moving the chain does not.
TEST(PlacerTest, MovesChains) {
  std::string text = "op { name: 'first' seconds: 0 } op { name: 'last' seconds: 0 } ";
  for (const std::string branch : {"l", "r"}) {
    for (int i = 0; i < 6; ++i) {
      absl::StrAppend(&text, "op { name: '", branch, i, "' seconds: 2 } edge { from: '",
                      i == 0 ? "first" : absl::StrCat(branch, i - 1), "' to: '", branch, i,
                      "' bytes: 1 } ");
    }
    absl::StrAppend(&text, "edge { from: '", branch, "5' to: 'last' bytes: 1 } ");
  }
  PlacementProblem problem = Problem(text + R"(
    device { name: "one" } device { name: "two" } link { from: "one" to: "two" bandwidth: 1 })");
  problem.in_order = true;
  const auto placement = PlaceGraph(problem);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 1 + 12) << "one branch has no message before it";
}

TEST(PlacerTest, LargeGraphsUseListScheduling) {
  const v1::OperatorGraph graph =
      testing::RandomGraph(11, {.min_ops = 300, .max_ops = 300, .max_devices = 4});
  const PlacementProblem problem = PlacementProblemOf(graph);
  const auto placement = PlaceGraph(problem, kPatient);
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
  const PlacementProgram brief({.seconds = 0.02, .max_size = 1'000'000});
  const auto placement = PlaceGraph(problem, {.solver = &brief});
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
  const auto placement = PlaceGraph(problem, kPatient);
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
  const auto placement = PlaceGraph(problem, kPatient);
  ASSERT_TRUE(placement.ok());
  EXPECT_DOUBLE_EQ(placement->schedule.makespan, 5);
  EXPECT_DOUBLE_EQ(placement->speedup(), 1);
  EXPECT_EQ(placement->method, PlacementMethod::kExact);
}

TEST(PlacerTest, OperatorsWithoutDuration) {
  const PlacementProblem problem =
      Problem("op { name: 'a' seconds: 0 } op { name: 'b' seconds: 0 } device { name: 'one' }");
  const auto placement = PlaceGraph(problem, kPatient);
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
  const auto placement = PlaceGraph(problem, kPatient);
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
  const auto placement = PlaceGraph(problem, kPatient);
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
  const auto placement = PlaceGraph(problem, kPatient);
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
    const auto packing = PackMemory(problem, &kProgram);
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
