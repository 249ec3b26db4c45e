#include "server/round_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "server/run_terms.h"
#include "tests/base/expect.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

constexpr int64_t kElements = 10;

class RoundMeanTest : public ::testing::Test {
 protected:
  // A file of these values in blocks of four.
  std::unique_ptr<BlockFile> FileOf(const std::string& name, const std::vector<float>& values) {
    const uint32_t block = 4 * sizeof(float);
    auto file = BlockFile::Create(PosixFileSystem(), absl::StrCat(folder_.path(), "/", name),
                                  {"", block, values.size() * sizeof(float)});
    EXPECT_TRUE(file.ok()) << file.status();
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    for (uint64_t i = 0; i < (*file)->head().blocks(); ++i) {
      const absl::string_view part = bytes.substr(i * block, block);
      EXPECT_TRUE((*file)->WriteBlock(i, part, Crc32c(part)).ok());
    }
    return *std::move(file);
  }

  std::unique_ptr<BlockScan> ScanOf(const std::string& name, const std::vector<float>& values) {
    return std::make_unique<BlockScan>(FileOf(name, values));
  }

  // The discrepancy of two groups of one rank each, whose values changed from 0 to 1 and to 3.
  // `statistics`: positions of the running statistics of batch norm, which are averaged but not
  // trained and do not count. The mean is computed in stretches of `piece` positions.
  DiscrepancyTerms TermsWithout(const std::vector<Interval>& statistics, int64_t piece) {
    ApplyPlan plan{"run-1", 1, {0, kElements}, {{0, kElements}}, {}, statistics};
    RoundMean::Files files;
    for (uint32_t g = 0; g < 2; ++g) {
      const ContributionKey key{"run-1", 1, g, 1, 0};
      plan.groups.push_back({g, 0.5F, 1, {{key, {0, kElements}, 0}}});
      files[key].file =
          ScanOf(absl::StrCat("group-", g), std::vector<float>(kElements, 1.0F + 2.0F * g));
    }
    RoundMean mean(plan, std::move(files), ScanOf("before", std::vector<float>(kElements)));
    RoundMean::Stretch stretch;
    for (int64_t at = 0; at < kElements; at += piece) {
      EXPECT_TRUE(mean.Compute({at, std::min(at + piece, kElements)}, stretch).ok());
      for (const float value : stretch.values()) EXPECT_EQ(value, 2.0F) << "all are averaged";
      EXPECT_TRUE(mean.Append(stretch).ok());
    }
    EXPECT_EQ(mean.Check(), absl::OkStatus());
    return mean.discrepancy();
  }

  TemporaryFolder folder_;
};

TEST_F(RoundMeanTest, EveryTrainedPositionCounts) {
  for (const int64_t piece : {1, 3, 10}) {
    EXPECT_EQ(TermsWithout({}, piece).variance_between_groups, 10);
    EXPECT_EQ(TermsWithout({}, piece).displacement, 40);
  }
}

TEST_F(RoundMeanTest, StatisticsDoNotCount) {
  for (const int64_t piece : {1, 2, 3, 4, 7, 10}) {
    const DiscrepancyTerms some = TermsWithout({{1, 3}, {5, 6}, {9, 10}}, piece);
    EXPECT_EQ(some.variance_between_groups, 6) << piece;
    EXPECT_EQ(some.displacement, 24) << piece;
    EXPECT_EQ(TermsWithout({{0, kElements}}, piece).displacement, 0) << piece;
  }
}

// RunTerms: the properties of a run that OpenRun sets (server/ledger.h).
TEST(RunTermsTest, StatisticsAreNotTrained) {
  SmallRun run;
  v1::OpenRun open = run.Open();
  const auto without = RunTermsOf(open);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(without->statistics.empty());

  *open.mutable_spec()->mutable_model() = Parse<v1::Model>(R"(
    input { channels: 4 height: 1 width: 1 }
    layer { name: "conv" convolution { out_channels: 3 kernel: 1 } }
    layer { name: "norm" batch_norm {} }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} })");
  const auto with = RunTermsOf(open);
  ASSERT_TRUE(with.ok()) << with.status();
  // In parameter order: the convolution's weight [3, 4] and bias [3], then the norm's scale, shift,
  // mean and variance, 3 positions each.
  EXPECT_EQ(with->statistics, (std::vector<Interval>{{21, 24}, {24, 27}}));
}

}  // namespace
}  // namespace cadre::testing
