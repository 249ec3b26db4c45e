#include "bench/kernel_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

void FillRandom(std::span<float> values, uint64_t substream, float scale) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * (2 * RandomUniform(1, RandomStream::kTest, substream, i) - 1);
  }
}

double Flop(const ConvolutionDims& d) {
  return 2.0 * static_cast<double>(SizesOf(d).y * d.in_channels / d.groups *
                                   d.window.kernel_height * d.window.kernel_width);
}

double Bytes(const LayerSizes& sizes) {
  return 4.0 * static_cast<double>(sizes.x + sizes.w + sizes.y);
}

WindowDims Square(int64_t height, int64_t width, int64_t kernel, int64_t stride, int64_t padding) {
  return {.in_height = height,
          .in_width = width,
          .out_height = (height + 2 * padding - kernel) / stride + 1,
          .out_width = (width + 2 * padding - kernel) / stride + 1,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .stride = stride,
          .pad_top = padding,
          .pad_left = padding};
}

constexpr int64_t kClasses = 1000;

}  // namespace

Step::Step(Backend& kernels, int64_t batch) : kernels_(kernels), batch_(batch) {}

std::vector<std::string> Step::Models() {
  return {"lenet", "alexnet", "vgg11", "resnet18", "resnet50"};
}

bool Step::Build(absl::string_view model) {
  if (model == "lenet") {
    LeNet();
  } else if (model == "alexnet") {
    AlexNet();
  } else if (model == "vgg11") {
    Vgg11();
  } else if (model == "resnet18") {
    ResNet(/*bottleneck=*/false, {2, 2, 2, 2});
  } else if (model == "resnet50") {
    ResNet(/*bottleneck=*/true, {3, 4, 6, 3});
  } else {
    return false;
  }
  return true;
}

std::vector<Operation> Step::Operations() const {
  std::vector<Operation> all = forward_;
  all.insert(all.end(), backward_.rbegin(), backward_.rend());
  all.insert(all.end(), update_.begin(), update_.end());
  return all;
}

std::span<float> Step::Floats(int64_t n) {
  storage_.push_back(Tensor(Shape{n}));
  return storage_.back().span();
}

Step::Blob* Step::Image(int64_t height, int64_t width, int64_t channels) {
  const int64_t n = batch_ * height * width * channels;
  blobs_.push_back({height, width, channels, Floats(n), Floats(n), {}});
  if (input_ == nullptr) {
    input_ = &blobs_.back();
    FillRandom(blobs_.back().value, 0, 1);
  }
  return &blobs_.back();
}

// Sixteenths keep activations near one through tens of layers.
Step::Blob* Step::Parameter(int64_t n) {
  blobs_.push_back({1, 1, n, Floats(n), Floats(n), Floats(n)});
  Blob* p = &blobs_.back();
  FillRandom(p->value, blobs_.size(), 1.0F / 16);
  parameters_ += n;
  update_.push_back({absl::StrCat(layer_, ".update"), 0, 20.0 * static_cast<double>(n), [this, p] {
                       const SgdStep step{.rate = 1e-6F, .momentum = 0.9F};
                       kernels_.optimizer().Sgd(step, p->gradient, p->value, p->velocity);
                     }});
  return p;
}

void Step::Forward(const std::string& what, double flop, double bytes, std::function<void()> run) {
  forward_.push_back({absl::StrCat(++layer_, ".", what), flop, bytes, std::move(run)});
}

void Step::Backward(const std::string& what, double flop, double bytes, std::function<void()> run) {
  backward_.push_back({absl::StrCat(layer_, ".", what), flop, bytes, std::move(run)});
}

Step::Blob* Step::Convolution(Blob* x, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                              bool bias) {
  const ConvolutionDims d{.batch = batch_,
                          .in_channels = x->channels,
                          .out_channels = out,
                          .window = Square(x->height, x->width, kernel, stride, padding)};
  Blob* y = Image(d.window.out_height, d.window.out_width, out);
  Blob* w = Parameter(SizesOf(d).w);
  Blob* b = Parameter(bias ? out : 0);
  const double flop = Flop(d), bytes = Bytes(SizesOf(d));
  const std::string shape = absl::StrCat(kernel, "x", kernel, "s", stride, " ", x->channels, "->",
                                         out, " at ", d.window.out_height);
  Forward(absl::StrCat("conv.forward ", shape), flop, bytes, [this, d, x, w, b, y] {
    kernels_.window().ConvolutionForward(d, x->value, w->value, b->value, y->value);
  });
  if (x != input_) {
    Backward(absl::StrCat("conv.backward_data ", shape), flop, bytes, [this, d, x, w, y] {
      kernels_.window().ConvolutionBackwardData(d, y->gradient, w->value, x->gradient);
    });
  }
  Backward(absl::StrCat("conv.backward_weights ", shape), flop, bytes, [this, d, x, w, b, y] {
    kernels_.window().ConvolutionBackwardWeights(d, x->value, y->gradient, w->gradient,
                                                 b->gradient);
  });
  return y;
}

Step::Blob* Step::BatchNorm(Blob* x) {
  const RowsDims d{.rows = batch_ * x->height * x->width, .channels = x->channels};
  Blob* y = Image(x->height, x->width, x->channels);
  Blob* scale = Parameter(d.channels);
  Blob* shift = Parameter(d.channels);
  Blob* mean = Image(1, 1, d.channels);
  Blob* inverse = Image(1, 1, d.channels);
  const double bytes = 4.0 * static_cast<double>(x->value.size());
  const auto rows = static_cast<double>(d.rows);
  const auto sums = [this, d, x, mean, inverse, rows] {
    std::vector<double> sums(2 * d.channels);
    kernels_.norm().BatchNormSums(d, x->value, sums);
    for (size_t c = 0; c < sums.size() / 2; ++c) {
      const double m = sums[c] / rows;
      const double variance = sums[sums.size() / 2 + c] / rows - m * m;
      mean->value[c] = static_cast<float>(m);
      inverse->value[c] = static_cast<float>(1 / std::sqrt(std::max(0.0, variance) + 1e-5));
    }
  };
  const auto channels = static_cast<size_t>(d.channels);
  Forward("norm.sums", 0, bytes, sums);
  Forward("norm.forward", 0, 2 * bytes, [this, d, x, y, mean, inverse, scale, shift, channels] {
    kernels_.norm().BatchNormForward(d, x->value, std::span(mean->value).first(channels),
                                     std::span(inverse->value).first(channels), scale->value,
                                     shift->value, y->value);
  });
  const auto backward = [this, d, x, y, mean, inverse, scale, shift, rows, channels] {
    std::vector<double> sums(2 * channels);
    const auto m = std::span<const float>(mean->value).first(channels);
    const auto i = std::span<const float>(inverse->value).first(channels);
    kernels_.norm().BatchNormBackwardSums(d, x->value, y->gradient, m, i, sums);
    for (size_t c = 0; c < channels; ++c) {
      shift->gradient[c] = static_cast<float>(sums[c]);
      scale->gradient[c] = static_cast<float>(sums[channels + c]);
      mean->gradient[c] = static_cast<float>(sums[c] / rows);
      inverse->gradient[c] = static_cast<float>(sums[channels + c] / rows);
    }
    kernels_.norm().BatchNormBackward(d, x->value, y->gradient, m, i, scale->value,
                                      std::span(mean->gradient).first(channels),
                                      std::span(inverse->gradient).first(channels), x->gradient);
  };
  Backward("norm.backward", 0, 5 * bytes, backward);
  return y;
}

// In place, as workers do it.
Step::Blob* Step::Relu(Blob* x) {
  const double bytes = 4.0 * static_cast<double>(x->value.size());
  Forward("relu.forward", 0, 2 * bytes, [this, x] {
    kernels_.pointwise().ActivationForward(Activation::kRelu, x->value, x->value);
  });
  Backward("relu.backward", 0, 3 * bytes, [this, x] {
    kernels_.pointwise().ActivationBackward(Activation::kRelu, x->value, x->gradient, x->gradient);
  });
  return x;
}

Step::Blob* Step::MaxPool(Blob* x, int64_t kernel, int64_t stride, int64_t padding) {
  const PoolingDims d{.kind = PoolKind::kMax,
                      .batch = batch_,
                      .channels = x->channels,
                      .window = Square(x->height, x->width, kernel, stride, padding)};
  Blob* y = Image(d.window.out_height, d.window.out_width, x->channels);
  indices_.emplace_back(y->value.size());
  auto* argmax = &indices_.back();
  const double bytes = 4.0 * static_cast<double>(x->value.size() + 2 * y->value.size());
  Forward("pool.forward", 0, bytes, [this, d, x, y, argmax] {
    kernels_.window().PoolingForward(d, x->value, y->value, *argmax);
  });
  Backward("pool.backward", 0, bytes, [this, d, x, y, argmax] {
    kernels_.window().PoolingBackward(d, y->gradient, *argmax, x->gradient);
  });
  return y;
}

Step::Blob* Step::GlobalPool(Blob* x) {
  Blob* y = Image(1, 1, x->channels);
  const int64_t positions = x->height * x->width;
  const double bytes = 4.0 * static_cast<double>(x->value.size());
  Forward("global_pool.forward", 0, bytes, [this, x, y, positions] {
    kernels_.window().GlobalAveragePoolForward(batch_, positions, x->channels, positions, x->value,
                                               y->value);
  });
  Backward("global_pool.backward", 0, bytes, [this, x, y, positions] {
    kernels_.window().GlobalAveragePoolBackward(batch_, positions, x->channels, positions,
                                                y->gradient, x->gradient);
  });
  return y;
}

// Into the branch; its gradient is then also the shortcut's, to which the block adds its own.
Step::Blob* Step::Add(Blob* branch, Blob* shortcut) {
  const double bytes = 4.0 * static_cast<double>(branch->value.size());
  Forward("add.forward", 0, 3 * bytes,
          [this, branch, shortcut] { kernels_.pointwise().Add(shortcut->value, branch->value); });
  Backward("add.backward", 0, 3 * bytes, [this, branch, shortcut] {
    kernels_.pointwise().Add(branch->gradient, shortcut->gradient);
  });
  return branch;
}

Step::Blob* Step::FullyConnected(Blob* x, int64_t out) {
  const FullyConnectedDims d{.batch = batch_, .in = x->height * x->width * x->channels, .out = out};
  Blob* y = Image(1, 1, out);
  Blob* w = Parameter(d.in * d.out);
  Blob* b = Parameter(d.out);
  const double flop = 2.0 * static_cast<double>(d.batch * d.in * d.out);
  const double bytes = Bytes(SizesOf(d));
  const std::string shape = absl::StrCat(d.in, "->", d.out);
  Forward(absl::StrCat("fc.forward ", shape), flop, bytes, [this, d, x, w, b, y] {
    kernels_.dense().FullyConnectedForward(d, x->value, w->value, b->value, y->value);
  });
  Backward(absl::StrCat("fc.backward_data ", shape), flop, bytes, [this, d, x, w, y] {
    kernels_.dense().FullyConnectedBackwardData(d, y->gradient, w->value, x->gradient);
  });
  Backward(absl::StrCat("fc.backward_weights ", shape), flop, bytes, [this, d, x, w, b, y] {
    kernels_.dense().FullyConnectedBackwardWeights(d, x->value, y->gradient, w->gradient,
                                                   b->gradient);
  });
  return y;
}

void Step::Loss(Blob* x) {
  indices_.emplace_back(batch_);
  auto* labels = &indices_.back();
  for (size_t i = 0; i < labels->size(); ++i) (*labels)[i] = static_cast<int32_t>(i % 10);
  Forward("loss", 0, 8.0 * static_cast<double>(x->value.size()), [this, x, labels] {
    kernels_.pointwise().SoftmaxCrossEntropy(batch_, x->channels, 0, x->value, *labels,
                                             1.0F / static_cast<float>(batch_), x->gradient);
  });
}

void Step::LeNet() {
  Blob* x = Image(28, 28, 1);
  x = MaxPool(Relu(Convolution(x, 32, 3, 1, 1, true)), 2, 2, 0);
  x = MaxPool(Relu(Convolution(x, 64, 3, 1, 1, true)), 2, 2, 0);
  Loss(FullyConnected(Relu(FullyConnected(x, 1024)), 10));
}

void Step::AlexNet() {
  Blob* x = Image(227, 227, 3);
  x = MaxPool(Relu(Convolution(x, 96, 11, 4, 0, true)), 3, 2, 0);
  x = MaxPool(Relu(Convolution(x, 256, 5, 1, 2, true)), 3, 2, 0);
  for (const int64_t width : {384, 384, 256}) x = Relu(Convolution(x, width, 3, 1, 1, true));
  x = MaxPool(x, 3, 2, 0);
  for (int i = 0; i < 2; ++i) x = Relu(FullyConnected(x, 4096));
  Loss(FullyConnected(x, kClasses));
}

void Step::Vgg11() {
  Blob* x = Image(224, 224, 3);
  const std::vector<std::vector<int64_t>> stages{{64}, {128}, {256, 256}, {512, 512}, {512, 512}};
  for (const auto& stage : stages) {
    for (const int64_t width : stage) x = Relu(Convolution(x, width, 3, 1, 1, true));
    x = MaxPool(x, 2, 2, 0);
  }
  for (int i = 0; i < 2; ++i) x = Relu(FullyConnected(x, 4096));
  Loss(FullyConnected(x, kClasses));
}

Step::Blob* Step::Residual(Blob* x, bool bottleneck, int64_t width, int64_t stride) {
  const int64_t out = bottleneck ? 4 * width : width;
  Blob* shortcut = x;
  if (stride != 1 || x->channels != out) {
    shortcut = BatchNorm(Convolution(x, out, 1, stride, 0, false));
  }
  Blob* y = x;
  if (bottleneck) {
    y = Relu(BatchNorm(Convolution(y, width, 1, 1, 0, false)));
    y = Relu(BatchNorm(Convolution(y, width, 3, stride, 1, false)));
    y = BatchNorm(Convolution(y, out, 1, 1, 0, false));
  } else {
    y = Relu(BatchNorm(Convolution(y, width, 3, stride, 1, false)));
    y = BatchNorm(Convolution(y, width, 3, 1, 1, false));
  }
  return Relu(Add(y, shortcut));
}

void Step::ResNet(bool bottleneck, const std::vector<int>& depths) {
  Blob* x = Image(224, 224, 3);
  x = MaxPool(Relu(BatchNorm(Convolution(x, 64, 7, 2, 3, false))), 3, 2, 1);
  int64_t width = 64;
  for (size_t stage = 0; stage < depths.size(); ++stage, width *= 2) {
    for (int block = 0; block < depths[stage]; ++block) {
      x = Residual(x, bottleneck, width, stage > 0 && block == 0 ? 2 : 1);
    }
  }
  Loss(FullyConnected(GlobalPool(x), kClasses));
}

}  // namespace cadre
