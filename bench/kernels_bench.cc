// How fast one worker's kernels are, on the network that the project is tested with: GFLOP/s of
// each operation and samples per second of whole training steps, as one JSON line on stdout.
//
//   bench_kernels --batch=32 --threads=1
#include <gflags/gflags.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "kernels/extents.h"
#include "kernels/kernels.h"

DEFINE_int32(batch, 32, "samples in a step");
DEFINE_int32(threads, 1, "threads of the kernels");
DEFINE_int32(repeats, 30, "times that each operation is run; the median counts");

namespace cadre {
namespace {

using Floats = std::vector<float>;

Floats Random(int64_t n, float scale) {
  static uint64_t substream = 0;
  Floats values(static_cast<size_t>(n));
  ++substream;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * (2 * RandomUniform(1, RandomStream::kTest, substream, i) - 1);
  }
  return values;
}

double MedianSeconds(int repeats, const std::function<void()>& run) {
  run();  // makes primitives, touches memory
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

// A layer's parameters with what training keeps for them.
struct Parameters {
  Parameters(int64_t n, float scale)
      : value(Random(n, scale)), gradient(value.size()), velocity(value.size()) {}
  Floats value, gradient, velocity;
};

// An activation and its gradient.
struct Activation {
  explicit Activation(int64_t n) : value(static_cast<size_t>(n)), gradient(value.size()) {}
  Floats value, gradient;
};

// Two convolutions with pooling and two fully connected layers, on images of 28 x 28.
class Network {
 public:
  Network(int64_t batch, int threads) : kernels_(MakeCpuKernels(threads)), batch_(batch) {}

  // Each operation of a step, by name, with its floating-point operations (0: not counted).
  struct Operation {
    std::string name;
    double flop;
    std::function<void()> run;
  };
  std::vector<Operation> Operations();

 private:
  static ConvolutionDims Convolution(int64_t batch, int64_t in, int64_t size, int64_t out) {
    return {.batch = batch,
            .in_channels = in,
            .in_height = size,
            .in_width = size,
            .out_channels = out,
            .out_height = size,
            .out_width = size,
            .kernel = 3,
            .stride = 1,
            .padding = 1};
  }
  static PoolingDims Pooling(int64_t batch, int64_t channels, int64_t size) {
    return {.kind = PoolKind::kMax,
            .batch = batch,
            .channels = channels,
            .in_height = size,
            .in_width = size,
            .out_height = size / 2,
            .out_width = size / 2,
            .kernel = 2,
            .stride = 2};
  }
  static double Flop(const ConvolutionDims& d) {
    return 2.0 * static_cast<double>(SizesOf(d).y * d.in_channels * d.kernel * d.kernel);
  }
  static double Flop(const FullyConnectedDims& d) {
    return 2.0 * static_cast<double>(d.batch * d.in * d.out);
  }

  std::vector<Parameters*> AllParameters() {
    return {&conv1_w_, &conv1_b_, &conv2_w_, &conv2_b_, &fc1_w_, &fc1_b_, &fc2_w_, &fc2_b_};
  }
  std::vector<int32_t> Labels() const {
    std::vector<int32_t> labels(static_cast<size_t>(batch_));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i % 10);
    return labels;
  }

  const std::unique_ptr<Kernels> kernels_;
  const int64_t batch_;
  const ConvolutionDims conv1_ = Convolution(batch_, 1, 28, 32);
  const ConvolutionDims conv2_ = Convolution(batch_, 32, 14, 64);
  const PoolingDims pool1_ = Pooling(batch_, 32, 28);
  const PoolingDims pool2_ = Pooling(batch_, 64, 14);
  const FullyConnectedDims fc1_{.batch = batch_, .in = 64 * 49, .out = 1024};
  const FullyConnectedDims fc2_{.batch = batch_, .in = 1024, .out = 10};
  const std::vector<int32_t> labels_ = Labels();

  const Floats x_ = Random(SizesOf(conv1_).x, 1);
  Parameters conv1_w_{SizesOf(conv1_).w, 0.5F}, conv1_b_{SizesOf(conv1_).b, 0};
  Parameters conv2_w_{SizesOf(conv2_).w, 0.1F}, conv2_b_{SizesOf(conv2_).b, 0};
  Parameters fc1_w_{SizesOf(fc1_).w, 0.03F}, fc1_b_{SizesOf(fc1_).b, 0};
  Parameters fc2_w_{SizesOf(fc2_).w, 0.05F}, fc2_b_{SizesOf(fc2_).b, 0};
  Activation conv1_y_{SizesOf(conv1_).y}, pool1_y_{SizesOf(pool1_).y};
  Activation conv2_y_{SizesOf(conv2_).y}, pool2_y_{SizesOf(pool2_).y};
  Activation fc1_y_{SizesOf(fc1_).y}, fc2_y_{SizesOf(fc2_).y};
  std::vector<int32_t> argmax1_ = std::vector<int32_t>(pool1_y_.value.size());
  std::vector<int32_t> argmax2_ = std::vector<int32_t>(pool2_y_.value.size());
};

std::vector<Network::Operation> Network::Operations() {
  Kernels& k = *kernels_;
  return {
      {"conv1_forward", Flop(conv1_),
       [this, &k] {
         k.ConvolutionForward(conv1_, x_, conv1_w_.value, conv1_b_.value, conv1_y_.value);
       }},
      {"relu1_forward", 0, [this, &k] { k.ReluForward(conv1_y_.value, conv1_y_.value); }},
      {"pool1_forward", 0,
       [this, &k] { k.PoolingForward(pool1_, conv1_y_.value, pool1_y_.value, argmax1_); }},
      {"conv2_forward", Flop(conv2_),
       [this, &k] {
         k.ConvolutionForward(conv2_, pool1_y_.value, conv2_w_.value, conv2_b_.value,
                              conv2_y_.value);
       }},
      {"relu2_forward", 0, [this, &k] { k.ReluForward(conv2_y_.value, conv2_y_.value); }},
      {"pool2_forward", 0,
       [this, &k] { k.PoolingForward(pool2_, conv2_y_.value, pool2_y_.value, argmax2_); }},
      {"fc1_forward", Flop(fc1_),
       [this, &k] {
         k.FullyConnectedForward(fc1_, pool2_y_.value, fc1_w_.value, fc1_b_.value, fc1_y_.value);
       }},
      {"relu3_forward", 0, [this, &k] { k.ReluForward(fc1_y_.value, fc1_y_.value); }},
      {"fc2_forward", Flop(fc2_),
       [this, &k] {
         k.FullyConnectedForward(fc2_, fc1_y_.value, fc2_w_.value, fc2_b_.value, fc2_y_.value);
       }},
      {"loss", 0,
       [this, &k] {
         k.SoftmaxCrossEntropy(batch_, 10, fc2_y_.value, labels_, 1.0F / static_cast<float>(batch_),
                               fc2_y_.gradient);
       }},
      {"fc2_backward_weights", Flop(fc2_),
       [this, &k] {
         k.FullyConnectedBackwardWeights(fc2_, fc1_y_.value, fc2_y_.gradient, fc2_w_.gradient,
                                         fc2_b_.gradient);
       }},
      {"fc2_backward_data", Flop(fc2_),
       [this, &k] {
         k.FullyConnectedBackwardData(fc2_, fc2_y_.gradient, fc2_w_.value, fc1_y_.gradient);
       }},
      {"relu3_backward", 0,
       [this, &k] { k.ReluBackward(fc1_y_.value, fc1_y_.gradient, fc1_y_.gradient); }},
      {"fc1_backward_weights", Flop(fc1_),
       [this, &k] {
         k.FullyConnectedBackwardWeights(fc1_, pool2_y_.value, fc1_y_.gradient, fc1_w_.gradient,
                                         fc1_b_.gradient);
       }},
      {"fc1_backward_data", Flop(fc1_),
       [this, &k] {
         k.FullyConnectedBackwardData(fc1_, fc1_y_.gradient, fc1_w_.value, pool2_y_.gradient);
       }},
      {"pool2_backward", 0,
       [this, &k] { k.PoolingBackward(pool2_, pool2_y_.gradient, argmax2_, conv2_y_.gradient); }},
      {"relu2_backward", 0,
       [this, &k] { k.ReluBackward(conv2_y_.value, conv2_y_.gradient, conv2_y_.gradient); }},
      {"conv2_backward_weights", Flop(conv2_),
       [this, &k] {
         k.ConvolutionBackwardWeights(conv2_, pool1_y_.value, conv2_y_.gradient, conv2_w_.gradient,
                                      conv2_b_.gradient);
       }},
      {"conv2_backward_data", Flop(conv2_),
       [this, &k] {
         k.ConvolutionBackwardData(conv2_, conv2_y_.gradient, conv2_w_.value, pool1_y_.gradient);
       }},
      {"pool1_backward", 0,
       [this, &k] { k.PoolingBackward(pool1_, pool1_y_.gradient, argmax1_, conv1_y_.gradient); }},
      {"relu1_backward", 0,
       [this, &k] { k.ReluBackward(conv1_y_.value, conv1_y_.gradient, conv1_y_.gradient); }},
      {"conv1_backward_weights", Flop(conv1_),
       [this, &k] {
         k.ConvolutionBackwardWeights(conv1_, x_, conv1_y_.gradient, conv1_w_.gradient,
                                      conv1_b_.gradient);
       }},
      {"sgd", 0,
       [this, &k] {
         const SgdStep step{.rate = 0.01F, .momentum = 0.9F};
         for (Parameters* p : AllParameters()) k.Sgd(step, p->gradient, p->value, p->velocity);
       }},
  };
}

std::string Measure(int64_t batch, int threads, int repeats) {
  Network network(batch, threads);
  const auto operations = network.Operations();
  const double step = MedianSeconds(repeats, [&] {
    for (const auto& operation : operations) operation.run();
  });
  std::string json = absl::StrFormat(
      R"({"bench":"kernels","batch":%d,"threads":%d,"step_ms":%.3f,"samples_per_second":%.0f)",
      batch, threads, step * 1e3, static_cast<double>(batch) / step);
  absl::StrAppend(&json, ",\"operations\":{");
  const char* comma = "";
  for (const auto& [name, flop, run] : operations) {
    const double seconds = MedianSeconds(repeats, run);
    absl::StrAppendFormat(&json, R"(%s"%s":{"ms":%.4f)", comma, name, seconds * 1e3);
    if (flop > 0) absl::StrAppendFormat(&json, R"(,"gflops":%.1f)", flop / seconds / 1e9);
    absl::StrAppend(&json, "}");
    comma = ",";
  }
  return json + "}}";
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_batch < 1 || FLAGS_threads < 1 || FLAGS_repeats < 1) {
    std::fprintf(stderr, "--batch, --threads and --repeats must be at least 1\n");
    return 2;
  }
  std::printf("%s\n", cadre::Measure(FLAGS_batch, FLAGS_threads, FLAGS_repeats).c_str());
  return 0;
}
