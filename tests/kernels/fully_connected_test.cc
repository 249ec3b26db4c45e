#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using FullyConnectedTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, FullyConnectedTest, ::testing::ValuesIn(BackEndsOfEverySize()),
                         NameOf);

TEST_P(FullyConnectedTest, KnownAnswer) {
  const LayerOutputs out =
      RunLayer(*kernels_, {.batch = 2, .in = 2, .out = 3},
               /*x=*/{1, 2, 3, 4}, /*w=*/{1, 0, 0, 1, 1, 1}, /*b=*/{10, 20, 30},
               /*dy=*/{1, 2, 3, 4, 5, 6});
  EXPECT_THAT(out.y, ElementsAre(11, 22, 33, 13, 24, 37));
  EXPECT_THAT(out.dx, ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(out.dw, ElementsAre(13, 18, 17, 24, 21, 30));
  EXPECT_THAT(out.db, ElementsAre(5, 7, 9));
}

TEST_P(FullyConnectedTest, BiasIsOptional) {
  ExpectLayerExact(*kernels_, FullyConnectedDims{.batch = 3, .in = 17, .out = 5},
                   /*with_bias=*/false);
}

TEST_P(FullyConnectedTest, WithoutInputsTheOutputIsTheBias) {
  const LayerOutputs out =
      RunLayer(*kernels_, {.batch = 2, .in = 0, .out = 2}, {}, {}, {5, 7}, {1, 2, 3, 4});
  EXPECT_THAT(out.y, ElementsAre(5, 7, 5, 7));
  EXPECT_THAT(out.db, ElementsAre(4, 6));
}

TEST_P(FullyConnectedTest, WithoutBatchGradientsAreZero) {
  const LayerOutputs out =
      RunLayer(*kernels_, {.batch = 0, .in = 3, .out = 2}, {}, Floats(6, 1.0F), {1, 1}, {});
  EXPECT_THAT(out.dw, Each(0.0F));
  EXPECT_THAT(out.db, Each(0.0F));
}

// The gradients of a batch are the sum of those of its parts.
TEST_P(FullyConnectedTest, GradientsOfPartsAddUp) {
  const FullyConnectedDims whole{.batch = 11, .in = 17, .out = 5},
      first{.batch = 4, .in = 17, .out = 5}, second{.batch = 7, .in = 17, .out = 5};
  const LayerSizes sizes = SizesOf(whole);
  const Floats x = Eighths(sizes.x, 1), dy = Eighths(sizes.y, 2);
  const auto rows = [](const Floats& of, int64_t begin, int64_t end) {
    const auto row = std::ssize(of) / 11;
    return Floats(of.begin() + begin * row, of.begin() + end * row);
  };
  for (const int64_t biases : {int64_t{5}, int64_t{0}}) {
    Floats want_w = Garbage(sizes.w), want_b = Garbage(biases), dw = want_w, db = want_b;
    kernels_->dense().FullyConnectedBackwardWeights(whole, x, dy, want_w, want_b);
    kernels_->dense().FullyConnectedBackwardWeights(first, rows(x, 0, 4), rows(dy, 0, 4), dw, db);
    kernels_->dense().FullyConnectedAddGradients(second, rows(x, 4, 11), rows(dy, 4, 11), dw, db);
    kernels_->dense().FullyConnectedAddGradients({.batch = 0, .in = 17, .out = 5}, {}, {}, dw, db);
    EXPECT_EQ(dw, want_w);
    EXPECT_EQ(db, want_b);
  }
}

TEST(ReferenceFullyConnectedTest, GradientsMatchDifferences) {
  ExpectLayerGradients(FullyConnectedDims{.batch = 3, .in = 5, .out = 4});
}

class CpuFullyConnectedTest : public ::testing::TestWithParam<FullyConnectedDims> {
 protected:
  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
};

TEST_P(CpuFullyConnectedTest, SumsAreNearReference) { ExpectLayerNearReference(*cpu_, GetParam()); }
TEST_P(CpuFullyConnectedTest, ExactDataGivesEqualBits) { ExpectLayerExact(*cpu_, GetParam()); }
TEST_P(CpuFullyConnectedTest, RepeatedCallsGiveEqualBits) { ExpectLayerRepeats(*cpu_, GetParam()); }

// Parameters are slices of one long vector, so they may start anywhere.
TEST_P(CpuFullyConnectedTest, AnyAlignmentGivesEqualBits) {
  const LayerSizes sizes = SizesOf(GetParam());
  const Floats x = Uniform(sizes.x, 1), w = Uniform(sizes.w, 2), b = Uniform(sizes.b, 3);
  Floats want = Garbage(sizes.y);
  cpu_->dense().FullyConnectedForward(GetParam(), x, w, b, want);
  for (size_t shift : {1, 3}) {
    Floats room(w.size() + shift), y = Garbage(sizes.y + 1);
    std::copy(w.begin(), w.end(), room.begin() + shift);
    const std::span<float> out = std::span(y).subspan(1);
    cpu_->dense().FullyConnectedForward(GetParam(), x, std::span(room).subspan(shift), b, out);
    EXPECT_EQ(Floats(out.begin(), out.end()), want) << shift;
  }
}

std::vector<FullyConnectedDims> Shapes() {
  std::vector<FullyConnectedDims> shapes = {
      {32, 3136, 64}, {5, 1568, 512}, {64, 1024, 10}, {1, 784, 100}, {32, 1000, 1},
  };
  for (int64_t batch : {0, 1, 7}) {
    for (int64_t in : {0, 1, 17, 64}) {
      for (int64_t out : {0, 1, 17, 33}) shapes.push_back({batch, in, out});
    }
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuFullyConnectedTest, ::testing::ValuesIn(Shapes()));

}  // namespace
}  // namespace cadre
