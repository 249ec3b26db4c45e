// Activations, dropout, addition, steps of recurrent layers, and softmax. The loss is in loss.cu.
//
// Elementwise operations take one pass, 16 bytes at a time if all arrays are aligned. A thread
// computes a cell of a recurrent step, a warp a row of a softmax.
//
// Dropout uses the same counter-based generator as the host (base/random.h), so that a device drops
// the same elements. An element's number is computed from its position in the whole batch, which a
// walk (nest.h) over the rank's box yields. The batch's position is read from device memory, so
// that a captured graph draws new numbers at every launch.
#include <cmath>
#include <utility>

#include "base/random.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/nest.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// A name that the method Sum does not hide.
constexpr Sum kSum = {};

// 1 / sqrt(2) and 1 / sqrt(2 pi).
constexpr float kRootHalf = 0.707106781F;
constexpr float kDensity = 0.398942280F;

// These forms return NaN for NaN.
struct Relu {
  __device__ float operator()(float x, float) const { return x < 0 ? 0 : x; }
};
// The complementary error function keeps the relative precision of small values.
struct Gelu {
  __device__ float operator()(float x, float) const { return x * (0.5F * erfcf(-x * kRootHalf)); }
};
struct Sigmoid {
  __device__ float operator()(float x, float) const { return 1.0F / (1.0F + expf(-x)); }
};
struct Tanh {
  __device__ float operator()(float x, float) const { return tanhf(x); }
};

// Gradients from dy and from the argument `seen` of PointwiseKernels::ActivationBackward (x for
// GELU, y for the others).
struct ReluBackward {
  __device__ float operator()(float y, float dy) const { return y > 0 ? dy : 0; }
};
struct GeluBackward {
  __device__ float operator()(float x, float dy) const {
    const float below = 0.5F * erfcf(-x * kRootHalf);
    return dy * (below + x * (expf(-0.5F * x * x) * kDensity));
  }
};
struct SigmoidBackward {
  __device__ float operator()(float y, float dy) const { return dy * y * (1 - y); }
};
struct TanhBackward {
  __device__ float operator()(float y, float dy) const { return dy * (1 - y * y); }
};

// The approximation of the normal distribution function by tanh, as a sigmoid.
constexpr float kTwiceRoot = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;
__device__ inline float SigmoidOf(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ inline float ApproximatelyBelow(float x) {
  return SigmoidOf(kTwiceRoot * x * (1.0F + kCubic * x * x));
}
struct ApproximateGelu {
  __device__ float operator()(float x, float) const { return x * ApproximatelyBelow(x); }
};
struct ApproximateGeluBackward {
  __device__ float operator()(float x, float dy) const {
    const float below = ApproximatelyBelow(x);
    const float slope = kTwiceRoot * (1.0F + 3.0F * kCubic * x * x);
    return dy * (below + x * below * (1.0F - below) * slope);
  }
};

__device__ inline float ClampToSix(float x) { return x < 0 ? 0 : x > 6 ? 6 : x; }
struct Relu6 {
  __device__ float operator()(float x, float) const { return ClampToSix(x); }
};
struct Relu6Backward {
  __device__ float operator()(float y, float dy) const { return y > 0 && y < 6 ? dy : 0; }
};
struct HardSigmoid {
  __device__ float operator()(float x, float) const { return ClampToSix(x + 3.0F) / 6.0F; }
};
struct HardSigmoidBackward {
  __device__ float operator()(float y, float dy) const { return y > 0 && y < 1 ? dy / 6.0F : 0; }
};
struct HardSwish {
  __device__ float operator()(float x, float) const {
    return x < -3.0F ? 0.0F : x * (ClampToSix(x + 3.0F) / 6.0F);
  }
};
struct HardSwishBackward {
  __device__ float operator()(float x, float dy) const {
    return x <= -3.0F ? 0.0F : x < 3.0F ? dy * (x / 3.0F + 0.5F) : dy;
  }
};
struct Silu {
  __device__ float operator()(float x, float) const { return x * SigmoidOf(x); }
};
struct SiluBackward {
  __device__ float operator()(float x, float dy) const {
    const float sigmoid = SigmoidOf(x);
    return dy * sigmoid * (1.0F + x * (1.0F - sigmoid));
  }
};

template <typename T>
__global__ void __launch_bounds__(256)
    MultiplyRows(int64_t sample, int64_t channels, int64_t elements, const T* __restrict__ x,
                 const T* __restrict__ factor, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    const int64_t at = i / sample * channels + i % channels;
    FromFloat(ToFloat(x[i]) * ToFloat(factor[at]), y + i);
  }
}

// One thread sums the rows of one channel of one sample, so that the order of sums is fixed.
template <typename T>
__global__ void __launch_bounds__(256)
    MultiplyGradient(int64_t rows, int64_t channels, int64_t factors, const T* __restrict__ x,
                     const T* __restrict__ dy, T* __restrict__ dfactor) {
  for (int64_t i = ThreadIndex(); i < factors; i += ThreadCount()) {
    const int64_t first = i / channels * rows * channels + i % channels;
    float sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      sum += ToFloat(x[first + r * channels]) * ToFloat(dy[first + r * channels]);
    }
    FromFloat(sum, dfactor + i);
  }
}

// The gates of cell i of rows of `channels` cells.
template <typename T>
struct CellGates {
  __device__ CellGates(T* all, int64_t i, int64_t channels) {
    int64_t channel;
    const int64_t row = Divide(i, channels, &channel);
    input = all + 4 * row * channels + channel;
    forget = input + channels;
    candidate = forget + channels;
    output = candidate + channels;
  }

  T *input, *forget, *candidate, *output;
};

// `recurrent` and `previous` are null in the first step.
template <typename T>
__global__ void __launch_bounds__(256)
    LstmCells(int64_t cells, int64_t channels, const T* __restrict__ recurrent,
              const float* __restrict__ previous, T* __restrict__ gates, float* __restrict__ cell,
              T* __restrict__ y) {
  for (int64_t at = ThreadIndex(); at < cells; at += ThreadCount()) {
    const CellGates<T> to(gates, at, channels);
    float i = ToFloat(*to.input), f = ToFloat(*to.forget);
    float g = ToFloat(*to.candidate), o = ToFloat(*to.output);
    if (recurrent != nullptr) {
      const CellGates<const T> added(recurrent, at, channels);
      i += ToFloat(*added.input);
      f += ToFloat(*added.forget);
      g += ToFloat(*added.candidate);
      o += ToFloat(*added.output);
    }
    i = SigmoidOf(i);
    f = SigmoidOf(f);
    g = tanhf(g);
    o = SigmoidOf(o);
    const float value = i * g + (previous == nullptr ? 0.0F : f * previous[at]);
    FromFloat(i, to.input);
    FromFloat(f, to.forget);
    FromFloat(g, to.candidate);
    FromFloat(o, to.output);
    cell[at] = value;
    FromFloat(o * tanhf(value), y + at);
  }
}

template <typename T>
__global__ void __launch_bounds__(256)
    LstmCellsBackward(int64_t cells, int64_t channels, const T* __restrict__ dy,
                      const float* __restrict__ previous, const float* __restrict__ cell,
                      T* __restrict__ gates, float* __restrict__ dcell) {
  for (int64_t at = ThreadIndex(); at < cells; at += ThreadCount()) {
    const CellGates<T> of(gates, at, channels);
    const float i = ToFloat(*of.input), f = ToFloat(*of.forget);
    const float g = ToFloat(*of.candidate), o = ToFloat(*of.output);
    const float t = tanhf(cell[at]), d = ToFloat(dy[at]);
    const float dc = dcell[at] + d * o * (1 - t * t);
    const float before = previous == nullptr ? 0.0F : previous[at];
    FromFloat(dc * g * i * (1 - i), of.input);
    FromFloat(dc * before * f * (1 - f), of.forget);
    FromFloat(dc * i * (1 - g * g), of.candidate);
    FromFloat(d * t * o * (1 - o), of.output);
    dcell[at] = dc * f;
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    RowSoftmax(int64_t rows, int64_t channels, float scale, const float* __restrict__ x,
               T* __restrict__ y) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const float* const from = x + row * channels;
    float largest = -INFINITY;
    for (int64_t c = lane; c < channels; c += 32) largest = Larger()(largest, from[c]);
    largest = OverWarp(largest, Larger());
    float total = 0;
    for (int64_t c = lane; c < channels; c += 32) total += expf(scale * (from[c] - largest));
    total = OverWarp(total, Plus());
    for (int64_t c = lane; c < channels; c += 32) {
      FromFloat(expf(scale * (from[c] - largest)) / total, y + row * channels + c);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    RowSoftmaxBackward(int64_t rows, int64_t channels, float scale, const T* __restrict__ y,
                       const float* __restrict__ dy, T* __restrict__ dx) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const int64_t first = row * channels;
    float weighted = 0;
    for (int64_t c = lane; c < channels; c += 32) weighted += ToFloat(y[first + c]) * dy[first + c];
    weighted = OverWarp(weighted, Plus());
    for (int64_t c = lane; c < channels; c += 32) {
      FromFloat(scale * ToFloat(y[first + c]) * (dy[first + c] - weighted), dx + first + c);
    }
  }
}

// Sets the position that Drop reads. The value travels with the launch, so no host memory must stay
// unchanged.
__global__ void StorePosition(int64_t position, CudaNumbers* numbers) {
  numbers->position = position;
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// The mixing function of RandomSequence (base/random.h), which device code cannot call. Tests
// compare the two.
__host__ __device__ inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Decides which elements are dropped.
struct DropRule {
  uint64_t key = 0;
  // An element is kept if its 24 random bits are at least this.
  uint32_t threshold = 0;
  float scale = 1;

  __device__ float operator()(uint64_t number, float x) const {
    const uint32_t bits = Mix(key + kGolden * (number + 1));
    return (bits >> 8) >= threshold ? x * scale : 0;
  }
};

DropRule DropRuleOf(const DropoutKey& key) {
  const auto stream = static_cast<uint64_t>(RandomStream::kDropout);
  // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is the
  // same as comparing the fractions.
  return {.key = Mix(Mix(key.seed + kGolden * (stream + 1)) + kGolden * (key.layer + 1)),
          .threshold = static_cast<uint32_t>(std::ceil(key.rate * 16777216.0F)),
          .scale = 1.0F / (1.0F - key.rate)};
}

// Element i of the walk has number *position * sample_elements + first + its index in the walk's
// buffer b; a null position counts as 0. Buffer a is x and y, which may be the same.
template <typename T, int N>
__global__ void __launch_bounds__(256)
    Drop(DropRule rule, Nest nest, uint64_t first, const int64_t* position, int64_t sample_elements,
         const T* x, T* y) {
  if (position != nullptr) first += *position * sample_elements;
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t at;
    int64_t number;
    Locate(nest, i, &at, &number);
    float values[N];
    LoadGroup(x + at, values);
    for (int k = 0; k < N; ++k) {
      values[k] = rule(first + number + k, values[k]);
    }
    StoreGroup(values, y + at);
  }
}

// y[rows, 1 + sampled].
template <typename T>
__global__ void __launch_bounds__(256)
    ScoreSamples(int64_t n, int64_t sampled, const float* __restrict__ ids,
                 const float* __restrict__ offsets, const float* __restrict__ label_scores,
                 const float* __restrict__ scores, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t column;
    const int64_t row = Divide(i, 1 + sampled, &column);
    const int64_t label = sampled + row, c = column - 1;
    float score = kNoScore;
    if (column == 0) {
      score = label_scores[row] + offsets[label];
    } else if (ids[c] != ids[label]) {
      score = scores[row * sampled + c] + offsets[c];
    }
    FromFloat(score, y + i);
  }
}

class CudaPointwise final : public PointwiseKernels {
 public:
  explicit CudaPointwise(CudaContext& cuda) : cuda_(cuda) {}

  void ActivationForward(Activation kind, ConstValues x, Values y) override {
    CheckSize("y", y.size(), std::ssize(x));
    const ConstValues none(nullptr, 0, x.type());
    switch (kind) {
      case Activation::kRelu:
        return Apply("activation", Relu(), x, none, y);
      case Activation::kGelu:
        return Apply("activation", Gelu(), x, none, y);
      case Activation::kSigmoid:
        return Apply("activation", Sigmoid(), x, none, y);
      case Activation::kTanh:
        return Apply("activation", Tanh(), x, none, y);
      case Activation::kApproximateGelu:
        return Apply("activation", ApproximateGelu(), x, none, y);
      case Activation::kRelu6:
        return Apply("activation", Relu6(), x, none, y);
      case Activation::kHardSwish:
        return Apply("activation", HardSwish(), x, none, y);
      case Activation::kHardSigmoid:
        return Apply("activation", HardSigmoid(), x, none, y);
      case Activation::kSilu:
        return Apply("activation", Silu(), x, none, y);
    }
  }

  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override {
    CheckSizes(std::ssize(seen), {{"dy", dy.size()}, {"dx", dx.size()}});
    constexpr const char* kName = "activation gradient";
    switch (kind) {
      case Activation::kRelu:
        return Apply(kName, ReluBackward(), seen, dy, dx);
      case Activation::kGelu:
        return Apply(kName, GeluBackward(), seen, dy, dx);
      case Activation::kSigmoid:
        return Apply(kName, SigmoidBackward(), seen, dy, dx);
      case Activation::kTanh:
        return Apply(kName, TanhBackward(), seen, dy, dx);
      case Activation::kApproximateGelu:
        return Apply(kName, ApproximateGeluBackward(), seen, dy, dx);
      case Activation::kRelu6:
        return Apply(kName, Relu6Backward(), seen, dy, dx);
      case Activation::kHardSwish:
        return Apply(kName, HardSwishBackward(), seen, dy, dx);
      case Activation::kHardSigmoid:
        return Apply(kName, HardSigmoidBackward(), seen, dy, dx);
      case Activation::kSilu:
        return Apply(kName, SiluBackward(), seen, dy, dx);
    }
  }

  void SetPosition(int64_t first_position) override {
    CHECK(!cuda_.device.capturing()) << "the captured graph would keep this position";
    Launch(cuda_.device, "position", StorePosition, LaunchShape{}, first_position,
           cuda_.numbers.data());
  }

  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override {
    CheckSize("y", y.size(), std::ssize(x));
    if (y.empty()) return;
    DropAlong({.loops = {{std::ssize(x), 1, 1}}}, key, first, /*position=*/nullptr,
              /*sample_elements=*/0, x, y);
  }

  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) override {
    CheckSizes(box.shape().elements(), {{"x", x.size()}, {"y", y.size()}});
    if (y.empty()) return;
    // An element's number is its position in the whole batch plus the elements of all samples
    // before the batch.
    const Box all = Box::Whole(whole);
    NestLoops walk = WalkOf(box, all, box);
    const int64_t first = std::exchange(walk.b_begin, 0);
    DropAlong(walk, key, first,
              cuda_.numbers.data() == nullptr ? nullptr : &cuda_.numbers.data()->position,
              StepsOf(all)[0], x, y);
  }

  void Sum(ConstValues a, ConstValues b, Values y) override {
    CheckSizes(std::ssize(a), {{"y", y.size()}, {"b", b.size()}});
    Apply("add", kSum, a, b, y);
  }

  void Multiply(const MultiplyDims& dims, ConstValues x, ConstValues factor, Values y) override {
    CheckMultiply(dims, x.size(), factor.size(), y.size());
    if (y.empty()) return;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t elements = std::ssize(x);
      Launch(cuda_.device, "multiply", MultiplyRows<T>, Strided(cuda_.device, elements),
             dims.rows * dims.channels, dims.channels, elements, Data<T>(x), Data<T>(factor),
             Data<T>(y));
    });
  }

  void MultiplyBackward(const MultiplyDims& dims, ConstValues x, ConstValues dy,
                        Values dfactor) override {
    CheckMultiply(dims, x.size(), dfactor.size(), dy.size());
    if (dfactor.empty()) return;
    ByType(dfactor.type(), [&](auto zero) {
      using T = decltype(zero);
      const int64_t factors = dims.batch * dims.channels;
      Launch(cuda_.device, "gradient of a factor", MultiplyGradient<T>,
             Strided(cuda_.device, factors), dims.rows, dims.channels, factors, Data<T>(x),
             Data<T>(dy), Data<T>(dfactor));
    });
  }

  void LstmForward(const RowsDims& dims, ConstValues recurrent, ConstFloatSpan previous,
                   Values gates, FloatSpan cell, Values y) override {
    CheckLstm(dims, previous.size(), gates.size(), {cell.size(), y.size()});
    CheckSize("recurrent", recurrent.size(), 4 * std::ssize(previous));
    if (y.empty()) return;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "step of an LSTM", LstmCells<T>, Strided(cuda_.device, std::ssize(y)),
             std::ssize(y), dims.channels, recurrent.empty() ? nullptr : Data<T>(recurrent),
             previous.empty() ? nullptr : previous.data(), Data<T>(gates), cell.data(), Data<T>(y));
    });
  }

  void LstmBackward(const RowsDims& dims, ConstValues dy, ConstFloatSpan previous,
                    ConstFloatSpan cell, Values gates, FloatSpan dcell) override {
    CheckLstm(dims, previous.size(), gates.size(), {dy.size(), cell.size(), dcell.size()});
    if (dy.empty()) return;
    ByType(dy.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "gradient of a step of an LSTM", LstmCellsBackward<T>,
             Strided(cuda_.device, std::ssize(dy)), std::ssize(dy), dims.channels, Data<T>(dy),
             previous.empty() ? nullptr : previous.data(), cell.data(), Data<T>(gates),
             dcell.data());
    });
  }

  void SoftmaxForward(const RowsDims& dims, float scale, ConstFloatSpan x, Values y) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}});
    if (y.empty()) return;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax", RowSoftmax<T>, WarpPerRow(cuda_.device, dims.rows), dims.rows,
             dims.channels, scale, x.data(), Data<T>(y));
    });
  }

  void SoftmaxBackward(const RowsDims& dims, float scale, ConstValues y, ConstFloatSpan dy,
                       Values dx) override {
    CheckSizes(SizeOf(dims), {{"y", y.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    if (dx.empty()) return;
    ByType(dx.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax gradient", RowSoftmaxBackward<T>,
             WarpPerRow(cuda_.device, dims.rows), dims.rows, dims.channels, scale, Data<T>(y),
             dy.data(), Data<T>(dx));
    });
  }

  void SampledScores(const RowsDims& dims, ConstFloatSpan ids, ConstFloatSpan offsets,
                     ConstFloatSpan label_scores, ConstFloatSpan scores, Values y) override {
    CheckSampledScores(dims, ids.size(), offsets.size(), label_scores.size(), scores.size(),
                       y.size());
    if (y.empty()) return;
    const int64_t n = y.size();
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "scores of sampled classes", ScoreSamples<T>, Strided(cuda_.device, n),
             n, dims.channels, ids.data(), offsets.data(), label_scores.data(), scores.data(),
             Data<T>(y));
    });
  }

  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override {
    if (cuda_.results.data() == nullptr) return {};
    double* const sums = cuda_.results.data()->sums;
    SoftmaxCrossEntropyAsync(rows, classes, smoothing, x, labels, scale, dx, {sums, 2});
    double result[2] = {};
    cuda_.device.CopyOut(sums, result, sizeof(result)).IgnoreError();  // status() has it
    return {.loss = result[0], .correct = std::llround(result[1])};
  }

  void SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) override {
    CudaSoftmaxCrossEntropy(cuda_, rows, classes, smoothing, x, labels, scale, dx, sums);
  }

 private:
  // y = f(a, b), with an empty b for functions of one argument.
  template <typename F>
  void Apply(const char* name, const F& f, ConstValues a, ConstValues b, Values y) {
    if (y.empty()) return;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      LaunchMap(cuda_.device, name, f, y.size(), Data<T>(a), Data<T>(b), Data<T>(y));
    });
  }

  void DropAlong(const NestLoops& loops, const DropoutKey& key, uint64_t first,
                 const int64_t* position, int64_t sample_elements, ConstValues x, Values y) {
    const Nest nest = MakeNest(loops);
    const auto launch = [&](const Nest& walk, auto zero, auto kernel) {
      using T = decltype(zero);
      Launch(cuda_.device, "dropout", kernel, Strided(cuda_.device, walk.elements), DropRuleOf(key),
             walk, first, position, sample_elements, Data<T>(x), Data<T>(y));
    };
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      if (Aligned({x.data(), y.data()}) && CanGroup(nest, kWide<T>, /*check_b=*/false)) {
        launch(Grouped(nest, kWide<T>), zero, Drop<T, kWide<T>>);
      } else {
        launch(nest, zero, Drop<T, 1>);
      }
    });
  }

  CudaContext& cuda_;
};

}  // namespace

std::unique_ptr<PointwiseKernels> MakeCudaPointwise(CudaContext& cuda) {
  return std::make_unique<CudaPointwise>(cuda);
}

}  // namespace cadre
