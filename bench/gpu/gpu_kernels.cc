// Speed of the kernels of the CUDA back end relative to the ceilings of the GPU, measured in the
// same run. Prints one JSON line on stdout with the ceilings (the rates of a copy within the device
// and of matrix products in bf16 and TF32), then every kernel with its rate and its share of its
// ceiling. Counted bytes are those that must be moved at least once, so a kernel that moves nothing
// twice and never waits reaches 100 per cent.
//
//   bench_gpu_kernels                        all kernels
//   bench_gpu_kernels --only update,softmax  kernels with one of these words in their names
//
// Without a GPU the exit code is 3, after a message with the reason.
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/gpu/gpu_bench.h"
#include "bench/harness.h"
#include "kernels/backend.h"
#include "kernels/extents.h"

DEFINE_string(device, "cuda", "Device: cuda or cuda:N.");
DEFINE_string(libraries, "", "Folders to search first for cuBLAS and cuDNN, separated by commas.");
DEFINE_string(only, "",
              "Only kernels with one of these words in their names, separated by commas.");
DEFINE_int64(elements, 1 << 26, "Elements of a tensor or slice; should exceed the caches.");

DEFINE_int64(side, 4096, "Side of the matrices whose product is the ceiling of arithmetic.");

namespace cadre {
namespace {

struct Measured {
  std::string name;
  double seconds = 0;
  // The work of one call: bytes moved or floating-point operations; the other one is 0.
  double bytes = 0, flop = 0;
  // Maximum bytes or floating-point operations per second.
  double ceiling = 0;
};

// Memory that one kernel after another uses for its tensors.
class Arena {
 public:
  // Fills the memory with numbers in [-1, 1), because GPUs multiply zeros faster. The bits are
  // valid both as fp32 and as bf16, which is the upper half of an fp32.
  Arena(Device& device, size_t bytes) : memory_(device, bytes, "benchmark") {
    if (memory_.data() == nullptr) return;
    std::vector<uint16_t> halves(size_t{1} << 24);
    uint64_t state = 1;
    for (uint16_t& half : halves) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // The sign and the fraction are random; exponents are those of [1/8, 1).
      half = static_cast<uint16_t>((state >> 48 & 0x807F) | ((124 + (state >> 40) % 3) << 7));
    }
    const size_t piece = halves.size() * sizeof(uint16_t);
    for (size_t at = 0; at < bytes; at += piece) {
      device.CopyIn(halves.data(), memory_.data() + at, std::min(piece, bytes - at));
    }
  }
  void Clear() { used_ = 0; }
  Values Take(int64_t elements, DType type) {
    const size_t bytes = static_cast<size_t>(elements) * SizeOf(type);
    CHECK_LE(used_ + bytes, memory_.size());
    const Values values(memory_.data() + used_, elements, type);
    used_ += (bytes + 255) / 256 * 256;
    return values;
  }
  template <typename T>
  std::span<T> Span(int64_t elements) {
    const Values bytes = Take(elements * static_cast<int64_t>(sizeof(T)), DType::kBytes);
    return {static_cast<T*>(bytes.data()), static_cast<size_t>(elements)};
  }

 private:
  DeviceArray<std::byte> memory_;
  size_t used_ = 0;
};

// Times the kernels one after the other. Each section places its tensors at the beginning of the
// arena, which is allocated once, so that no allocation happens between kernels.
class KernelBench {
 public:
  KernelBench(CudaDevice& device, Backend& kernels, EventTimer& timer)
      : device_(device),
        kernels_(kernels),
        timer_(timer),
        // Most kernels use a few tensors of this many fp32 elements; AdamW uses five.
        arena_(device, static_cast<size_t>(FLAGS_elements) * 24 + (size_t{1} << 29)) {
    if (!FLAGS_only.empty()) only_ = absl::StrSplit(FLAGS_only, ',', absl::SkipEmpty());
  }

  absl::Status Run() {
    CADRE_RETURN_IF_ERROR(device_.status());
    CADRE_RETURN_IF_ERROR(Ceilings());
    CADRE_RETURN_IF_ERROR(Updates());
    for (const Precision precision : {Precision::kBf16, Precision::kTf32}) {
      CADRE_RETURN_IF_ERROR(kernels_.SetPrecision(precision));
      suffix_ = precision == Precision::kBf16 ? " bf16" : " tf32";
      products_ = precision == Precision::kBf16 ? bf16_ : tf32_;
      CADRE_RETURN_IF_ERROR(Elementwise());
      CADRE_RETURN_IF_ERROR(Norms());
      CADRE_RETURN_IF_ERROR(Others());
      CADRE_RETURN_IF_ERROR(Convolutions());
      CADRE_RETURN_IF_ERROR(Attention());
    }
    return absl::OkStatus();
  }

  nlohmann::ordered_json Line() const {
    nlohmann::ordered_json line = BenchLine("gpu_kernels");
    line.update({{"device", device_.name()},
                 {"cuda", DescribeGpu(device_)},
                 {"elements", FLAGS_elements},
                 {"copy_gbs", Rounded(copy_ / 1e9, 1)},
                 {"product_bf16_tflops", Rounded(bf16_ / 1e12, 1)},
                 {"product_tf32_tflops", Rounded(tf32_ / 1e12, 1)},
                 {"kernels", nlohmann::ordered_json::array()}});
    for (const Measured& m : results_) {
      const bool memory = m.bytes > 0;
      const double rate = (memory ? m.bytes : m.flop) / m.seconds;
      line["kernels"].push_back(
          {{"kernel", m.name},
           {"us", Rounded(m.seconds * 1e6, 2)},
           {memory ? "gbs" : "tflops", Rounded(rate / (memory ? 1e9 : 1e12), 1)},
           {"percent", Rounded(100 * rate / m.ceiling, 1)}});
    }
    return line;
  }

 private:
  DType type() const { return kernels_.activation_type(); }
  Values Tensor(int64_t elements) { return arena_.Take(elements, type()); }
  std::span<float> Floats(int64_t elements) { return arena_.Span<float>(elements); }
  static double Bytes(const std::vector<ConstValues>& moved) {
    double bytes = 0;
    for (const ConstValues& values : moved) bytes += static_cast<double>(values.bytes());
    return bytes;
  }

  bool Selected(const std::string& name) const {
    return only_.empty() || std::any_of(only_.begin(), only_.end(), [&](const std::string& part) {
             return absl::StrContains(name, part);
           });
  }

  // Times one kernel that moves `bytes` or computes `flop`; the other argument is 0.
  absl::Status Time(absl::string_view kernel, double bytes, double flop,
                    const std::function<void()>& work) {
    const std::string name = absl::StrCat(kernel, suffix_);
    if (!Selected(name)) return absl::OkStatus();
    CADRE_ASSIGN_OR_RETURN(const double seconds, timer_.Seconds(work));
    results_.push_back({.name = name,
                        .seconds = seconds,
                        .bytes = bytes,
                        .flop = flop,
                        .ceiling = bytes > 0 ? copy_ : products_});
    return device_.status();
  }

  // The rates against which kernels are compared. A copy reads and writes each byte.
  absl::Status Ceilings() {
    arena_.Clear();
    const std::span<float> from = Floats(FLAGS_elements), to = Floats(FLAGS_elements);
    CADRE_ASSIGN_OR_RETURN(const double copying, timer_.Seconds([&] {
      device_.Copy(from.data(), to.data(), from.size_bytes());
    }));
    copy_ = 2 * static_cast<double>(from.size_bytes()) / copying;
    arena_.Clear();
    CADRE_ASSIGN_OR_RETURN(bf16_, ProductRate(Precision::kBf16));
    CADRE_ASSIGN_OR_RETURN(tf32_, ProductRate(Precision::kTf32));
    return absl::OkStatus();
  }

  // Floating-point operations per second of one large matrix product: the ceiling of arithmetic.
  absl::StatusOr<double> ProductRate(Precision precision) {
    arena_.Clear();
    CADRE_RETURN_IF_ERROR(kernels_.SetPrecision(precision));
    const int64_t side = FLAGS_side;
    const FullyConnectedDims dims{.batch = 2 * side, .in = side, .out = side};
    const Values x = Tensor(dims.batch * dims.in), y = Tensor(dims.batch * dims.out);
    const std::span<float> w = Floats(dims.in * dims.out);
    kernels_.WeightsChanged(w);
    CADRE_ASSIGN_OR_RETURN(const double seconds, timer_.Seconds([&] {
      kernels_.dense().FullyConnectedForward(dims, x, w, {}, y);
    }));
    return 2.0 * static_cast<double>(dims.batch * dims.in * dims.out) / seconds;
  }

  // Optimizer updates of one slice with two segments, with and without weight decay.
  absl::Status Updates() {
    const int64_t n = FLAGS_elements;
    suffix_ = "";
    const std::vector<SliceSegment> segments = {{.begin = 0, .end = n / 2, .decays = true},
                                                {.begin = n / 2, .end = n}};
    const auto table = kernels_.slices()->MakeSegmentTable(segments);
    kernels_.slices()->SetUpdate(1e-3F, 1);
    for (const bool adamw : {false, true}) {
      arena_.Clear();
      const std::span<float> g = Floats(n), w = Floats(n), v = Floats(n);
      const std::span<float> m = adamw ? Floats(n) : std::span<float>();
      const std::span<double> loss = arena_.Span<double>(1);
      device_.Zero(loss.data(), loss.size_bytes());
      const SliceUpdate update{.rule = adamw ? SliceUpdate::Rule::kAdamW : SliceUpdate::Rule::kSgd,
                               .sgd = {.momentum = 0.9F, .weight_decay = 1e-4F},
                               .adamw = {.weight_decay = 0.1F},
                               .loss = loss.data()};
      // An update reads g, w and the state, and writes w and the state.
      const double bytes = (adamw ? 7.0 : 5.0) * static_cast<double>(g.size_bytes());
      CADRE_RETURN_IF_ERROR(Time(adamw ? "update adamw" : "update sgd", bytes, 0, [&] {
        kernels_.slices()->UpdateSlice(update, *table, g, w, m, v);
      }));
    }
    arena_.Clear();
    const std::span<float> x = Floats(n);
    const std::span<double> sum = arena_.Span<double>(1);
    return Time("sum of squares", static_cast<double>(x.size_bytes()), 0,
                [&] { kernels_.slices()->AddSumOfSquares(x, sum.data()); });
  }

  absl::Status Elementwise() {
    const int64_t n = FLAGS_elements;
    for (const auto& [kind, name] :
         {std::pair(Activation::kRelu, "relu"), std::pair(Activation::kGelu, "gelu")}) {
      arena_.Clear();
      const Values x = Tensor(n), y = Tensor(n), dy = Tensor(n);
      const Activation activation = kind;
      CADRE_RETURN_IF_ERROR(Time(absl::StrCat(name, " forward"), Bytes({x, y}), 0, [&] {
        kernels_.pointwise().ActivationForward(activation, x, y);
      }));
      CADRE_RETURN_IF_ERROR(Time(absl::StrCat(name, " backward"), Bytes({x, dy, y}), 0, [&] {
        kernels_.pointwise().ActivationBackward(activation, x, dy, y);
      }));
    }
    arena_.Clear();
    const Values x = Tensor(n), y = Tensor(n);
    CADRE_RETURN_IF_ERROR(
        Time("add", Bytes({x, y, y}), 0, [&] { kernels_.pointwise().Add(x, y); }));
    CADRE_RETURN_IF_ERROR(Time("dropout", Bytes({x, y}), 0, [&] {
      kernels_.pointwise().Dropout({.seed = 1, .layer = 2, .rate = 0.1F}, 0, x, y);
    }));
    return Time("transpose", Bytes({x, y}), 0,
                [&] { kernels_.memory().Transpose(16, n / 16 / 256, 256, x, y); });
  }

  // The kernels of batch norm and layer norm, which share their tensors.
  absl::Status Norms() {
    arena_.Clear();
    const RowsDims images{.rows = FLAGS_elements / 256, .channels = 256};
    const int64_t n = images.rows * images.channels, c = images.channels;
    const Values x = Tensor(n), y = Tensor(n), dy = Tensor(n);
    const std::span<float> mean = Floats(images.rows), inverse = Floats(images.rows);
    const std::span<float> scale = Floats(c), shift = Floats(c), a = Floats(c), b = Floats(c);
    const std::span<double> sums = arena_.Span<double>(2 * c);
    const double bytes = Bytes({x});
    const auto channels = [c](std::span<float> s) { return s.first(static_cast<size_t>(c)); };
    CADRE_RETURN_IF_ERROR(
        Time("batch norm sums", bytes, 0, [&] { kernels_.norm().BatchNormSums(images, x, sums); }));
    CADRE_RETURN_IF_ERROR(Time("batch norm forward", 2 * bytes, 0, [&] {
      kernels_.norm().BatchNormForward(images, x, channels(mean), channels(inverse), scale, shift,
                                       {}, {}, y);
    }));
    CADRE_RETURN_IF_ERROR(Time("batch norm backward sums", 2 * bytes, 0, [&] {
      kernels_.norm().BatchNormBackwardSums(images, x, dy, {}, {}, channels(mean),
                                            channels(inverse), {}, sums);
    }));
    CADRE_RETURN_IF_ERROR(Time("batch norm backward", 3 * bytes, 0, [&] {
      kernels_.norm().BatchNormBackward(images, x, dy, {}, channels(mean), channels(inverse), scale,
                                        a, b, y);
    }));
    CADRE_RETURN_IF_ERROR(Time("layer norm forward", 2 * bytes, 0, [&] {
      kernels_.norm().LayerNormForward(images, 1e-5F, x, scale, shift, y, mean, inverse);
    }));
    return Time("layer norm backward", 3 * bytes, 0, [&] {
      kernels_.norm().LayerNormBackward(images, x, dy, mean, inverse, scale, y, a, b);
    });
  }

  absl::Status Others() {
    arena_.Clear();
    const int64_t classes = 1024, rows = FLAGS_elements / classes;
    {
      const Values x = Tensor(rows * classes), dx = Tensor(rows * classes);
      const std::span<int32_t> labels = arena_.Span<int32_t>(rows);
      const std::span<double> sums = arena_.Span<double>(2);
      device_.Zero(labels.data(), labels.size_bytes());
      CADRE_RETURN_IF_ERROR(Time("softmax cross-entropy", Bytes({x, dx}), 0, [&] {
        kernels_.pointwise().SoftmaxCrossEntropyAsync(rows, classes, 0, x, labels, 1.0F, dx, sums);
      }));
    }
    const PoolingDims pool{.kind = PoolKind::kMax,
                           .batch = 64,
                           .channels = 64,
                           .window = {.in_height = 112,
                                      .in_width = 112,
                                      .out_height = 56,
                                      .out_width = 56,
                                      .kernel_height = 3,
                                      .kernel_width = 3,
                                      .stride_height = 2,
                                      .stride_width = 2,
                                      .pad_top = 1,
                                      .pad_left = 1}};
    arena_.Clear();
    const LayerSizes sizes = SizesOf(pool);
    const Values x = Tensor(sizes.x), y = Tensor(sizes.y);
    const std::span<int32_t> argmax = arena_.Span<int32_t>(sizes.y);
    const double bytes = Bytes({x, y}) + static_cast<double>(argmax.size_bytes());
    CADRE_RETURN_IF_ERROR(Time("max pool forward", bytes, 0,
                               [&] { kernels_.window().PoolingForward(pool, x, y, argmax); }));
    kernels_.window().PoolingForward(pool, x, y, argmax);
    return Time("max pool backward", bytes, 0,
                [&] { kernels_.window().PoolingBackward(pool, y, argmax, x); });
  }

  // Convolutions of resnet50 and vgg16.
  absl::Status Convolutions() {
    struct Case {
      int64_t side, in, out, kernel, stride;
    };
    for (const Case& layer :
         {Case{224, 3, 64, 7, 2}, Case{56, 64, 64, 3, 1}, Case{56, 64, 256, 1, 1},
          Case{28, 128, 128, 3, 1}, Case{28, 256, 256, 3, 2}, Case{14, 256, 256, 3, 1},
          Case{14, 1024, 256, 1, 1}, Case{7, 512, 512, 3, 1}, Case{112, 128, 128, 3, 1}}) {
      const int64_t pad = layer.kernel / 2;
      const int64_t out = (layer.side + 2 * pad - layer.kernel) / layer.stride + 1;
      const ConvolutionDims dims{.batch = 32,
                                 .in_channels = layer.in,
                                 .out_channels = layer.out,
                                 .window = {.in_height = layer.side,
                                            .in_width = layer.side,
                                            .out_height = out,
                                            .out_width = out,
                                            .kernel_height = layer.kernel,
                                            .kernel_width = layer.kernel,
                                            .stride_height = layer.stride,
                                            .stride_width = layer.stride,
                                            .pad_top = pad,
                                            .pad_left = pad}};
      CADRE_RETURN_IF_ERROR(Convolution(dims));
    }
    return absl::OkStatus();
  }

  absl::Status Convolution(const ConvolutionDims& dims) {
    arena_.Clear();
    const LayerSizes sizes = SizesOf(dims);
    const Values x = Tensor(sizes.x), y = Tensor(sizes.y);
    const std::span<float> w = Floats(sizes.w), dw = Floats(sizes.w);
    kernels_.WeightsChanged(w);
    const double flop = 2.0 * static_cast<double>(sizes.y) * static_cast<double>(sizes.w) /
                        static_cast<double>(dims.out_channels);
    const std::string name = absl::StrFormat(
        "convolution %dx%d/%d %d-%d at %d", dims.window.kernel_height, dims.window.kernel_width,
        dims.window.stride_height, dims.in_channels, dims.out_channels, dims.window.in_height);
    const std::pair<const char*, std::function<void()>> passes[] = {
        {" forward", [&] { kernels_.window().ConvolutionForward(dims, x, w, {}, y); }},
        {" backward data", [&] { kernels_.window().ConvolutionBackwardData(dims, y, w, x); }},
        {" backward weights",
         [&] { kernels_.window().ConvolutionBackwardWeights(dims, x, y, dw, {}); }}};
    for (const auto& [pass, work] : passes) {
      CADRE_RETURN_IF_ERROR(Time(absl::StrCat(name, pass), 0, flop, work));
    }
    return absl::OkStatus();
  }

  // The attention of model/zoo/gpt.textproto, with longer sequences.
  absl::Status Attention() {
    arena_.Clear();
    const AttentionDims dims{
        .batch = 32, .tokens = 512, .heads = 6, .head_features = 64, .causal = true};
    const AttentionSizes sizes = SizesOf(dims);
    const Values qkv = Tensor(sizes.qkv), dqkv = Tensor(sizes.qkv);
    const Values context = Tensor(sizes.context), dcontext = Tensor(sizes.context);
    const FloatSpan statistics = Floats(sizes.statistics);
    // There are two products forward and five backward; the causal mask halves their work.
    const double product = static_cast<double>(sizes.context) * dims.tokens;
    CADRE_RETURN_IF_ERROR(Time("attention forward", 0, 2 * product, [&] {
      kernels_.dense().AttentionForward(dims, {}, qkv, context, statistics);
    }));
    return Time("attention backward", 0, 5 * product, [&] {
      kernels_.dense().AttentionBackward(dims, {}, qkv, context, dcontext, statistics, dqkv);
    });
  }

  CudaDevice& device_;
  Backend& kernels_;
  EventTimer& timer_;
  Arena arena_;
  std::vector<std::string> only_;
  std::string suffix_;
  // Ceilings per second; `products_` is the ceiling of products in the current precision.
  double copy_ = 1, bf16_ = 1, tf32_ = 1, products_ = 1;
  std::vector<Measured> results_;
};

absl::Status Run() {
  if (FLAGS_elements < 1 << 20 || FLAGS_side < 1 || FLAGS_side > 16384) {
    return absl::InvalidArgumentError(
        "--elements must be at least 1048576, --side between 1 and 16384");
  }
  CADRE_ASSIGN_OR_RETURN(const BenchGpu gpu, MakeBenchGpu(FLAGS_device, FLAGS_libraries));
  CADRE_ASSIGN_OR_RETURN(EventTimer timer, EventTimer::Make(*gpu.device));
  KernelBench bench(*gpu.device, gpu.compute->kernels(), timer);
  CADRE_RETURN_IF_ERROR(bench.Run());
  PrintLine(bench.Line());
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(
      argc, argv, "bench/gpu/gpu_kernels.cc",
      "bench_gpu_kernels: measures the kernels of the CUDA back end relative to "
      "the ceilings of the card; prints one JSON line.",
      cadre::Run, cadre::kNoGpu);
}
