#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/extents.h"
#include "kernels/kernels.h"
#include "tests/kernels/testing.h"

namespace cadre {

void PrintTo(const FullyConnectedDims& d, std::ostream* out) {
  *out << absl::StrCat("batch ", d.batch, ", ", d.in, " to ", d.out);
}

namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Outputs {
  Floats y, dx, dw, db;
};

Outputs RunAll(Kernels& kernels, const FullyConnectedDims& dims, const Floats& x, const Floats& w,
               const Floats& b, const Floats& dy) {
  const LayerSizes sizes = SizesOf(dims);
  Outputs out{.y = Garbage(sizes.y),
              .dx = Garbage(sizes.x),
              .dw = Garbage(sizes.w),
              .db = Garbage(sizes.b)};
  kernels.FullyConnectedForward(dims, x, w, b, out.y);
  kernels.FullyConnectedBackwardData(dims, dy, w, out.dx);
  kernels.FullyConnectedBackwardWeights(dims, x, dy, out.dw, out.db);
  return out;
}

TEST(ReferenceFullyConnectedTest, KnownAnswer) {
  const Outputs out = RunAll(*MakeReferenceKernels(), {.batch = 2, .in = 2, .out = 3},
                             /*x=*/{1, 2, 3, 4}, /*w=*/{1, 0, 0, 1, 1, 1}, /*b=*/{10, 20, 30},
                             /*dy=*/{1, 2, 3, 4, 5, 6});
  EXPECT_THAT(out.y, ElementsAre(11, 22, 33, 13, 24, 37));
  EXPECT_THAT(out.dx, ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(out.dw, ElementsAre(13, 18, 17, 24, 21, 30));
  EXPECT_THAT(out.db, ElementsAre(5, 7, 9));
}

// The layer is linear in each argument and integers are exact, so moving a value by one gives its
// gradient exactly.
TEST(ReferenceFullyConnectedTest, GradientsAreTheDifferences) {
  const FullyConnectedDims dims{.batch = 3, .in = 5, .out = 4};
  const LayerSizes sizes = SizesOf(dims);
  Floats x = SmallIntegers(sizes.x, 1), w = SmallIntegers(sizes.w, 2),
         b = SmallIntegers(sizes.b, 3);
  const Floats dy = SmallIntegers(sizes.y, 4);
  const auto kernels = MakeReferenceKernels();
  const Outputs out = RunAll(*kernels, dims, x, w, b, dy);
  const auto loss = [&] {
    Floats y(dy.size());
    kernels->FullyConnectedForward(dims, x, w, b, y);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * dy[i];
    return sum;
  };
  const double before = loss();
  const auto expect_gradient = [&](Floats& values, const Floats& gradient) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += 1;
      EXPECT_EQ(loss() - before, gradient[i]) << i;
      values[i] -= 1;
    }
  };
  expect_gradient(x, out.dx);
  expect_gradient(w, out.dw);
  expect_gradient(b, out.db);
}

class CpuFullyConnectedTest : public ::testing::TestWithParam<FullyConnectedDims> {
 protected:
  const FullyConnectedDims dims_ = GetParam();
  const LayerSizes sizes_ = SizesOf(dims_);
  const std::unique_ptr<Kernels> reference_ = MakeReferenceKernels();
  const std::unique_ptr<Kernels> cpu_ = MakeCpuKernels(1);
};

TEST_P(CpuFullyConnectedTest, SumsAreNearTheReference) {
  const Floats x = Uniform(sizes_.x, 1), w = Uniform(sizes_.w, 2), b = Uniform(sizes_.b, 3),
               dy = Uniform(sizes_.y, 4);
  const Outputs want = RunAll(*reference_, dims_, x, w, b, dy);
  const Outputs got = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs magnitude =
      RunAll(*reference_, dims_, Absolute(x), Absolute(w), Absolute(b), Absolute(dy));
  ExpectSumsNear(got.y, want.y, magnitude.y, dims_.in + 1);
  ExpectSumsNear(got.dx, want.dx, magnitude.dx, dims_.out);
  ExpectSumsNear(got.dw, want.dw, magnitude.dw, dims_.batch);
  ExpectSumsNear(got.db, want.db, magnitude.db, dims_.batch);
}

TEST_P(CpuFullyConnectedTest, IntegersAreExact) {
  const Floats x = SmallIntegers(sizes_.x, 1), w = SmallIntegers(sizes_.w, 2),
               b = SmallIntegers(sizes_.b, 3), dy = SmallIntegers(sizes_.y, 4);
  const Outputs want = RunAll(*reference_, dims_, x, w, b, dy);
  const Outputs got = RunAll(*cpu_, dims_, x, w, b, dy);
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dw, want.dw);
  EXPECT_EQ(got.db, want.db);
}

TEST_P(CpuFullyConnectedTest, SameCallSameBits) {
  const Floats x = Uniform(sizes_.x, 1), w = Uniform(sizes_.w, 2), b = Uniform(sizes_.b, 3),
               dy = Uniform(sizes_.y, 4);
  const Outputs first = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs again = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs other = RunAll(*MakeCpuKernels(1), dims_, x, w, b, dy);
  for (const Outputs* out : {&again, &other}) {
    EXPECT_EQ(out->y, first.y);
    EXPECT_EQ(out->dx, first.dx);
    EXPECT_EQ(out->dw, first.dw);
    EXPECT_EQ(out->db, first.db);
  }
}

// Parameters are slices of one long vector, so they may start anywhere.
TEST_P(CpuFullyConnectedTest, SameBitsAtAnyAlignment) {
  const Floats x = Uniform(sizes_.x, 1), w = Uniform(sizes_.w, 2), b = Uniform(sizes_.b, 3);
  Floats want = Garbage(sizes_.y);
  cpu_->FullyConnectedForward(dims_, x, w, b, want);
  for (size_t shift : {1, 3}) {
    Floats room(w.size() + shift), y = Garbage(sizes_.y + 1);
    std::copy(w.begin(), w.end(), room.begin() + static_cast<std::ptrdiff_t>(shift));
    const std::span<float> out = std::span(y).subspan(1);
    cpu_->FullyConnectedForward(dims_, x, std::span(room).subspan(shift), b, out);
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

TEST(CpuFullyConnectedEdgeTest, WithoutInputsTheOutputIsTheBias) {
  const Outputs out =
      RunAll(*MakeCpuKernels(1), {.batch = 2, .in = 0, .out = 2}, {}, {}, {5, 7}, {1, 2, 3, 4});
  EXPECT_THAT(out.y, ElementsAre(5, 7, 5, 7));
  EXPECT_THAT(out.db, ElementsAre(4, 6));
}

TEST(CpuFullyConnectedEdgeTest, WithoutBatchGradientsAreZero) {
  const Outputs out =
      RunAll(*MakeCpuKernels(1), {.batch = 0, .in = 3, .out = 2}, {}, Floats(6, 1.0F), {1, 1}, {});
  EXPECT_THAT(out.dw, Each(0.0F));
  EXPECT_THAT(out.db, Each(0.0F));
}

TEST(FullyConnectedDeathTest, RefusesSpansThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const FullyConnectedDims dims{.batch = 2, .in = 3, .out = 4};
  Floats y(8);
  EXPECT_DEATH(MakeCpuKernels(1)->FullyConnectedForward(dims, Floats(6), Floats(11), Floats(4), y),
               "elements of w");
  EXPECT_DEATH(
      MakeReferenceKernels()->FullyConnectedForward(dims, Floats(6), Floats(12), Floats(3), y),
      "elements of b");
}

}  // namespace
}  // namespace cadre
