// Every sample occurs once per epoch, for any number of groups, ranks and micro-batches, even if
// these numbers do not divide the batch.
#include "worker/data/batch_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A rank's part of a batch on a mesh {data, model}: inputs are split over both axes, labels over
// `data`.
RowsOfRank OnMesh(const Mesh& mesh, int rank) {
  return [mesh, rank](int64_t samples) {
    const auto rows = [&](const std::vector<std::string>& axes) {
      const Box box = LocalBox({samples, 4}, Layout::Split(0, axes), mesh, rank);
      return Interval{box.begin[0], box.end[0]};
    };
    return MicroBatch{.inputs = rows({"data", "model"}), .labels = rows({"data"})};
  };
}

TEST(CutBatchTest, CutsIntoNearlyEqualParts) {
  const auto all = [](int64_t samples) {
    return MicroBatch{.inputs = {0, samples}, .labels = {0, samples}};
  };
  const auto range = [](int64_t begin, int64_t end) {
    return MicroBatch{.inputs = {begin, end}, .labels = {begin, end}};
  };
  EXPECT_THAT(CutBatch(10, 3, all), ElementsAre(range(0, 3), range(3, 6), range(6, 10)));
  EXPECT_THAT(CutBatch(2, 3, all), ElementsAre(range(0, 0), range(0, 1), range(1, 2)));
  EXPECT_THAT(CutBatch(7, 1, all), ElementsAre(range(0, 7)));
}

// The inputs of all ranks of all groups cover the endless sequence of samples: no position twice,
// none left out. So do the labels, once for each coordinate along `model`.
TEST(TrainingRowsTest, CoverEverySampleOncePerEpoch) {
  constexpr int64_t kSize = 30;
  constexpr int64_t kSteps = 11;
  for (const int64_t groups : {1, 3}) {
    v1::SampleDivision division;
    division.set_groups(groups);
    for (const int64_t batch : {1, 7, 16}) {
      for (const int64_t micro_batches : {1, 3}) {
        for (const auto& [data, model] : {std::pair{1, 1}, {2, 3}, {5, 1}, {1, 4}}) {
          const Mesh mesh = Mesh({{"data", data}, {"model", model}});
          std::map<int64_t, SampleRef> inputs;
          std::map<SampleRef, int, bool (*)(const SampleRef&, const SampleRef&)> labels(
              [](const SampleRef& a, const SampleRef& b) {
                return std::pair(a.epoch, a.index) < std::pair(b.epoch, b.index);
              });
          for (int64_t group = 0; group < groups; ++group) {
            for (int rank = 0; rank < mesh.ranks(); ++rank) {
              const RowSource source = TrainingRows(
                  {.seed = 4,
                   .dataset_size = kSize,
                   .group = group,
                   .batch = batch,
                   .division = division,
                   .micro_batches = CutBatch(batch, micro_batches, OnMesh(mesh, rank))});
              BatchRows rows;
              for (int64_t step = 0; step < kSteps; ++step) {
                source(step, rows);
                ASSERT_EQ(rows.inputs.size(), rows.positions.size());
                ASSERT_EQ(std::ssize(rows.micro_batches), micro_batches);
                for (size_t i = 0; i < rows.inputs.size(); ++i) {
                  ASSERT_TRUE(inputs.emplace(rows.positions[i], rows.inputs[i]).second);
                }
                for (const SampleRef& sample : rows.labels) ++labels[sample];
              }
            }
          }
          Sampler sampler(4, kSize);
          const int64_t positions = kSteps * groups * batch;
          ASSERT_EQ(std::ssize(inputs), positions);
          ASSERT_EQ(std::ssize(labels), positions);
          for (int64_t position = 0; position < positions; ++position) {
            ASSERT_EQ(inputs.at(position), sampler.SampleAt(position));
            ASSERT_EQ(labels.at(sampler.SampleAt(position)), model);
          }
        }
      }
    }
  }
}

TEST(TrainingRowsTest, MicroBatchesAreContiguous) {
  const Mesh mesh = Mesh({{"data", 1}, {"model", 2}});
  v1::SampleDivision division;
  division.set_groups(2);
  const RowSource source = TrainingRows({.seed = 1,
                                         .dataset_size = 100,
                                         .group = 1,
                                         .batch = 8,
                                         .division = division,
                                         .micro_batches = CutBatch(8, 2, OnMesh(mesh, 1))});
  BatchRows rows;
  source(5, rows);
  // Step 5 of group 1 of 2 begins at 88; of each 4 rows this rank loads the inputs of the second
  // half and all labels.
  EXPECT_THAT(rows.positions, ElementsAre(90, 91, 94, 95));
  EXPECT_EQ(rows.labels.size(), 8U);
  EXPECT_THAT(rows.micro_batches, ElementsAre(MicroBatch{.inputs = {0, 2}, .labels = {0, 4}},
                                              MicroBatch{.inputs = {2, 4}, .labels = {4, 8}}));
  EXPECT_EQ(rows.inputs[2], rows.labels[6]);
}

TEST(TrainingRowsTest, RankMayHaveNoRows) {
  const RowSource source =
      TrainingRows({.seed = 1, .dataset_size = 100, .batch = 2, .micro_batches = {{}, {}}});
  BatchRows rows;
  source(0, rows);
  EXPECT_THAT(rows.inputs, IsEmpty());
  EXPECT_THAT(rows.labels, IsEmpty());
  EXPECT_EQ(rows.micro_batches.size(), 2U);
}

TEST(TestRowsTest, CoverIntervalWithSmallerLastBatch) {
  const Mesh mesh = Mesh({{"data", 2}, {"model", 1}});
  std::vector<int> seen(40);
  for (int rank = 0; rank < 2; ++rank) {
    const RowSource source =
        TestRows({.begin = 10, .end = 33, .batch = 5, .rank = OnMesh(mesh, rank)});
    BatchRows rows;
    for (int64_t step = 0; step < 8; ++step) {
      source(step, rows);
      for (size_t i = 0; i < rows.inputs.size(); ++i) {
        EXPECT_EQ(rows.inputs[i].index, rows.positions[i]);
        EXPECT_EQ(rows.inputs[i].epoch, 0);
        ++seen[rows.inputs[i].index];
      }
      if (step >= 5) {
        EXPECT_THAT(rows.inputs, IsEmpty()) << step;
      }
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i >= 10 && i < 33) << i;
}

}  // namespace
}  // namespace cadre
