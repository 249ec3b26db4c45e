// Tests the CPU back end with several threads, and several of its objects in one process.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <span>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "kernels/optimizer_step.h"
#include "tests/kernels/testing.h"

namespace cadre {

std::vector<BackEnd> BackEnds() {
  return {{"Reference", [] { return MakeReferenceBackend(); }, {}},
          {"Cpu", [] { return MakeCpuBackend(1); }, {}},
          {"CpuThreeThreads", [] { return MakeCpuBackend(3); }, {}}};
}

std::vector<BackEnd> BackEndsOfEverySize() { return BackEnds(); }

namespace {

// One step of a small network's operations. Returns all results, concatenated.
Floats Step(Backend& kernels, uint64_t seed) {
  const ConvolutionDims conv = Convolution(8, 3, 20, Window(12, 12, 3, 1, 1));
  const PoolingDims pool = Pooling(PoolKind::kMax, 8, 20, Window(12, 12, 2, 2));
  const FullyConnectedDims fc{.batch = 8, .in = 20 * 36, .out = 10};
  const Floats x = Uniform(SizesOf(conv).x, seed), w1 = Uniform(SizesOf(conv).w, seed + 1),
               b1 = Uniform(SizesOf(conv).b, seed + 2), w2 = Uniform(SizesOf(fc).w, seed + 3),
               b2 = Uniform(SizesOf(fc).b, seed + 4);
  Floats y1 = Garbage(SizesOf(conv).y), y2 = Garbage(SizesOf(pool).y), y3 = Garbage(SizesOf(fc).y);
  Floats dx = Garbage(SizesOf(conv).x), dy1 = y1, dy2 = y2, dy3 = y3;
  Floats dw1 = w1, db1 = b1, dw2 = w2, db2 = b2;
  std::vector<int32_t> argmax(y2.size());
  const std::vector<int32_t> labels = {0, 1, 2, 3, 4, 5, 6, 7};

  kernels.window().ConvolutionForward(conv, x, w1, b1, y1);
  kernels.pointwise().ActivationForward(Activation::kRelu, y1, y1);
  kernels.window().PoolingForward(pool, y1, y2, argmax);
  kernels.dense().FullyConnectedForward(fc, y2, w2, b2, y3);
  const auto sums = kernels.pointwise().SoftmaxCrossEntropy(8, 10, 0.1F, y3, labels, 0.125F, dy3);
  kernels.dense().FullyConnectedBackwardWeights(fc, y2, dy3, dw2, db2);
  kernels.dense().FullyConnectedBackwardData(fc, dy3, w2, dy2);
  kernels.window().PoolingBackward(pool, dy2, argmax, dy1);
  kernels.pointwise().ActivationBackward(Activation::kRelu, y1, dy1, dy1);
  kernels.window().ConvolutionBackwardWeights(conv, x, dy1, dw1, db1);
  kernels.window().ConvolutionBackwardData(conv, dy1, w1, dx);

  const float loss = sums.loss;
  Floats all = {loss};
  for (const Floats* part : {&y1, &y2, &y3, &dy3, &dw2, &db2, &dy2, &dy1, &dw1, &db1, &dx}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

TEST(CpuKernelsTest, KeepsTheCallersNumberOfThreads) {
  const int before = omp_get_max_threads();
  Step(*MakeCpuBackend(before + 2), 1);
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(CpuKernelsTest, MayMoveToAnotherThread) {
  const auto kernels = MakeCpuBackend(1);
  const Floats want = Step(*kernels, 1);
  Floats got;
  std::thread([&] { got = Step(*kernels, 1); }).join();
  EXPECT_EQ(got, want);
  EXPECT_EQ(Step(*kernels, 1), want);
}

// Objects with different numbers of threads that run concurrently, as workers in one test process
// do, compute the same results as each does alone.
TEST(CpuKernelsTest, ObjectsDoNotDisturbEachOther) {
  constexpr int kObjects = 4;
  constexpr int kSteps = 5;
  std::vector<Floats> want(kObjects);
  for (int i = 0; i < kObjects; ++i) {
    want[i] = Step(*MakeCpuBackend(1 + i % 2), 10 * i);
  }
  std::vector<int> same(kObjects, 0);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kObjects; ++i) {
    threads.emplace_back([i, &want, &same] {
      const auto kernels = MakeCpuBackend(1 + i % 2);
      for (int step = 0; step < kSteps; ++step) same[i] += Step(*kernels, 10 * i) == want[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : same) EXPECT_EQ(count, kSteps);
}

TEST(CpuKernelsTest, SeveralThreadsGiveTheSameBitsEachTime) {
  const auto kernels = MakeCpuBackend(2);
  const Floats want = Step(*kernels, 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Step(*kernels, 1), want);
  EXPECT_EQ(Step(*MakeCpuBackend(2), 1), want);
}

// Floats that begin `shift` elements after the beginning of an allocation.
class Shifted {
 public:
  Shifted(const Floats& values, size_t shift) : shift_(shift), room_(shift, 0.0F) {
    room_.insert(room_.end(), values.begin(), values.end());
  }
  std::span<float> span() { return std::span(room_).subspan(shift_); }
  Floats values() { return {span().begin(), span().end()}; }

 private:
  const size_t shift_;
  Floats room_;
};

// Spans may start anywhere, because parameters are slices of one long vector, and activations may
// begin at any row.
TEST(CpuKernelsTest, SpansMayStartAnywhere) {
  const auto kernels = MakeCpuBackend(1);
  const RowsDims dims{.rows = 9, .channels = 37};
  const AttentionDims attention{.batch = 1, .tokens = 9, .heads = 1, .head_features = 37};
  const auto run = [&](size_t shift) {
    Shifted x(Uniform(SizeOf(dims), 1), shift), dy(Uniform(SizeOf(dims), 2), shift);
    Shifted scale(Uniform(37, 3), shift), shift_by(Uniform(37, 4), shift);
    Shifted mean(Uniform(37, 5), shift), inverse(Absolute(Uniform(37, 6)), shift);
    Shifted y(x), dx(x), d(x), row_mean(Garbage(9), shift), row_inverse(Garbage(9), shift);
    Shifted dscale(scale), dshift(scale), m(x), v(Absolute(x.values()), shift), w(dy);
    Shifted qkv(Uniform(3 * SizeOf(dims), 7), shift), dqkv(qkv), log_sums(Garbage(9), shift);
    Floats all;
    const auto keep = [&](Shifted& part) {
      for (const float value : part.span()) all.push_back(value);
    };
    kernels->norm().BatchNormForward(dims, x.span(), mean.span(), inverse.span(), scale.span(),
                                     shift_by.span(), {}, {}, y.span());
    keep(y);
    kernels->norm().BatchNormBackward(dims, x.span(), dy.span(), {}, mean.span(), inverse.span(),
                                      scale.span(), 1, Sums(shift_by.values(), mean.values()),
                                      dx.span());
    keep(dx);
    kernels->norm().LayerNormForward(dims, 1e-5F, x.span(), scale.span(), shift_by.span(), y.span(),
                                     row_mean.span(), row_inverse.span());
    keep(y);
    kernels->norm().LayerNormBackward(dims, x.span(), dy.span(), row_mean.span(),
                                      row_inverse.span(), scale.span(), dx.span(), dscale.span(),
                                      dshift.span());
    for (Shifted* part : {&dx, &dscale, &dshift}) keep(*part);
    const LrnDims lrn{.rows = 9, .channels = 37};
    kernels->norm().LrnForward(lrn, x.span(), y.span(), d.span());
    keep(y);
    kernels->norm().LrnBackward(lrn, x.span(), d.span(), dy.span(), dx.span());
    keep(dx);
    kernels->dense().AttentionForward(attention, {}, qkv.span(), y.span(), log_sums.span(), {});
    for (Shifted* part : {&y, &log_sums}) keep(*part);
    kernels->dense().AttentionBackward(attention, {}, qkv.span(), y.span(), dy.span(),
                                       log_sums.span(), {}, dqkv.span());
    keep(dqkv);
    for (const Activation kind : {Activation::kGelu, Activation::kSigmoid, Activation::kTanh}) {
      kernels->pointwise().ActivationForward(kind, x.span(), y.span());
      keep(y);
    }
    kernels->memory().Transpose(1, 9, 37, x.span(), y.span());
    keep(y);
    kernels->optimizer().Update(SgdStep{.rate = 0.1F, .momentum = 0.9F}, dy.span(), w.span(),
                                States{m.span()});
    kernels->optimizer().Update(AdamWStep{.rate = 0.1F}, x.span(), w.span(),
                                States{m.span(), v.span()});
    for (Shifted* part : {&w, &m, &v}) keep(*part);
    return all;
  };
  const Floats want = run(0);
  EXPECT_EQ(run(1), want);
  EXPECT_EQ(run(3), want);
}

TEST(PrecisionTest, IsRefusedWithAReason) {
  EXPECT_EQ(MakeCpuBackend(1)->SetPrecision(Precision::kTf32),
            absl::InvalidArgumentError("precision TF32 needs a CUDA device; give FP32"));
  const auto reference = MakeReferenceBackend();
  EXPECT_EQ(reference->SetPrecision(Precision::kBf16),
            absl::InvalidArgumentError("the plain loops compute in FP32 only; give FP32"));
  EXPECT_EQ(reference->activation_type(), DType::kFloat32);
}

TEST(CpuKernelsDeathTest, NeedsAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(MakeCpuBackend(0), "threads");
}

// The reference and the CPU back end check arguments in the same place (host_backend.h).
TEST(CpuKernelsDeathTest, RejectsWrongArguments) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto kernels = MakeCpuBackend(1);
  const ConvolutionDims convolution = Convolution(1, 1, 1, Window(4, 4, 3, 1, 1));
  ConvolutionDims no_stride = convolution;
  no_stride.window.stride_width = 0;
  const PoolingDims pooling = Pooling(PoolKind::kMax, 1, 1, Window(2, 2, 2));
  const FullyConnectedDims connected{.batch = 2, .in = 3, .out = 4};
  const EmbeddingDims embedding{.batch = 1, .tokens = 1, .vocabulary = 3, .features = 1};
  Floats y(16), one(1), two(2), three(3), eight(8);
  const auto convolve = [&](const ConvolutionDims& dims, int64_t xs, int64_t ws, int64_t bs) {
    kernels->window().ConvolutionForward(dims, Floats(xs), Floats(ws), Floats(bs), y);
  };
  const auto embed = [&](float id) {
    kernels->dense().EmbeddingForward(embedding, Floats{id}, three, {}, one);
  };
  const auto loss_of = [&](int32_t label) {
    kernels->pointwise().SoftmaxCrossEntropy(1, 3, 0, three, std::vector<int32_t>{label}, 1, {});
  };
  EXPECT_DEATH(convolve(convolution, 15, 9, 1), "elements of x");
  EXPECT_DEATH(convolve(convolution, 16, 8, 1), "elements of w");
  EXPECT_DEATH(convolve(convolution, 16, 9, 2), "elements of b");
  EXPECT_DEATH(convolve(no_stride, 16, 9, 1), "stride");
  EXPECT_DEATH(kernels->window().PoolingForward(pooling, Floats(4), one, {}), "argmax");
  EXPECT_DEATH(kernels->dense().FullyConnectedForward(connected, Floats(6), Floats(11), {}, eight),
               "elements of w");
  EXPECT_DEATH(
      kernels->dense().FullyConnectedForward(connected, Floats(6), Floats(12), three, eight),
      "elements of b");
  EXPECT_DEATH(kernels->pointwise().ActivationForward(Activation::kRelu, two, three),
               "elements of y");
  EXPECT_DEATH(kernels->pointwise().Add(two, three), "elements of y");
  EXPECT_DEATH(kernels->optimizer().Update(SgdStep{}, two, three, States{three}), "elements of g");
  EXPECT_DEATH(kernels->optimizer().Update(AdamWStep{}, three, three, States{three, two}),
               "elements of state 1");
  EXPECT_DEATH(kernels->optimizer().Update(AdamWStep{}, three, three, States{three}),
               "state tensors");
  EXPECT_DEATH(embed(3), "token 3");
  EXPECT_DEATH(embed(-1), "token -1");
  EXPECT_DEATH(embed(NAN), "token");
  EXPECT_DEATH(loss_of(3), "label 3");
  EXPECT_DEATH(loss_of(-1), "label -1");
}

}  // namespace
}  // namespace cadre
