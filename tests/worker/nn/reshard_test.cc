#include "worker/nn/reshard.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "worker/comm/thread_transport.h"

namespace cadre {
namespace {

const Mesh kMesh({{"data", 2}, {"model", 3}});

// Small whole numbers: sums are exact in any order.
float Value(int64_t row, int64_t column) { return static_cast<float>(row * 100 + column); }

std::vector<float> LocalPart(const Shape& shape, const Layout& layout, int rank, float scale = 1) {
  const Box box = LocalBox(shape, layout, kMesh, rank);
  std::vector<float> part;
  for (int64_t r = box.begin[0]; r < box.end[0]; ++r) {
    for (int64_t c = box.begin[1]; c < box.end[1]; ++c) part.push_back(scale * Value(r, c));
  }
  return part;
}

void OnEveryRank(const std::function<void(MeshCommunicators&)>& work) {
  auto transports = MakeThreadTransports(kMesh.ranks(), absl::Seconds(20));
  std::vector<std::thread> threads;
  for (const auto& transport : transports) {
    threads.emplace_back([&] {
      MeshCommunicators comms(*transport, kMesh);
      work(comms);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Case {
  std::string name;
  Layout from;
  Layout to;
  std::vector<std::string> partial;
};

class EveryReshard : public testing::TestWithParam<Case> {};

// Uneven on purpose: 7 samples over 2 and 6, 5 features over 3.
const Shape kShape{7, 5};

TEST_P(EveryReshard, ForwardMovesEveryElementToItsPlace) {
  const Case& c = GetParam();
  OnEveryRank([&](MeshCommunicators& comms) {
    auto reshard = Reshard::Make(c.from, c.to, c.partial, comms);
    ASSERT_TRUE(reshard.ok()) << reshard.status();
    const std::vector<float> x = LocalPart(kShape, c.from, comms.rank());
    const std::vector<float> want = LocalPart(kShape, c.to, comms.rank());
    std::vector<float> y(want.size(), -1.0F);
    ASSERT_TRUE((*reshard)->Forward(kShape[0], kShape[1], x, y).ok());
    EXPECT_EQ(y, want) << "rank " << comms.rank();
  });
}

TEST_P(EveryReshard, BackwardSumsWhatIsPartialAndGivesOwnPart) {
  const Case& c = GetParam();
  OnEveryRank([&](MeshCommunicators& comms) {
    auto reshard = Reshard::Make(c.from, c.to, c.partial, comms);
    ASSERT_TRUE(reshard.ok()) << reshard.status();
    // Every rank of a sum holds its own multiple: 1 + 2 + ... of the value in all.
    const int place = kMesh.Coordinate(comms.rank(), c.partial);
    const int peers = kMesh.Size(c.partial);
    std::vector<float> dy =
        LocalPart(kShape, c.to, comms.rank(), c.partial.empty() ? 1.0F : 1.0F + place);
    const float total = c.partial.empty() ? 1.0F : static_cast<float>(peers * (peers + 1) / 2);
    const std::vector<float> want = LocalPart(kShape, c.from, comms.rank(), total);
    std::vector<float> dx(want.size(), -1.0F);
    ASSERT_TRUE((*reshard)->Backward(kShape[0], kShape[1], dy, dx).ok());
    EXPECT_EQ(dx, want) << "rank " << comms.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, EveryReshard,
    testing::Values(
        Case{"samples_gathered_over_model_sum",
             Layout::Split(0, {"data", "model"}),
             Layout::Split(0, {"data"}),
             {"model"}},
        Case{"samples_gathered_over_model_complete",
             Layout::Split(0, {"data", "model"}),
             Layout::Split(0, {"data"}),
             {}},
        Case{"features_gathered_sum",
             Layout{.split = {{"data"}, {"model"}}},
             Layout::Split(0, {"data"}),
             {"model"}},
        Case{"features_gathered_complete",
             Layout{.split = {{"data"}, {"model"}}},
             Layout::Split(0, {"data"}),
             {}},
        Case{"samples_kept", Layout::Split(0, {"data"}), Layout::Split(0, {"data", "model"}), {}},
        Case{"features_kept",
             Layout::Split(0, {"data"}),
             Layout{.split = {{"data"}, {"model"}}},
             {}},
        Case{"everything_gathered", Layout::Split(0, {"data", "model"}), Layout::Replicated(), {}},
        Case{"unchanged_sum", Layout::Split(0, {"data"}), Layout::Split(0, {"data"}), {"model"}},
        Case{"unchanged", Layout::Split(0, {"data"}), Layout::Split(0, {"data"}), {}}),
    [](const auto& info) { return info.param.name; });

TEST(Reshard, RefusesWhatNeedsSeveralSteps) {
  auto transports = MakeThreadTransports(1, absl::Seconds(1));
  MeshCommunicators comms(*transports[0], Mesh());
  const auto refused = [&](const Layout& from, const Layout& to,
                           const std::vector<std::string>& partial) {
    return absl::IsUnimplemented(Reshard::Make(from, to, partial, comms).status());
  };
  EXPECT_TRUE(refused(Layout::Split(0, {"data"}), Layout::Split(1, {"data"}), {}));
  EXPECT_TRUE(refused(Layout::Split(0, {"data"}), Layout::Split(0, {"model"}), {}));
  EXPECT_TRUE(refused(Layout::Split(0, {"data", "model"}), Layout::Split(0, {"data"}), {"data"}));
}

}  // namespace
}  // namespace cadre
