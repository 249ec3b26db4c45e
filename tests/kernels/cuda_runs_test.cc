// Tests that the CUDA back end is deterministic and asynchronous, and that captured graphs can be
// replayed with other numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/extents.h"
#include "tensor/box.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

using CudaRunsTest = CudaTest;

// Sums over more elements than a device has threads.
struct Outputs {
  std::vector<double> sums, losses, squares;
  Floats dw, dscale, dshift, db;
  friend bool operator==(const Outputs&, const Outputs&) = default;
};

Outputs RunSums(CudaDevice& device, Backend& kernels) {
  const RowsDims rows{.rows = 5000, .channels = 40};
  const EmbeddingDims embedding{.batch = 5, .tokens = 200, .vocabulary = 5, .features = 200};
  const int64_t n = SizeOf(rows);
  Floats ids;
  for (uint64_t i = 0; i < 1000; ++i) ids.push_back(static_cast<float>(Draw(0, 4, 3, i)));
  const OnDevice x(device, Uniform(n, 1)), dy(device, Uniform(n, 2)),
      mean(device, Uniform(rows.rows, 4)), scale(device, Uniform(rows.channels, 5)),
      dx(device, Garbage(n)), dscale(device, Garbage(rows.channels)),
      dshift(device, Garbage(rows.channels)), tokens(device, ids), dw(device, Garbage(5 * 200)),
      db(device, Garbage(rows.channels));
  DeviceArray<double> sums(device, 80, "test"), losses(device, 2, "test"),
      squares(device, 1, "test");
  DeviceArray<int32_t> labels(device, 5000, "test");
  kernels.norm().BatchNormSums(rows, x.values(), sums.span());
  kernels.pointwise().SoftmaxCrossEntropyAsync(rows.rows, rows.channels, 0.1F, x.values(),
                                               labels.span(), 1, dx.values(), losses.span());
  kernels.slices()->AddSumOfSquares(x.span(), squares.data());
  kernels.norm().LayerNormBackward(rows, x.values(), dy.values(), mean.span(), mean.span(),
                                   scale.span(), dx.values(), dscale.span(), dshift.span());
  kernels.dense().EmbeddingBackward(embedding, tokens.span(), dy.values(), dw.span(), {});
  kernels.dense().FullyConnectedBackwardWeights({.batch = rows.rows, .in = 0, .out = rows.channels},
                                                Values(), dy.values(), {}, db.span());
  return {.sums = FromDevice<double>(device, sums.span()),
          .losses = FromDevice<double>(device, losses.span()),
          .squares = FromDevice<double>(device, squares.span()),
          .dw = dw.Get(),
          .dscale = dscale.Get(),
          .dshift = dshift.Get(),
          .db = db.Get()};
}

TEST_F(CudaRunsTest, SumsAreDeterministic) {
  const Outputs first = RunSums(device(), kernels());
  EXPECT_EQ(RunSums(device(), kernels()), first);
  EXPECT_GT(first.losses[0], 0);
  EXPECT_GT(first.squares[0], 0);
}

TEST_F(CudaRunsTest, SumsAgreeWithTheReference) {
  const RowsDims rows{.rows = 5000, .channels = 40};
  const Outputs got = RunSums(device(), kernels());
  const Floats x = Uniform(SizeOf(rows), 1), dy = Uniform(SizeOf(rows), 2);
  std::vector<double> sums(80);
  reference_->norm().BatchNormSums(rows, x, sums);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(got.sums[i], sums[i], 1e-9);
  EXPECT_NEAR(got.squares[0], reference_->optimizer().SumOfSquares(x), 1e-7);
  Floats db = Garbage(40);
  Floats none;
  reference_->dense().FullyConnectedBackwardWeights({.batch = 5000, .in = 0, .out = 40}, none, dy,
                                                    none, db);
  ExpectNear(got.db, db, 0x1.0p-23);
}

// Blocks of scores in the caller's memory, down to a row, give the results of larger blocks; memory
// that has no room for a row is not used.
TEST_F(CudaRunsTest, AttentionUsesScratchMemoryOfAnySize) {
  for (const bool causal : {false, true}) {
    const AttentionDims dims{
        .batch = 2, .tokens = 24, .heads = 3, .head_features = 4, .causal = causal};
    const AttentionSizes sizes = SizesOf(dims);
    const Floats qkv = Uniform(sizes.qkv, 1), dcontext = Uniform(sizes.context, 2);
    const AttentionOutputs want = RunAttention(*reference_, dims, qkv, dcontext);
    const OnDevice in(device(), qkv), d(device(), dcontext);
    for (const int64_t floats : {0, 23, 24, 48, 49, 500, 576, 1200, 4000, 100'000}) {
      SCOPED_TRACE(floats);
      const OnDevice context(device(), Garbage(sizes.context)), dqkv(device(), Garbage(sizes.qkv)),
          statistics(device(), Garbage(sizes.statistics)),
          scratch(device(), Floats(floats + 8, 7.0F));
      const Values memory = scratch.values().first(floats);
      kernels().dense().AttentionForward(dims, {}, in.values(), context.values(), statistics.span(),
                                         memory);
      kernels().dense().AttentionBackward(dims, {}, in.values(), context.values(), d.values(),
                                          statistics.span(), memory, dqkv.values());
      ExpectNear(context.Get(), want.context, 1e-5);
      ExpectNear(statistics.Get(), want.statistics, 1e-5);
      ExpectNear(dqkv.Get(), want.dqkv, 1e-5);
      const Floats left = scratch.Get();
      EXPECT_EQ(Floats(left.begin() + floats, left.end()), Floats(8, 7.0F));
    }
  }
}

// `rows` rows of `columns` values, followed by padding.
Floats WithPadding(const Floats& x, int64_t rows, int64_t columns, int64_t row, float padding) {
  Floats padded(rows * row, padding);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(x.begin() + i * columns, columns, padded.begin() + i * row);
  }
  return padded;
}

Floats WithoutPadding(const Floats& padded, int64_t rows, int64_t columns, int64_t row) {
  Floats x;
  for (int64_t i = 0; i < rows; ++i) {
    x.insert(x.end(), padded.begin() + i * row, padded.begin() + i * row + columns);
  }
  return x;
}

// Padding of gradients is not used, whatever it contains, and that of outputs is 0, so that a
// search for values that are not finite ignores it.
TEST_F(CudaRunsTest, RowsOfAFullyConnectedLayerMayBePadded) {
  for (const int64_t in : {0, 6}) {
    for (const int64_t out : {7, 8}) {
      SCOPED_TRACE(testing::Message() << in << " by " << out);
      constexpr int64_t kRows = 5, kRow = 16;
      const FullyConnectedDims dims{.batch = kRows, .in = in, .out = out};
      const Floats x = Uniform(kRows * in, 1), w = Uniform(out * in, 2), b = Uniform(out, 3),
                   dy = Uniform(kRows * out, 4);
      Floats y = Garbage(kRows * out), dx = Garbage(kRows * in), dw = Garbage(out * in),
             db = Garbage(out);
      reference_->dense().FullyConnectedForward(dims, x, w, b, y);
      reference_->dense().FullyConnectedBackwardData(dims, dy, w, dx);
      reference_->dense().FullyConnectedBackwardWeights(dims, x, dy, dw, db);
      const OnDevice in_x(device(), x), in_w(device(), w), in_b(device(), b),
          in_dy(device(), WithPadding(dy, kRows, out, kRow, NAN)),
          out_y(device(), Garbage(kRows * kRow)), out_dx(device(), Garbage(kRows * in)),
          out_dw(device(), Garbage(out * in)), out_db(device(), Garbage(out));
      kernels().dense().FullyConnectedForward(dims, in_x.values(), in_w.span(), in_b.span(),
                                              out_y.values());
      kernels().dense().FullyConnectedBackwardData(dims, in_dy.values(), in_w.span(),
                                                   out_dx.values());
      kernels().dense().FullyConnectedBackwardWeights(dims, in_x.values(), in_dy.values(),
                                                      out_dw.span(), out_db.span());
      ExpectNear(WithoutPadding(out_y.Get(), kRows, out, kRow), y, 1e-6);
      EXPECT_EQ(out_y.Get(),
                WithPadding(WithoutPadding(out_y.Get(), kRows, out, kRow), kRows, out, kRow, 0));
      ExpectNear(out_dx.Get(), dx, 1e-6);
      ExpectNear(out_dw.Get(), dw, 1e-6);
      ExpectNear(out_db.Get(), db, 1e-6);
    }
  }
}

TEST_F(CudaRunsTest, RowsOfTheLossMayBePadded) {
  constexpr int64_t kRows = 6;
  for (const int64_t classes : {1, 3, 8, 61, 130}) {
    SCOPED_TRACE(classes);
    const int64_t row = (classes + 64) / 64 * 64;
    const Floats x = Uniform(kRows * classes, 1);
    const std::vector<int32_t> labels = RandomLabels(kRows, classes);
    Floats dx = Garbage(kRows * classes);
    const LossSums want =
        reference_->pointwise().SoftmaxCrossEntropy(kRows, classes, 0.1F, x, labels, 0.5F, dx);
    for (const float padding : {NAN, INFINITY, 1e30F}) {
      const OnDevice scores(device(), WithPadding(x, kRows, classes, row, padding));
      DeviceArray<int32_t> on_device(device(), kRows, "test");
      device().CopyIn(labels.data(), on_device.data(), kRows * sizeof(int32_t));
      const LossSums got = kernels().pointwise().SoftmaxCrossEntropy(
          kRows, classes, 0.1F, scores.values(), on_device.span(), 0.5F, scores.values());
      EXPECT_NEAR(got.loss, want.loss, 1e-5);
      EXPECT_EQ(got.correct, want.correct);
      ExpectNear(WithoutPadding(scores.Get(), kRows, classes, row), dx, 1e-6);
    }
  }
}

TEST_F(CudaRunsTest, EnqueueingDoesNotBlock) {
  const RowsDims rows{.rows = 64, .channels = 32};
  const OnDevice x(device(), Uniform(SizeOf(rows), 1)), y(device(), Garbage(SizeOf(rows)));
  DeviceArray<double> sums(device(), 64, "test");
  const auto step = [&] {
    kernels().pointwise().SetPosition(3);
    kernels().slices()->SetUpdate(0.1F, 2);
    kernels().norm().BatchNormSums(rows, x.values(), sums.span());
    kernels().pointwise().DropoutBox({.seed = 1, .rate = 0.5F}, Shape{64, 32},
                                     Box::Whole(Shape{64, 32}), x.values(), y.values());
    kernels().pointwise().ActivationForward(Activation::kGelu, x.values(), y.values());
    kernels().slices()->AddSumOfSquares(x.span(), sums.data());
  };
  step();
  const int64_t before = device().host_syncs();
  step();
  EXPECT_EQ(device().host_syncs(), before);
}

// In a rank's part of a batch, the same elements are dropped as in the whole batch, and as on the
// CPU.
TEST_F(CudaRunsTest, DropoutOfBoxesEqualsTheCpus) {
  const auto cpu = MakeCpuBackend(1);
  const Shape whole{6, 5, 4, 16};
  const DropoutKey key{.seed = 9, .layer = 4, .rate = 0.4F};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Box box = Box::Whole(whole);
    for (size_t d = 0; d < 4; ++d) {
      if (Draw(0, 1, seed, d) == 0) continue;
      box.begin[d] = Draw(0, box.end[d], seed, 10 + d);
      box.end[d] = Draw(box.begin[d], box.end[d], seed, 20 + d);
    }
    const int64_t n = box.shape().elements();
    const int64_t position = Draw(0, int64_t{1} << 40, seed, 30);
    const Floats x = Uniform(n, seed);
    Floats want = Garbage(n);
    cpu->pointwise().SetPosition(position);
    cpu->pointwise().DropoutBox(key, whole, box, x, want);
    for (const int64_t shift : {0, 1}) {
      const OnDevice in(device(), x, DType::kFloat32, shift),
          y(device(), Garbage(n), DType::kFloat32, shift);
      kernels().pointwise().SetPosition(position);
      kernels().pointwise().DropoutBox(key, whole, box, in.values(), y.values());
      ASSERT_EQ(y.Get(), want) << seed << ": " << box.ToString();
    }
  }
}

TEST_F(CudaRunsTest, StatisticsAgreeWithTheReference) {
  constexpr size_t kChannels = 300;
  const Floats random = Uniform(2 * kChannels, 1);
  std::vector<double> sums(2 * kChannels);
  for (size_t c = 0; c < kChannels; ++c) {
    sums[c] = 50 * random[c];
    // Sometimes less than the square of the mean, for which the variance is 0.
    sums[kChannels + c] = 50 * std::abs(random[kChannels + c]);
  }
  DeviceArray<double> given(device(), sums.size(), "test");
  device().CopyIn(sums.data(), given.data(), sums.size() * sizeof(double));
  for (const int64_t rows : {0, 1, 50}) {
    Floats want[4];
    for (Floats& values : want) values = Garbage(int64_t{kChannels});
    reference_->norm().BatchNormStatistics(rows, 1e-5F, 0.25, sums, want[0], want[1], want[2],
                                           want[3]);
    const OnDevice mean(device(), Garbage(int64_t{kChannels})),
        inverse(device(), Garbage(int64_t{kChannels})),
        running(device(), Garbage(int64_t{kChannels})),
        variance(device(), Garbage(int64_t{kChannels}));
    kernels().norm().BatchNormStatistics(rows, 1e-5F, 0.25, given.span(), mean.span(),
                                         inverse.span(), running.span(), variance.span());
    const OnDevice* const outputs[] = {&mean, &inverse, &running, &variance};
    // Arithmetic in double, possibly with fused products, is rounded to fp32: an error of a unit in
    // the last place. A variance has a larger error, because it is a difference of numbers up to
    // 50.
    for (size_t i = 0; i < 4; ++i) ExpectNear(outputs[i]->Get(), want[i], 0x1.0p-22);
    reference_->norm().BatchNormInverse(1e-5F, want[3], want[1]);
    const OnDevice given_variance(device(), want[3]);
    kernels().norm().BatchNormInverse(1e-5F, given_variance.span(), inverse.span());
    ExpectNear(inverse.Get(), want[1], 0x1.0p-22);
  }
}

// dx = -(mean of dy) - x * (mean of dy * x) without dy, so that every division can be seen.
TEST_F(CudaRunsTest, MeansOfSumsEqualTheReference) {
  constexpr size_t kChannels = 300;
  const RowsDims dims{.rows = 1, .channels = kChannels};
  const Floats random = Uniform(kChannels, 1), zero(kChannels, 0.0F), one(kChannels, 1.0F);
  const OnDevice zeros(device(), zero), ones(device(), one), dx(device(), zero);
  for (const int64_t rows : {0, 1, 7, 1000}) {
    for (const bool first : {true, false}) {
      const std::vector<double> sums = first ? Sums(random, zero) : Sums(zero, random);
      DeviceArray<double> given(device(), sums.size(), "test");
      device().CopyIn(sums.data(), given.data(), sums.size() * sizeof(double));
      kernels().norm().BatchNormBackward(dims, ones.span(), zeros.span(), {}, zeros.span(),
                                         ones.span(), ones.span(), rows, given.span(), dx.span());
      Floats want = Garbage(int64_t{kChannels});
      reference_->norm().BatchNormBackward(dims, one, zero, {}, zero, one, one, rows, sums, want);
      EXPECT_EQ(dx.Get(), want) << rows << " rows";
    }
  }
}

// A kernel cannot report invalid arguments, so its results are NaN; nothing out of bounds is
// accessed.
TEST_F(CudaRunsTest, InvalidTokensAndLabelsYieldNan) {
  const EmbeddingDims dims{.batch = 1, .tokens = 4, .vocabulary = 3, .features = 2};
  const OnDevice ids(device(), {1, 3, -1, NAN}), w(device(), {1, 2, 3, 4, 5, 6}),
      y(device(), Floats(8, 0.0F)), dy(device(), Floats(8, 1.0F)), dw(device(), Garbage(6));
  kernels().dense().EmbeddingForward(dims, ids.span(), w.span(), {}, y.values());
  const Floats found = y.Get();
  EXPECT_EQ(found[0], 3);
  EXPECT_EQ(found[1], 4);
  for (size_t i = 2; i < 8; ++i) EXPECT_TRUE(std::isnan(found[i]));
  kernels().dense().EmbeddingBackward(dims, ids.span(), dy.values(), dw.span(), {});
  EXPECT_EQ(dw.Get(), (Floats{0, 0, 1, 1, 0, 0}));
  for (const int32_t label : {3, -1}) {
    DeviceArray<int32_t> labels(device(), 1, "test");
    device().CopyIn(&label, labels.data(), sizeof(label));
    const auto sums = kernels().pointwise().SoftmaxCrossEntropy(1, 3, 0, w.values().first(3),
                                                                labels.span(), 1, Values());
    EXPECT_TRUE(std::isnan(sums.loss));
    EXPECT_EQ(sums.correct, 0);
  }
}

// A graph is launched with the position and the update that were set last.
TEST_F(CudaRunsTest, GraphsReadTheirNumbersAtLaunch) {
  ASSERT_TRUE(device().can_capture());
  const Shape shape{8, 40};
  const Box box = Box::Whole(shape);
  const Floats x = Uniform(320, 1), g = Uniform(320, 2);
  const OnDevice in(device(), x), y(device(), Garbage(320)), gradient(device(), g),
      w(device(), Floats(320, 1.0F)), m(device(), Floats(320, 0.0F)),
      v(device(), Floats(320, 0.0F));
  DeviceArray<double> sums(device(), 80, "test");
  const std::vector<SliceSegment> segments = {{.begin = 0, .end = 320, .decays = true}};
  const auto table = kernels().slices()->MakeSegmentTable(segments);
  const AdamWStep step{.weight_decay = 0.1F};
  const DropoutKey key{.seed = 3, .layer = 1, .rate = 0.5F};
  const auto work = [&]() -> absl::Status {
    kernels().pointwise().DropoutBox(key, shape, box, in.values(), y.values());
    kernels().norm().BatchNormSums({.rows = 8, .channels = 40}, y.values(), sums.span());
    kernels().slices()->UpdateSlice(step, {}, *table, gradient.span(), w.span(),
                                    States{m.span(), v.span()});
    return device().status();
  };
  const auto cpu = MakeCpuBackend(1);
  Floats want_y = x, want_w(320, 1.0F), want_m(320, 0.0F), want_v(320, 0.0F);
  const auto expect = [&](int64_t position, int64_t updates) {
    cpu->pointwise().SetPosition(position);
    cpu->pointwise().DropoutBox(key, shape, box, x, want_y);
    UpdateSliceOnHost(*cpu, 0.1F / static_cast<float>(updates), updates, step, {}, segments, g,
                      want_w, States{want_m, want_v});
    EXPECT_EQ(y.Get(), want_y);
    ExpectNear(w.Get(), want_w, 0x1.0p-21);
  };
  const auto set = [&](int64_t position, int64_t updates) {
    kernels().pointwise().SetPosition(position);
    kernels().slices()->SetUpdate(0.1F / static_cast<float>(updates), updates);
  };
  // The first execution, without a capture, allocates the scratch memory.
  set(100, 1);
  ASSERT_TRUE(work().ok());
  expect(100, 1);
  auto graph = device().CaptureGraph(work);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_NE(*graph, nullptr);
  for (const int64_t updates : {2, 3, 4}) {
    set(1000 * updates, updates);
    device().LaunchGraph(**graph);
    expect(1000 * updates, updates);
  }
}

TEST_F(CudaRunsTest, LargerScratchKeepsGraphsValid) {
  ASSERT_TRUE(device().can_capture());
  const RowsDims small{.rows = 100, .channels = 16};
  const Floats x = Eighths(SizeOf(small), 1);
  const OnDevice in(device(), x);
  DeviceArray<double> sums(device(), 32, "test");
  const auto work = [&]() -> absl::Status {
    kernels().norm().BatchNormSums(small, in.values(), sums.span());
    return device().status();
  };
  ASSERT_TRUE(work().ok());
  const std::vector<double> want = FromDevice<double>(device(), sums.span());
  const auto graph = device().CaptureGraph(work);
  ASSERT_TRUE(graph.ok() && *graph != nullptr) << graph.status();
  // Needs more scratch memory.
  const int64_t channels = 256;
  const OnDevice wide(device(), Floats(static_cast<size_t>(channels), 0.0F));
  DeviceArray<double> many(device(), static_cast<size_t>(2 * channels), "test");
  kernels().norm().BatchNormSums({.rows = 1, .channels = channels}, wide.values(), many.span());
  device().Zero(sums.data(), 32 * sizeof(double));
  device().LaunchGraph(**graph);
  EXPECT_EQ(FromDevice<double>(device(), sums.span()), want);
}

}  // namespace
}  // namespace cadre
