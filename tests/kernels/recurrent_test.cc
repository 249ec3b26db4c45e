// Steps of recurrent layers, and attention over other sequences: softmax and batched products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct LstmInputs {
  Floats gates, recurrent, previous, dy, dcell;
};

LstmInputs RandomLstm(const RowsDims& dims, bool first) {
  const int64_t cells = SizeOf(dims);
  LstmInputs in{.gates = Uniform(4 * cells, 1),
                .recurrent = first ? Floats() : Uniform(4 * cells, 2),
                .previous = first ? Floats() : Uniform(cells, 3),
                .dy = Uniform(cells, 4),
                .dcell = Uniform(cells, 5)};
  for (float& gate : in.gates) gate *= 3;
  return in;
}

struct LstmOutputs {
  Floats gates, cell, y, dgates, dprevious;
};

LstmOutputs RunLstm(Backend& kernels, const RowsDims& dims, const LstmInputs& in) {
  LstmOutputs out{.gates = in.gates,
                  .cell = Garbage(SizeOf(dims)),
                  .y = Garbage(SizeOf(dims)),
                  .dprevious = in.dcell};
  kernels.pointwise().LstmForward(dims, in.recurrent, in.previous, out.gates, out.cell, out.y);
  out.dgates = out.gates;
  kernels.pointwise().LstmBackward(dims, in.dy, in.previous, out.cell, out.dgates, out.dprevious);
  return out;
}

Floats Joined(const Floats& a, const Floats& b) {
  Floats joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

using RecurrentTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, RecurrentTest, ::testing::ValuesIn(BackEnds()), NameOf);

// sigmoid(0) = 1/2 and sigmoid(log 3) = 3/4; tanh(log(3) / 2) = 1/2.
TEST_P(RecurrentTest, LstmKnownAnswer) {
  const float log3 = std::log(3.0F);
  const RowsDims dims{.rows = 1, .channels = 2};
  // All sums of the first cell are in `gates`, those of the second in `recurrent`.
  const LstmInputs in{.gates = {0, 0, log3, 0, log3 / 2, 0, 0, 0},
                      .recurrent = {0, log3, 0, 0, 0, -log3 / 2, 0, log3},
                      .previous = {1, 2},
                      .dy = {0, 0},
                      .dcell = {2, 4}};
  const LstmOutputs out = RunLstm(*kernels_, dims, in);
  ExpectNear(out.gates, Floats{0.5F, 0.75F, 0.75F, 0.5F, 0.5F, -0.5F, 0.5F, 0.75F}, 1e-6);
  ExpectNear(out.cell, Floats{1, 0.625F}, 1e-6);
  ExpectNear(out.y, Floats{0.5F * std::tanh(1.0F), 0.75F * std::tanh(0.625F)}, 1e-6);
  ExpectNear(out.dprevious, Floats{1.5F, 2}, 1e-6);
  ExpectNear(out.dgates, Floats{0.25F, -0.375F, 0.375F, 2, 0.75F, 2.25F, 0, 0}, 1e-6);
}

TEST_P(RecurrentTest, LstmGradientsMatchDifferences) {
  const RowsDims dims{.rows = 3, .channels = 7};
  const auto reference = MakeReferenceBackend();
  for (const bool first : {false, true}) {
    LstmInputs in = RandomLstm(dims, first);
    const LstmOutputs out = RunLstm(*kernels_, dims, in);
    const auto forward = [&] {
      const LstmOutputs moved = RunLstm(*reference, dims, in);
      return Joined(moved.y, moved.cell);
    };
    const Floats gradients = Joined(in.dy, in.dcell);
    ExpectGradient(in.gates, out.dgates, gradients, forward);
    if (first) continue;
    ExpectGradient(in.recurrent, out.dgates, gradients, forward);
    ExpectGradient(in.previous, out.dprevious, gradients, forward);
  }
}

TEST_P(RecurrentTest, LstmIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const RowsDims& dims :
       {RowsDims{1, 1}, RowsDims{3, 15}, RowsDims{2, 16}, RowsDims{5, 333}, RowsDims{64, 256}}) {
    for (const bool first : {false, true}) {
      SCOPED_TRACE(::testing::Message() << dims.rows << " x " << dims.channels << ", " << first);
      const LstmInputs in = RandomLstm(dims, first);
      const LstmOutputs got = RunLstm(*kernels_, dims, in), want = RunLstm(*reference, dims, in);
      ExpectNear(got.gates, want.gates, 1e-6);
      ExpectNear(got.cell, want.cell, 1e-6);
      ExpectNear(got.y, want.y, 1e-6);
      ExpectNear(got.dgates, want.dgates, 2e-6);
      ExpectNear(got.dprevious, want.dprevious, 2e-6);
    }
  }
}

TEST_P(RecurrentTest, SoftmaxKnownAnswer) {
  const float log3 = std::log(3.0F);
  const RowsDims dims{.rows = 2, .channels = 2};
  Floats y = Garbage(4), dx = Garbage(4);
  // Without the subtraction of the maximum, the exponentials of the second row would overflow.
  kernels_->pointwise().SoftmaxForward(dims, 0.5F, Floats{2 * log3, 0, 1000, 1000}, y);
  ExpectNear(y, Floats{0.75F, 0.25F, 0.5F, 0.5F}, 1e-6);
  kernels_->pointwise().SoftmaxBackward(dims, 0.5F, Floats{0.75F, 0.25F, 0.5F, 0.5F},
                                        Floats{4, 0, 1, 1}, dx);
  ExpectNear(dx, Floats{0.375F, -0.375F, 0, 0}, 1e-6);
}

TEST_P(RecurrentTest, SoftmaxIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const RowsDims& dims :
       {RowsDims{1, 1}, RowsDims{7, 5}, RowsDims{3, 33}, RowsDims{40, 200}}) {
    const int64_t n = SizeOf(dims);
    Floats x = Uniform(n, 1);
    for (float& value : x) value *= 20;
    const Floats dy = Uniform(n, 2);
    Floats y = Garbage(n), want = y, dx = y, want_dx = y;
    kernels_->pointwise().SoftmaxForward(dims, 0.7F, x, y);
    reference->pointwise().SoftmaxForward(dims, 0.7F, x, want);
    ExpectNear(y, want, 1e-6);
    kernels_->pointwise().SoftmaxBackward(dims, 0.7F, want, dy, dx);
    reference->pointwise().SoftmaxBackward(dims, 0.7F, want, dy, want_dx);
    ExpectNear(dx, want_dx, 1e-6);
  }
}

TEST_P(RecurrentTest, SoftmaxGradientMatchesDifferences) {
  const RowsDims dims{.rows = 4, .channels = 9};
  Floats x = Uniform(36, 1), y = Garbage(36), dx = Garbage(36);
  const Floats dy = Uniform(36, 2);
  const auto reference = MakeReferenceBackend();
  const auto forward = [&] {
    reference->pointwise().SoftmaxForward(dims, 2, x, y);
    return y;
  };
  kernels_->pointwise().SoftmaxBackward(dims, 2, forward(), dy, dx);
  ExpectGradient(x, dx, dy, forward);
}

TEST_P(RecurrentTest, BatchedProductEqualsReferenceOnExactData) {
  const auto reference = MakeReferenceBackend();
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (BatchedProductDims dims :
           {BatchedProductDims{1, 1, 1, 1}, BatchedProductDims{3, 2, 5, 4},
            BatchedProductDims{2, 33, 17, 40}, BatchedProductDims{1, 33, 17, 40},
            // Products of vectors, and of a number and a vector.
            BatchedProductDims{70, 1, 1, 37}, BatchedProductDims{70, 1, 37, 1}}) {
        dims.transpose_a = transpose_a;
        dims.transpose_b = transpose_b;
        const LayerSizes sizes = SizesOf(dims);
        const Floats a = Eighths(sizes.x, 1), b = Eighths(sizes.w, 2);
        Floats got = Garbage(sizes.y), want = got;
        kernels_->dense().BatchedProduct(dims, a, b, got);
        reference->dense().BatchedProduct(dims, a, b, want);
        EXPECT_EQ(got, want) << dims.m << " " << transpose_a << transpose_b;
      }
    }
  }
}

// Each row of scores of a sampled softmax has a product of its own.
TEST_P(RecurrentTest, ManyProductsOfVectors) {
  const auto reference = MakeReferenceBackend();
  for (const BatchedProductDims& dims :
       {BatchedProductDims{70'000, 1, 1, 3}, BatchedProductDims{70'000, 1, 3, 1}}) {
    const LayerSizes sizes = SizesOf(dims);
    const Floats a = Eighths(sizes.x, 1), b = Eighths(sizes.w, 2);
    Floats got = Garbage(sizes.y), want = got;
    kernels_->dense().BatchedProduct(dims, a, b, got);
    reference->dense().BatchedProduct(dims, a, b, want);
    EXPECT_EQ(got, want) << dims.n << " x " << dims.k;
  }
}

TEST_P(RecurrentTest, BatchedProductKnownAnswer) {
  Floats c = Garbage(4);
  kernels_->dense().BatchedProduct({.batch = 2, .m = 1, .n = 2, .k = 2, .transpose_b = true},
                                   Floats{1, 2, 3, 4}, Floats{1, 10, 2, 20, 1, 0, 0, 1}, c);
  EXPECT_THAT(c, ElementsAre(21, 42, 3, 4));
}

TEST_P(RecurrentTest, EmptyTensors) {
  Floats none, c = Garbage(6);
  for (const RowsDims& dims : {RowsDims{0, 3}, RowsDims{3, 0}}) {
    RunLstm(*kernels_, dims, {});
    kernels_->pointwise().SoftmaxForward(dims, 1, none, none);
    kernels_->pointwise().SoftmaxBackward(dims, 1, none, none, none);
  }
  kernels_->dense().BatchedProduct({.batch = 0, .m = 2, .n = 3, .k = 4}, none, none, none);
  kernels_->dense().BatchedProduct({.batch = 1, .m = 0, .n = 3, .k = 4}, none, Floats(12), none);
  kernels_->dense().BatchedProduct({.batch = 1, .m = 2, .n = 3, .k = 0}, none, none, c);
  EXPECT_THAT(c, Each(0.0F));
}

TEST(CpuRecurrentTest, SeveralThreadsGiveTheSameBits) {
  const auto one = MakeCpuBackend(1), three = MakeCpuBackend(3);
  const RowsDims dims{.rows = 50, .channels = 301};
  const LstmInputs in = RandomLstm(dims, /*first=*/false);
  const LstmOutputs got = RunLstm(*three, dims, in), want = RunLstm(*one, dims, in);
  EXPECT_EQ(got.gates, want.gates);
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.dgates, want.dgates);
  EXPECT_EQ(got.dprevious, want.dprevious);
}

// With one thread each product is computed as a whole; more threads divide products.
TEST(CpuRecurrentTest, DividedBatchedProductsHaveTheSameBits) {
  const auto one = MakeCpuBackend(1);
  for (const int threads : {2, 3, 5, 16}) {
    const auto several = MakeCpuBackend(threads);
    for (BatchedProductDims dims : {BatchedProductDims{1, 16, 16, 80},
                                    {1, 17, 70, 80},
                                    {1, 60, 70, 80},
                                    {1, 47, 300, 7},
                                    {1, 300, 47, 1},
                                    {1, 128, 33, 384},
                                    {1, 129, 96, 385},
                                    {1, 256, 1024, 40},
                                    {1, 64, 200, 768},
                                    {1, 200, 64, 769},
                                    {1, 48, 147, 1024},
                                    {1, 128, 1024, 1024},
                                    {2, 100, 100, 64},
                                    {3, 33, 130, 256},
                                    {5, 60, 70, 80},
                                    {17, 31, 33, 64}}) {
      const LayerSizes sizes = SizesOf(dims);
      const Floats a = Uniform(sizes.x, 1), b = Uniform(sizes.w, 2);
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          dims.transpose_a = transpose_a;
          dims.transpose_b = transpose_b;
          Floats c = Garbage(sizes.y), want = c;
          several->dense().BatchedProduct(dims, a, b, c);
          one->dense().BatchedProduct(dims, a, b, want);
          EXPECT_EQ(c, want) << threads << " threads: " << dims.batch << " x " << dims.m << " x "
                             << dims.n << " x " << dims.k << ", " << transpose_a << transpose_b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadre
