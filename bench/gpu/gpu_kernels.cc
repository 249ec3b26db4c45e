// Speed of the kernels of the CUDA back end relative to the ceilings of the GPU, measured in the
// same run. Prints JSON lines on stdout: first the device with the ceilings (the rates of a copy
// within the device and of matrix products in bf16 and TF32), then each kernel, as soon as it is
// measured, with its rate and its share of its ceiling (bench/gpu/kernel_bench.h). Our own kernels
// come first, because a kernel that fails ends the program.
//
//   bench_gpu_kernels                        all kernels
//   bench_gpu_kernels --only update,softmax  kernels with one of these words in their names
//
// Exit codes: bench/gpu/gpu_bench.h.
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/gpu/gpu_bench.h"
#include "bench/gpu/kernel_bench.h"
#include "bench/harness.h"
#include "kernels/backend.h"
#include "kernels/codec/codec.h"
#include "kernels/cuda/weight_order.h"
#include "kernels/extents.h"
#include "kernels/optimizer_step.h"

DEFINE_string(device, "cuda", "Device: cuda or cuda:N.");
DEFINE_string(libraries, "", "Folders to search first for cuBLAS and cuDNN, separated by commas.");
DEFINE_string(only, "",
              "Only kernels with one of these words in their names, separated by commas.");
DEFINE_int64(elements, 1 << 26, "Elements of a tensor or slice; should exceed the caches.");
DEFINE_int64(side, 4096, "Side of the matrices whose product is the ceiling of arithmetic.");
DEFINE_int32(rounds, 7, "Measured rounds of each kernel; the median is reported.");
DEFINE_int64(shrink, 1, "Divides all other extents, for tests on an emulated device.");

namespace cadre {
namespace {

// Small tensors would stay in the L2 cache (50 MB on an H100) from one call to the next. Kernels
// alternate between tensors of this many bytes, so that they read them from memory.
constexpr size_t kBeyondCache = size_t{128} << 20;

int64_t Shrunk(int64_t extent) { return std::max<int64_t>(1, extent / FLAGS_shrink); }

double Bytes(const std::vector<ConstValues>& moved) {
  double bytes = 0;
  for (const ConstValues& values : moved) bytes += static_cast<double>(values.bytes());
  return bytes;
}

template <typename T>
double BytesOf(std::span<T> values) {
  return static_cast<double>(values.size_bytes());
}

// Tensors that `make` places in the arena, as often as is necessary to exceed the caches.
template <typename Tensors>
std::vector<Tensors> Copies(KernelBench& bench, const std::function<Tensors()>& make) {
  bench.Clear();
  std::vector<Tensors> copies;
  do {
    copies.push_back(make());
  } while (bench.used() < static_cast<size_t>(Shrunk(kBeyondCache)));
  return copies;
}

// The work of one call, on each of the copies in turn.
template <typename Tensors>
std::function<void()> InTurn(const std::vector<Tensors>& copies,
                             const std::function<void(const Tensors&)>& work) {
  return [&copies, work, next = size_t{0}]() mutable { work(copies[next++ % copies.size()]); };
}

// Copies numbers of the host to the device.
void Fill(KernelBench& bench, const std::vector<float>& host, std::span<float> values) {
  bench.device().CopyIn(host.data(), values.data(), values.size_bytes());
}

// --- kernels whose types do not depend on the precision ------------------------------------------

// Optimizer updates of one slice with two segments, with and without weight decay.
void Updates(KernelBench& bench) {
  SliceKernels& slices = *bench.kernels().slices();
  const int64_t n = FLAGS_elements;
  const std::vector<SliceSegment> segments = {{.begin = 0, .end = n / 2, .decays = true},
                                              {.begin = n / 2, .end = n}};
  const auto table = slices.MakeSegmentTable(segments);
  slices.SetUpdate(1e-3F, 1);
  for (const bool adamw : {false, true}) {
    bench.Clear();
    const std::span<float> g = bench.Floats(n), w = bench.Floats(n), v = bench.Floats(n);
    std::vector<std::span<float>> states = {v};
    if (adamw) states.push_back(bench.Floats(n));
    const std::span<double> loss = bench.Span<double>(1);
    bench.device().Zero(loss.data(), loss.size_bytes());
    OptimizerStep step = SgdStep{.momentum = 0.9F, .weight_decay = 1e-4F};
    if (adamw) step = AdamWStep{.weight_decay = 0.1F};
    // An update reads g, w and the state, and writes w and the state.
    const double bytes = (adamw ? 7 : 5) * BytesOf(g);
    bench.TimeBytes(adamw ? "update adamw" : "update sgd", bytes,
                    [&] { slices.UpdateSlice(step, {.loss = loss.data()}, *table, g, w, states); });
  }
  bench.Clear();
  const std::span<float> x = bench.Floats(n);
  const std::span<double> sum = bench.Span<double>(1);
  bench.TimeBytes("sum of squares", BytesOf(x), [&] { slices.AddSumOfSquares(x, sum.data()); });
}

// Codes of an exchange. Encoding blocks and copies the codes to the host, which its time includes.
void Codecs(KernelBench& bench) {
  CodecKernels& codecs = *bench.kernels().codecs();
  const int64_t n = FLAGS_elements;
  std::vector<CodedUnit> units(n / kCodecBlock, {.size = kCodecBlock});
  for (const auto& [codec, name] :
       {std::pair(Codec{CodecKind::kInt8}, "int8"), std::pair(Codec{CodecKind::kE3m0}, "e3m0"),
        std::pair(Codec{CodecKind::kStat2}, "stat2"),
        std::pair(Codec{CodecKind::kTopK, 64}, "topk")}) {
    bench.Clear();
    const auto coded = codecs.MakeUnits(codec, units);
    const std::span<float> values = bench.Floats(units.size() * kCodecBlock);
    const std::span<float> left_out = bench.Floats(std::ssize(values));
    // Reads the values and writes what is left out; codes are much smaller.
    bench.TimeBytes(absl::StrCat("encode ", name), 2 * BytesOf(values), [&] {
      std::string frame;
      codecs.Encode(*coded, values, left_out, &frame);
    });
  }
  bench.Clear();
  const auto coded = codecs.MakeUnits({CodecKind::kInt8}, units);
  const int64_t size = std::ssize(units) * kCodecBlock;
  const std::span<float> values = bench.Floats(size), version = bench.Floats(size);
  const std::span<float> carried = bench.Floats(size);
  // Carry reads x and writes what it carries. TakeChange reads three tensors and writes one.
  bench.TimeBytes("carry error", 2 * BytesOf(values),
                  [&] { codecs.Carry(*coded, 0.5F, version, carried); });
  bench.TimeBytes("take change", 4 * BytesOf(values),
                  [&] { codecs.TakeChange(*coded, version, carried, values); });
}

// --- our own kernels -----------------------------------------------------------------------------

void Elementwise(KernelBench& bench) {
  PointwiseKernels& pointwise = bench.kernels().pointwise();
  const int64_t n = FLAGS_elements;
  for (const auto& [kind, name] :
       {std::pair(Activation::kRelu, "relu"), std::pair(Activation::kGelu, "gelu")}) {
    bench.Clear();
    const Values x = bench.Tensor(n), y = bench.Tensor(n), dy = bench.Tensor(n);
    const Activation activation = kind;
    bench.TimeBytes(absl::StrCat(name, " forward"), Bytes({x, y}),
                    [&] { pointwise.ActivationForward(activation, x, y); });
    bench.TimeBytes(absl::StrCat(name, " backward"), Bytes({x, dy, y}),
                    [&] { pointwise.ActivationBackward(activation, x, dy, y); });
  }
  bench.Clear();
  const Values x = bench.Tensor(n), y = bench.Tensor(n);
  bench.TimeBytes("add", Bytes({x, y, y}), [&] { pointwise.Add(x, y); });
  bench.TimeBytes("dropout", Bytes({x, y}),
                  [&] { pointwise.Dropout({.seed = 1, .layer = 2, .rate = 0.1F}, 0, x, y); });
  bench.TimeBytes("transpose", Bytes({x, y}),
                  [&] { bench.kernels().memory().Transpose(16, n / 16 / 256, 256, x, y); });
}

// The kernels of batch norm and layer norm, which share their tensors.
void Norms(KernelBench& bench) {
  NormKernels& norm = bench.kernels().norm();
  bench.Clear();
  const RowsDims images{.rows = FLAGS_elements / 256, .channels = 256};
  const int64_t n = images.rows * images.channels, c = images.channels;
  const Values x = bench.Tensor(n), y = bench.Tensor(n), dy = bench.Tensor(n);
  const std::span<float> row_mean = bench.Floats(images.rows);
  const std::span<float> row_inverse = bench.Floats(images.rows);
  const std::span<float> mean = bench.Floats(c), inverse = bench.Floats(c);
  const std::span<float> scale = bench.Floats(c), shift = bench.Floats(c);
  const std::span<float> a = bench.Floats(c), b = bench.Floats(c);
  const std::span<double> sums = bench.Span<double>(2 * c);
  const double bytes = Bytes({x});
  bench.TimeBytes("batch norm sums", bytes, [&] { norm.BatchNormSums(images, x, sums); });
  bench.TimeBytes("batch norm forward", 2 * bytes, [&] {
    norm.BatchNormForward(images, x, mean, inverse, scale, shift, {}, {}, y);
  });
  bench.TimeBytes("batch norm backward sums", 2 * bytes, [&] {
    norm.BatchNormBackwardSums(images, x, dy, {}, {}, mean, inverse, {}, sums, a, b);
  });
  bench.TimeBytes("batch norm backward", 3 * bytes, [&] {
    norm.BatchNormBackward(images, x, dy, {}, mean, inverse, scale, images.rows, sums, y);
  });
  bench.TimeBytes("layer norm forward", 2 * bytes, [&] {
    norm.LayerNormForward(images, 1e-5F, x, scale, shift, y, row_mean, row_inverse);
  });
  bench.TimeBytes("layer norm backward", 3 * bytes, [&] {
    norm.LayerNormBackward(images, x, dy, row_mean, row_inverse, scale, y, a, b);
  });
}

// The tensors of a batch norm with the addition and the ReLU that are fused with it.
struct FusedNorm {
  FusedNorm(KernelBench& bench, const RowsDims& dims)
      : x(bench.Tensor(dims.rows * dims.channels)),
        y(bench.Tensor(x.size())),
        addend(bench.Tensor(x.size())),
        dy(bench.Tensor(x.size())),
        other_dy(bench.Tensor(x.size())),
        dx(bench.Tensor(x.size())),
        positive(bench.Span<int32_t>(PositiveWords(dims))),
        mean(bench.Floats(dims.channels)),
        inverse(bench.Floats(dims.channels)),
        scale(bench.Floats(dims.channels)),
        shift(bench.Floats(dims.channels)),
        dscale(bench.Floats(dims.channels)),
        dshift(bench.Floats(dims.channels)),
        sums(bench.Span<double>(2 * dims.channels)) {}
  Values x, y, addend, dy, other_dy, dx;
  std::span<int32_t> positive;
  std::span<float> mean, inverse, scale, shift, dscale, dshift;
  std::span<double> sums;
};

// The batch norms of ResNet-50: most are fused with a ReLU, the last of each block also with the
// sum of the branches, whose gradient is the sum of two.
void FusedNorms(KernelBench& bench, int64_t batch, int64_t side, int64_t channels) {
  NormKernels& norm = bench.kernels().norm();
  const RowsDims dims{.rows = Shrunk(batch) * Shrunk(side) * Shrunk(side),
                      .channels = Shrunk(channels)};
  const std::vector<FusedNorm> copies =
      Copies<FusedNorm>(bench, [&] { return FusedNorm(bench, dims); });
  const double tensor = Bytes({copies[0].x}), bits = BytesOf(copies[0].positive);
  const auto time = [&](absl::string_view kernel, double bytes,
                        const std::function<void(const FusedNorm&)>& work) {
    bench.TimeBytes(
        absl::StrFormat("batch norm %s %dx%dx%d batch %d", kernel, side, side, channels, batch),
        bytes, InTurn(copies, work));
  };
  // Reads x and writes y and the bits.
  time("relu forward", 2 * tensor + bits, [&](const FusedNorm& t) {
    norm.BatchNormForward(dims, t.x, t.mean, t.inverse, t.scale, t.shift, {}, t.positive, t.y);
  });
  // Reads the addend, too.
  time("add relu forward", 3 * tensor + bits, [&](const FusedNorm& t) {
    norm.BatchNormForward(dims, t.x, t.mean, t.inverse, t.scale, t.shift, t.addend, t.positive,
                          t.y);
  });
  // Reads x, dy and the bits.
  time("relu backward sums", 2 * tensor + bits, [&](const FusedNorm& t) {
    norm.BatchNormBackwardSums(dims, t.x, t.dy, {}, t.positive, t.mean, t.inverse, {}, t.sums,
                               t.dscale, t.dshift);
  });
  // Reads x, two gradients and the bits, and writes the sum of the gradients.
  time("add relu backward sums", 4 * tensor + bits, [&](const FusedNorm& t) {
    norm.BatchNormBackwardSums(dims, t.x, t.dy, t.other_dy, t.positive, t.mean, t.inverse, t.dx,
                               t.sums, t.dscale, t.dshift);
  });
  // Reads x, dy and the bits, and writes dx.
  time("relu backward", 3 * tensor + bits, [&](const FusedNorm& t) {
    norm.BatchNormBackward(dims, t.x, t.dy, t.positive, t.mean, t.inverse, t.scale, dims.rows,
                           t.sums, t.dx);
  });
}

void FusedNorms(KernelBench& bench) {
  for (const int64_t batch : {32, 128}) {
    for (const auto& [side, channels] :
         {std::pair(7, 512), std::pair(14, 256), std::pair(28, 128), std::pair(56, 64)}) {
      FusedNorms(bench, batch, side, channels);
    }
  }
}

// A step of an LSTM with 1,024 cells.
void Lstm(KernelBench& bench) {
  PointwiseKernels& pointwise = bench.kernels().pointwise();
  bench.Clear();
  const int64_t cells = Shrunk(1024);
  const RowsDims dims{.rows = FLAGS_elements / 4 / cells, .channels = cells};
  const int64_t n = dims.rows * dims.channels;
  const Values recurrent = bench.Tensor(4 * n), gates = bench.Tensor(4 * n);
  const Values y = bench.Tensor(n);
  const std::span<float> previous = bench.Floats(n), cell = bench.Floats(n);
  const std::span<float> dcell = bench.Floats(n);
  // Reads recurrent sums, gates and the previous cells; writes gates, cells and y.
  bench.TimeBytes("lstm forward",
                  Bytes({recurrent, gates, gates, y}) + BytesOf(previous) + BytesOf(cell),
                  [&] { pointwise.LstmForward(dims, recurrent, previous, gates, cell, y); });
  // Reads dy, both cells, gates and dcell; writes gates and dcell.
  bench.TimeBytes("lstm backward",
                  Bytes({y, gates, gates}) + BytesOf(previous) + BytesOf(cell) + 2 * BytesOf(dcell),
                  [&] { pointwise.LstmBackward(dims, y, previous, cell, gates, dcell); });
}

// The embedding of gpt2-small (bench/gpt2-small.textproto).
void Embedding(KernelBench& bench) {
  DenseKernels& dense = bench.kernels().dense();
  bench.Clear();
  const EmbeddingDims dims{.batch = Shrunk(16),
                           .tokens = Shrunk(1024),
                           .vocabulary = Shrunk(50257),
                           .features = Shrunk(768)};
  std::vector<float> tokens(dims.batch * dims.tokens);
  uint64_t state = 1;
  for (float& token : tokens) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    token = static_cast<float>((state >> 33) % static_cast<uint64_t>(dims.vocabulary));
  }
  const std::span<float> ids = bench.Floats(std::ssize(tokens));
  Fill(bench, tokens, ids);
  const std::span<float> w = bench.Floats(dims.vocabulary * dims.features);
  const std::span<float> positions = bench.Floats(dims.tokens * dims.features);
  const Values y = bench.Tensor(std::ssize(tokens) * dims.features);
  // Forward reads each row of w that a token has once; backward writes all rows.
  const std::set<float> rows(tokens.begin(), tokens.end());
  const double read = static_cast<double>(rows.size() * dims.features * sizeof(float));
  const double others = BytesOf(ids) + BytesOf(positions) + Bytes({y});
  bench.TimeBytes("embedding forward", read + others,
                  [&] { dense.EmbeddingForward(dims, ids, w, positions, y); });
  bench.TimeBytes("embedding backward", BytesOf(w) + others,
                  [&] { dense.EmbeddingBackward(dims, ids, y, w, positions); });
}

struct ReorderedWeights {
  std::span<float> ours;
  Values channels_last;
};

// Conversion of the weights of a 3 x 3 convolution to the library's order, and of their gradients
// back; each element is read once and written once.
void WeightOrder(KernelBench& bench) {
  const WeightOrderDims dims{.out = Shrunk(512), .channels = Shrunk(512), .taps = 9};
  const int64_t n = dims.out * dims.channels * dims.taps;
  const auto copies = Copies<ReorderedWeights>(bench, [&] {
    return ReorderedWeights{.ours = bench.Floats(n), .channels_last = bench.Tensor(n)};
  });
  const double bytes = BytesOf(copies[0].ours) + Bytes({copies[0].channels_last});
  bench.TimeBytes("reorder weights", bytes,
                  InTurn<ReorderedWeights>(copies, [&](const ReorderedWeights& t) {
                    LaunchChannelsToLast(bench.device(), dims, t.ours, t.channels_last);
                  }));
  bench.TimeBytes("reorder gradients", bytes,
                  InTurn<ReorderedWeights>(copies, [&](const ReorderedWeights& t) {
                    LaunchChannelsToFront(bench.device(), dims, t.channels_last, t.ours);
                  }));
}

void SoftmaxAndBias(KernelBench& bench) {
  bench.Clear();
  const int64_t classes = Shrunk(1024), rows = FLAGS_elements / classes;
  const Values x = bench.Tensor(rows * classes), dx = bench.Tensor(rows * classes);
  const std::span<int32_t> labels = bench.Span<int32_t>(rows);
  const std::span<double> sums = bench.Span<double>(2);
  bench.device().Zero(labels.data(), labels.size_bytes());
  bench.TimeBytes("softmax cross-entropy", Bytes({x, dx}), [&] {
    bench.kernels().pointwise().SoftmaxCrossEntropyAsync(rows, classes, 0, x, labels, 1.0F, dx,
                                                         sums);
  });
  // A layer without inputs has a bias only, whose gradient reads dy.
  const std::span<float> db = bench.Floats(classes);
  bench.TimeBytes("bias gradient", Bytes({x}), [&] {
    bench.kernels().dense().FullyConnectedBackwardWeights({.batch = rows, .in = 0, .out = classes},
                                                          Values(x.data(), 0, x.type()), x, {}, db);
  });
}

void Pooling(KernelBench& bench) {
  WindowKernels& window = bench.kernels().window();
  bench.Clear();
  const int64_t side = Shrunk(112), out = (side + 1) / 2;
  const PoolingDims pool{.kind = PoolKind::kMax,
                         .batch = Shrunk(64),
                         .channels = Shrunk(64),
                         .window = {.in_height = side,
                                    .in_width = side,
                                    .out_height = out,
                                    .out_width = out,
                                    .kernel_height = 3,
                                    .kernel_width = 3,
                                    .stride_height = 2,
                                    .stride_width = 2,
                                    .pad_top = 1,
                                    .pad_left = 1}};
  const LayerSizes sizes = SizesOf(pool);
  const Values x = bench.Tensor(sizes.x), y = bench.Tensor(sizes.y);
  const std::span<int32_t> argmax = bench.Span<int32_t>(sizes.y);
  const double bytes = Bytes({x, y}) + BytesOf(argmax);
  bench.TimeBytes("max pool forward", bytes, [&] { window.PoolingForward(pool, x, y, argmax); });
  window.PoolingForward(pool, x, y, argmax);
  bench.TimeBytes("max pool backward", bytes, [&] { window.PoolingBackward(pool, y, argmax, x); });
}

// --- kernels of the libraries --------------------------------------------------------------------

void Convolution(KernelBench& bench, const ConvolutionDims& dims) {
  WindowKernels& window = bench.kernels().window();
  bench.Clear();
  const LayerSizes sizes = SizesOf(dims);
  const Values x = bench.Tensor(sizes.x), y = bench.Tensor(sizes.y);
  const std::span<float> w = bench.Floats(sizes.w), dw = bench.Floats(sizes.w);
  bench.kernels().WeightsChanged(w);
  const double flop = 2.0 * static_cast<double>(sizes.y) * static_cast<double>(sizes.w) /
                      static_cast<double>(dims.out_channels);
  const std::string name = absl::StrFormat(
      "convolution %dx%d/%d %d-%d at %d", dims.window.kernel_height, dims.window.kernel_width,
      dims.window.stride_height, dims.in_channels, dims.out_channels, dims.window.in_height);
  const std::pair<const char*, std::function<void()>> passes[] = {
      {" forward", [&] { window.ConvolutionForward(dims, x, w, {}, y); }},
      {" backward data", [&] { window.ConvolutionBackwardData(dims, y, w, x); }},
      {" backward weights", [&] { window.ConvolutionBackwardWeights(dims, x, y, dw, {}); }}};
  for (const auto& [pass, work] : passes) {
    bench.TimeFlop(absl::StrCat(name, pass), flop, work);
  }
}

// Convolutions of resnet50 and vgg16.
void Convolutions(KernelBench& bench) {
  struct Case {
    int64_t side, in, out, kernel, stride;
  };
  for (const Case& layer :
       {Case{224, 3, 64, 7, 2}, Case{56, 64, 64, 3, 1}, Case{56, 64, 256, 1, 1},
        Case{28, 128, 128, 3, 1}, Case{28, 256, 256, 3, 2}, Case{14, 256, 256, 3, 1},
        Case{14, 1024, 256, 1, 1}, Case{7, 512, 512, 3, 1}, Case{112, 128, 128, 3, 1}}) {
    const int64_t side = Shrunk(layer.side), pad = layer.kernel / 2;
    const int64_t out = (side + 2 * pad - layer.kernel) / layer.stride + 1;
    const ConvolutionDims dims{.batch = Shrunk(32),
                               .in_channels = Shrunk(layer.in),
                               .out_channels = Shrunk(layer.out),
                               .window = {.in_height = side,
                                          .in_width = side,
                                          .out_height = out,
                                          .out_width = out,
                                          .kernel_height = layer.kernel,
                                          .kernel_width = layer.kernel,
                                          .stride_height = layer.stride,
                                          .stride_width = layer.stride,
                                          .pad_top = pad,
                                          .pad_left = pad}};
    Convolution(bench, dims);
  }
}

// The attention of model/zoo/gpt.textproto, with longer sequences.
void Attention(KernelBench& bench) {
  DenseKernels& dense = bench.kernels().dense();
  bench.Clear();
  const AttentionDims dims{
      .batch = Shrunk(32), .tokens = Shrunk(512), .heads = 6, .head_features = 64, .causal = true};
  const AttentionSizes sizes = SizesOf(dims);
  const Values qkv = bench.Tensor(sizes.qkv), dqkv = bench.Tensor(sizes.qkv);
  const Values context = bench.Tensor(sizes.context), dcontext = bench.Tensor(sizes.context);
  const FloatSpan statistics = bench.Floats(sizes.statistics);
  const auto forward = [&] { dense.AttentionForward(dims, {}, qkv, context, statistics, {}); };
  // There are two products forward and five backward; the causal mask halves their work.
  const double product = static_cast<double>(sizes.context) * dims.tokens;
  bench.TimeFlop("attention forward", 2 * product, forward);
  forward();
  bench.TimeFlop("attention backward", 5 * product, [&] {
    dense.AttentionBackward(dims, {}, qkv, context, dcontext, statistics, {}, dqkv);
  });
}

// --- the program ---------------------------------------------------------------------------------

absl::Status RunAll(KernelBench& bench) {
  using Section = void (*)(KernelBench&);
  const std::vector<Section> own = {Elementwise, Norms,       FusedNorms,     Lstm,
                                    Embedding,   WeightOrder, SoftmaxAndBias, Pooling};
  const std::vector<Section> of_libraries = {Convolutions, Attention};
  Updates(bench);
  Codecs(bench);
  for (const std::vector<Section>& sections : {own, of_libraries}) {
    for (const Precision precision : {Precision::kBf16, Precision::kTf32}) {
      CADRE_RETURN_IF_ERROR(bench.SetPrecision(precision));
      for (const Section section : sections) section(bench);
      CADRE_RETURN_IF_ERROR(bench.status());
    }
  }
  CADRE_RETURN_IF_ERROR(bench.status());
  return bench.device().status();
}

absl::Status Run() {
  if (FLAGS_elements < 1 << 16 || FLAGS_side < 1 || FLAGS_side > 16384) {
    return absl::InvalidArgumentError(
        "--elements must be at least 65536, --side between 1 and 16384");
  }
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--rounds", FLAGS_rounds}, {"--shrink", FLAGS_shrink}}));
  CADRE_ASSIGN_OR_RETURN(const BenchGpu gpu, MakeBenchGpu(FLAGS_device, FLAGS_libraries));
  CADRE_ASSIGN_OR_RETURN(EventTimer timer, EventTimer::Make(*gpu.device));
  // Most kernels use a few tensors of FLAGS_elements fp32 elements; AdamW uses five. Others have
  // extents of their own.
  const size_t memory = static_cast<size_t>(FLAGS_elements) * 24 + Shrunk(1 << 30);
  KernelBench bench(*gpu.device, gpu.compute->kernels(), timer,
                    {.elements = FLAGS_elements,
                     .side = FLAGS_side,
                     .memory = memory,
                     .only = absl::StrSplit(FLAGS_only, ',', absl::SkipEmpty()),
                     .rounds = FLAGS_rounds});
  nlohmann::ordered_json line = BenchLine("gpu_kernels");
  line.update(GpuFields(gpu));
  CADRE_ASSIGN_OR_RETURN(const nlohmann::ordered_json ceilings, bench.MeasureCeilings());
  line.update(ceilings);
  PrintLine(line);
  return RunAll(bench);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::GpuBenchMain(
      argc, argv, "bench/gpu/gpu_kernels.cc",
      "bench_gpu_kernels: measures the kernels of the CUDA back end relative to "
      "the ceilings of the card; prints JSON lines.",
      cadre::Run);
}
