// Convolutions by the fastest of several algorithms. The choice depends on the extents
// and the processor's instruction set, never on a measurement at run time, so that the same layer
// has the same bits on every rank and in every run:
//
//   1 x 1 kernels, stride 1    a matrix product over positions
//   backward of data           a forward convolution of dy with flipped weights, where oneDNN's
//                              forward is faster than its backward (stride 1)
//   backward of weights        weight_gradient.h, or oneDNN in its blocked layout
//   everything else            oneDNN's direct algorithm
//
// With bf16 images matrix products compute 1 x 1 kernels with many weights, the gradients of the
// weights of all 1 x 1 kernels with stride 1, and those with few output positions, whose inputs are
// gathered first. oneDNN's bf16 kernels reach the rates of the other forms over channels last, and
// these exist for fp32 only.
//
// oneDNN rejects some extents: tensors without elements and windows entirely in the padding run on
// the reference loops, and inputs that no window reaches are cut off first (ReachedPart).
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/convolution_primitives.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/lru_cache.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/pooling.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/cpu/weight_gradient.h"
#include "kernels/extents.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// The choice of an algorithm. The rules come from measurements of every layer of AlexNet, VGG-11,
// ResNet-18 and ResNet-50 on a core with AVX-512 (bench_engine --profile --layers repeats them);
// rates below are shares of such a core's peak.

enum class BackwardDataRoute {
  // oneDNN over channels last: with strides or groups, and 1 x 1 kernels for bf16.
  kPrimitive,
  // The forward convolution of dy: with stride 1, for which it is a tenth to a half faster (for
  // bf16
  // up to a seventh).
  kForward,
  // A matrix product over positions: 1 x 1 kernels for fp32.
  kMatrix,
};

enum class BackwardWeightsRoute {
  // oneDNN: with groups, with few taps of one channel, without AVX-512, and for bf16 with many
  // positions. Over blocks of 16 channels, with conversions, or channels last for bf16.
  kPrimitive,
  // WeightGradient: 75 %, compared with 40 to 70 % of oneDNN over channels last.
  kOuterProducts,
  // A matrix product over positions: 1 x 1 kernels.
  kMatrix,
  // The same with the inputs of each output position, which are gathered: bf16 with few positions.
  // oneDNN adds to all gradients once for each image.
  kGathered,
};

// At each position, y is x times a matrix.
bool IsMatrix(const ConvolutionDims& d) {
  const WindowDims& w = d.window;
  return d.groups == 1 && w.kernel_height == 1 && w.kernel_width == 1 && w.stride_height == 1 &&
         w.stride_width == 1 && w.pad_top == 0 && w.pad_left == 0 && w.in_height == w.out_height &&
         w.in_width == w.out_width;
}

// Whether a bf16 convolution is a product with the bf16 copy of its weights: with many weights, a
// tenth of the time of a pass is oneDNN's conversion of their layout.
bool TakesCopiedWeights(const ConvolutionDims& dims, DType type) {
  constexpr int64_t kManyWeights = 1 << 18;
  return type == DType::kBFloat16 && IsMatrix(dims) &&
         dims.in_channels * dims.out_channels >= kManyWeights;
}

// Whether an fp32 convolution is a matrix product forward: with more output than input channels
// oneDNN reaches only 65 %, compared with 80 to 90 % nearly everywhere else.
bool ForwardIsMatrix(const ConvolutionDims& dims, DType type, bool with_bias) {
  // From this many input channels on, oneDNN splits the sum over them.
  constexpr int64_t kManyChannels = 2048;
  const bool widens = dims.out_channels > dims.in_channels || dims.in_channels >= kManyChannels;
  return type == DType::kFloat32 && IsMatrix(dims) && widens && !with_bias;
}

BackwardDataRoute BackwardDataRouteOf(const ConvolutionDims& dims, DType type) {
  if (IsMatrix(dims)) {
    return type == DType::kBFloat16 ? BackwardDataRoute::kPrimitive : BackwardDataRoute::kMatrix;
  }
  return dims.groups == 1 && dims.window.stride_height == 1 && dims.window.stride_width == 1
             ? BackwardDataRoute::kForward
             : BackwardDataRoute::kPrimitive;
}

int64_t Taps(const ConvolutionDims& d) { return d.window.kernel_height * d.window.kernel_width; }

int64_t OutPositions(const ConvolutionDims& d) {
  return d.batch * d.window.out_height * d.window.out_width;
}

// Whether gathering costs little compared with the product, and memory in proportion.
bool TakesGathered(const ConvolutionDims& d) {
  constexpr int64_t kMaxPositions = 64;  // of an image
  constexpr int64_t kMinChannels = 128;
  constexpr int64_t kMaxGathered = 1 << 24;
  return d.groups == 1 && d.window.out_height * d.window.out_width <= kMaxPositions &&
         std::min(d.in_channels, d.out_channels) >= kMinChannels &&
         OutPositions(d) * Taps(d) * d.in_channels <= kMaxGathered;
}

BackwardWeightsRoute BackwardWeightsRouteOf(const ConvolutionDims& dims, DType type) {
  if (IsMatrix(dims)) return BackwardWeightsRoute::kMatrix;
  if (type == DType::kBFloat16) {
    return TakesGathered(dims) ? BackwardWeightsRoute::kGathered : BackwardWeightsRoute::kPrimitive;
  }
  // Fewer columns than this leave most of WeightGradient's registers empty.
  constexpr int64_t kMinColumns = 16;
  const int64_t columns = dims.in_channels * dims.window.kernel_height * dims.window.kernel_width;
  return columns >= kMinColumns && WeightGradient::Takes(dims)
             ? BackwardWeightsRoute::kOuterProducts
             : BackwardWeightsRoute::kPrimitive;
}

// The library adds products of more terms to memory in several parts, with other bits than one
// addition of the whole product.
constexpr int64_t kMaxUndividedTerms = 256;

CADRE_VECTOR_LOOP void AddProduct(int64_t n, const float* __restrict product,
                                  float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += product[i];
}

// Tensors without elements, and windows that may lie wholly in the padding. Both are rare and
// small, so the reference loops compute them.
bool TakesReference(const ConvolutionDims& dims) {
  const LayerSizes sizes = SizesOf(dims);
  if (sizes.x == 0 || sizes.y == 0) return true;
  const WindowDims& w = dims.window;
  const WindowPadding padding = PaddingOf(w);
  const int64_t height = w.dilation * (w.kernel_height - 1) + 1;
  const int64_t width = w.dilation * (w.kernel_width - 1) + 1;
  return std::max(padding.top, padding.bottom) >= height ||
         std::max(padding.left, padding.right) >= width;
}

// gathered[output][tap][channel] = the inputs of output positions of rows [begin, end), counted
// over all images; zeros in the padding.
void GatherInputs(const ConvolutionDims& d, int64_t begin, int64_t end, const Bf16* x,
                  Bf16* gathered) {
  const WindowDims& w = d.window;
  const int64_t n = d.in_channels;
  Bf16* to = gathered + begin * w.out_width * Taps(d) * n;
  for (int64_t row = begin; row < end; ++row) {
    const Bf16* const image = x + row / w.out_height * w.in_height * w.in_width * n;
    const int64_t top = row % w.out_height * w.stride_height - w.pad_top;
    for (int64_t ow = 0; ow < w.out_width; ++ow) {
      const int64_t left = ow * w.stride_width - w.pad_left;
      for (int64_t i = 0; i < w.kernel_height; ++i) {
        const int64_t h = top + i * w.dilation;
        for (int64_t j = 0; j < w.kernel_width; ++j, to += n) {
          const int64_t column = left + j * w.dilation;
          if (h >= 0 && h < w.in_height && column >= 0 && column < w.in_width) {
            std::copy_n(image + (h * w.in_width + column) * n, n, to);
          } else {
            std::fill_n(to, n, Bf16());
          }
        }
      }
    }
  }
}

// flipped[channel pair][taps] = w[channel pair][taps, last first].
void FlipTaps(int threads, int64_t taps, ConstFloatSpan w, float* flipped) {
  const int64_t pairs = std::ssize(w) / taps;
  ForParts(threads, pairs, taps, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::reverse_copy(w.data() + i * taps, w.data() + (i + 1) * taps, flipped + i * taps);
    }
  });
}

// A part of an image of any type.
class Part {
 public:
  Part(int64_t size, DType type)
      : bytes_(size * SizeOf(type)), values_(bytes_.data(), size, type) {}
  Values values() const { return values_; }

 private:
  std::vector<std::byte> bytes_;
  const Values values_;
};

class CpuWindow : public CpuPooling {
 public:
  explicit CpuWindow(CpuContext& cpu) : CpuPooling(cpu.threads), cpu_(cpu) {}

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstFloatSpan w,
                          ConstFloatSpan b, Values y) {
    if (TakesReference(dims)) {
      std::vector<float> sums(y.size());
      Reference().ConvolutionForward(dims, Floats(x), Floats(cpu_.WeightsAs(x.type(), w)), b, sums);
      return cpu_.reference->memory().Copy(sums, y);
    }
    if (const ConvolutionDims reached = ReachedPart(dims); reached != dims) {
      Part part(SizesOf(reached).x, x.type());
      CutOut(dims, reached, x, part.values());
      ConvolutionForward(reached, part.values(), w, b, y);
      return;
    }
    const ScopedThreads threads(cpu_.threads);
    if (ForwardIsMatrix(dims, x.type(), !b.empty())) {
      const int64_t in = dims.in_channels, out = dims.out_channels;
      MatrixProduct(OutPositions(dims), out, in, 1, {Data<float>(x), in}, {w.data(), in, true},
                    Data<float>(y), out);
      return;
    }
    if (TakesCopiedWeights(dims, x.type())) {
      const Bf16ProductDims product{.m = OutPositions(dims),
                                    .n = dims.out_channels,
                                    .k = dims.in_channels,
                                    .transpose_b = true,
                                    .with_bias = !b.empty(),
                                    .c = y.type()};
      return cpu_.Bf16Product(product, x, cpu_.WeightsAs(x.type(), w), b, y);
    }
    const ConvolutionKey key{dims, x.type(), !b.empty()};
    PrimitiveRun& run = forward_.GetOrMake(
        key, [&] { return MakeConvolutionForward(dims, key.type, key.with_bias, cpu_.engine); });
    const std::array<const void*, 3> inputs{x.data(), w.data(), b.data()};
    OrDie("convolution forward", [&] {
      run.Run(cpu_.stream, cpu_.workspace, std::span(inputs).first(b.empty() ? 2 : 3),
              std::array{y.data()});
    });
  }

  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan w,
                               Values dx) {
    if (TakesReference(dims)) {
      std::vector<float> sums(dx.size());
      Reference().ConvolutionBackwardData(dims, Floats(dy), Floats(cpu_.WeightsAs(dy.type(), w)),
                                          sums);
      return cpu_.reference->memory().Copy(sums, dx);
    }
    if (const ConvolutionDims reached = ReachedPart(dims); reached != dims) {
      Part part(SizesOf(reached).x, dy.type());
      ConvolutionBackwardData(reached, dy, w, part.values());
      PutBack(dims, reached, part.values(), dx);
      return;
    }
    const ScopedThreads threads(cpu_.threads);
    if (TakesCopiedWeights(dims, dy.type())) {
      const Bf16ProductDims product{
          .m = OutPositions(dims), .n = dims.in_channels, .k = dims.out_channels, .c = dx.type()};
      return cpu_.Bf16Product(product, dy, cpu_.WeightsAs(dy.type(), w), {}, dx);
    }
    const BackwardDataRoute route = BackwardDataRouteOf(dims, dy.type());
    const float* weights = w.data();
    if (route == BackwardDataRoute::kMatrix) {
      const int64_t in = dims.in_channels, out = dims.out_channels;
      MatrixProduct(OutPositions(dims), in, out, 1, {Data<float>(dy), out}, {weights, in},
                    Data<float>(dx), in);
      return;
    }
    if (route == BackwardDataRoute::kForward) {
      float* flipped = cpu_.workspace.Floats(CpuContext::kOwnSlot, w.size());
      FlipTaps(cpu_.threads, dims.window.kernel_height * dims.window.kernel_width, w, flipped);
      weights = flipped;
    }
    const ConvolutionKey key{dims, dy.type()};
    PrimitiveRun& run = backward_data_.GetOrMake(key, [&] {
      return route == BackwardDataRoute::kForward
                 ? MakeConvolutionBackwardDataByForward(dims, key.type, cpu_.engine)
                 : MakeConvolutionBackwardData(dims, key.type, cpu_.engine);
    });
    const std::array<const void*, 2> inputs{dy.data(), weights};
    OrDie("convolution backward data",
          [&] { run.Run(cpu_.stream, cpu_.workspace, inputs, std::array{dx.data()}); });
  }

  void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstFloatSpan dy, ConstFloatSpan w,
                                  FloatSpan dx) {
    CHECK(IsMatrix(dims));
    const ScopedThreads threads(cpu_.threads);
    const int64_t in = dims.in_channels, out = dims.out_channels, positions = OutPositions(dims);
    if (out <= kMaxUndividedTerms) {
      return AddMatrixProduct(positions, in, out, 1, {dy.data(), out}, {w.data(), in}, dx.data(),
                              in);
    }
    // Blocks of rows that stay in the cache until they are added, if blocks have the same bits.
    constexpr int64_t kBlock = 1 << 16;
    const int64_t rows = PartsHaveBitsOfWhole(out)
                             ? std::max<int64_t>(1, kBlock / std::max<int64_t>(1, in))
                             : positions;
    float* const product = cpu_.workspace.Floats(CpuContext::kOwnSlot, rows * in);
    for (int64_t begin = 0; begin < positions; begin += rows) {
      const int64_t count = std::min(rows, positions - begin);
      float* const to = dx.data() + begin * in;
      MatrixProduct(count, in, out, 1, {dy.data() + begin * out, out}, {w.data(), in}, product, in);
      ForParts(cpu_.threads, count * in, [=](int64_t first, int64_t last) {
        AddProduct(last - first, product + first, to + first);
      });
    }
  }

  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) {
    if (TakesReference(dims)) {
      Reference().ConvolutionBackwardWeights(dims, Floats(x), Floats(dy), dw, db);
      return;
    }
    if (const ConvolutionDims reached = ReachedPart(dims); reached != dims) {
      Part part(SizesOf(reached).x, x.type());
      CutOut(dims, reached, x, part.values());
      ConvolutionBackwardWeights(reached, part.values(), dy, dw, db);
      return;
    }
    const ScopedThreads threads(cpu_.threads);
    const BackwardWeightsRoute route = BackwardWeightsRouteOf(dims, x.type());
    if (route == BackwardWeightsRoute::kMatrix) return MatrixBackwardWeights(dims, x, dy, dw, db);
    if (route == BackwardWeightsRoute::kGathered) {
      return GatheredBackwardWeights(dims, x, dy, dw, db);
    }
    if (route == BackwardWeightsRoute::kOuterProducts) {
      WeightGradient(dims).Run(cpu_.threads, cpu_.workspace, x.floats(), dy.floats(), dw, db);
      return;
    }
    const ConvolutionKey key{dims, x.type(), !db.empty()};
    PrimitiveRun& run = backward_weights_.GetOrMake(key, [&] {
      return MakeConvolutionBackwardWeights(dims, key.type, key.with_bias, cpu_.engine);
    });
    const std::array<const void*, 2> inputs{x.data(), dy.data()};
    const std::array<void*, 2> outputs{dw.data(), db.data()};
    OrDie("convolution backward weights", [&] {
      run.Run(cpu_.stream, cpu_.workspace, inputs, std::span(outputs).first(db.empty() ? 1 : 2));
    });
  }

 private:
  struct ConvolutionKey {
    ConvolutionDims dims;
    DType type = DType::kFloat32;
    bool with_bias = false;
    friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
  };
  using Primitives = LruCache<ConvolutionKey, PrimitiveRun>;

  WindowKernels& Reference() { return cpu_.reference->window(); }

  // An fp32 copy.
  std::vector<float> Floats(ConstValues x) {
    std::vector<float> copy(x.size());
    cpu_.reference->memory().Copy(x, copy);
    return copy;
  }

  void MatrixBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                             FloatSpan dw, FloatSpan db) {
    const int64_t in = dims.in_channels, out = dims.out_channels, positions = OutPositions(dims);
    if (x.type() == DType::kBFloat16) {
      cpu_.Bf16Product({.m = out, .n = in, .k = positions, .transpose_a = true}, dy, x, {}, dw);
    } else {
      MatrixProduct(out, in, positions, 1, {Data<float>(dy), out, true}, {Data<float>(x), in},
                    dw.data(), in);
    }
    if (!db.empty()) ColumnSums(cpu_.threads, positions, out, dy, db);
  }

  void GatheredBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                               FloatSpan dw, FloatSpan db) {
    const int64_t in = dims.in_channels, taps = Taps(dims), positions = OutPositions(dims);
    const int64_t size = positions * taps * in;
    Bf16* const gathered = cpu_.workspace.Array<Bf16>(CpuContext::kOwnSlot, size);
    const int64_t rows = dims.batch * dims.window.out_height;
    ForParts(cpu_.threads, rows, size / rows, [&](int64_t begin, int64_t end) {
      GatherInputs(dims, begin, end, Data<Bf16>(x), gathered);
    });
    const FloatSpan sums =
        taps == 1 ? dw
                  : FloatSpan(cpu_.workspace.Floats(CpuContext::kSumsSlot, dw.size()), dw.size());
    cpu_.Bf16Product({.m = dims.out_channels, .n = taps * in, .k = positions, .transpose_a = true},
                     dy, Values(gathered, size, DType::kBFloat16), {}, sums);
    if (taps > 1) cpu_.Transpose(dims.out_channels, taps, in, sums, dw);
    if (!db.empty()) ColumnSums(cpu_.threads, positions, dims.out_channels, dy, db);
  }

  Primitives forward_{CpuContext::kCachedExtents};
  Primitives backward_data_{CpuContext::kCachedExtents};
  Primitives backward_weights_{CpuContext::kCachedExtents};
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<WindowKernels> MakeCpuWindow(CpuContext& cpu) {
  return std::make_unique<HostWindow<SpanCaller<CpuWindow>>>(cpu);
}

}  // namespace cadre
