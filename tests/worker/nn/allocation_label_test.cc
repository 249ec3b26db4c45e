// Labels of allocations, which out-of-memory messages contain.
#include "worker/nn/allocation_label.h"

#include <gtest/gtest.h>

#include <vector>

#include "proto/cadre/v1/run.pb.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

TEST(AllocationLabelTest, BucketIsNamedByItsLargestParameter) {
  const auto model = Parse<v1::Model>(R"(
        input { channels: 1 height: 2 width: 2 }
        layer { name: "a/b" fully_connected { out_features: 3 } }
        layer { name: "c" fully_connected { out_features: 5 } }
        layer { name: "d" fully_connected { out_features: 2 } }
        layer { name: "loss" softmax_cross_entropy {} }
      )");
  const auto index = ParameterIndex::FromModel(model);
  ASSERT_TRUE(index.ok()) << index.status();
  const auto bucket_of = [&](const std::vector<int>& parameters) {
    BucketOwnership bucket;
    for (const int p : parameters) {
      const Shape& shape = (*index)[p].shape;
      LocalParameter local{.parameter = p, .box = Box::Whole(shape)};
      bucket.parameters.push_back(local);
    }
    return BucketDisplayName(*index, bucket);
  };
  EXPECT_EQ(bucket_of({}), "");
  EXPECT_EQ(bucket_of({0, 1}), "layer 'a/b'");
  EXPECT_EQ(bucket_of({0, 1, 2, 3}), "layer 'c' and 1 other");
  EXPECT_EQ(bucket_of({0, 2, 3, 4, 5}), "layer 'c' and 2 others");
}

TEST(AllocationLabelTest, FindsLayerAtPeak) {
  Tape tape;
  for (int layer = 0; layer < 4; ++layer) {
    TapeOp op;
    op.layer = layer;
    tape.ops.push_back(op);
  }
  EXPECT_EQ(LayerAtPeak(tape), 0);
  tape.buffers = {{.words = 10, .first = 0, .last = 1},
                  {.words = 30, .first = 1, .last = 2},
                  {.words = 11, .first = 2, .last = 3},
                  // Shares another buffer's memory, and is never used.
                  {.words = 0, .first = 3, .last = 3},
                  {.words = 99, .first = 4, .last = -1}};
  EXPECT_EQ(LayerAtPeak(tape), 2);
}

}  // namespace
}  // namespace cadre
