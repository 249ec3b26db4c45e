#include "tests/equivalence/random_model.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/graph.h"
#include "model/ops/inference.h"

namespace cadre {
namespace {

class Builder {
 public:
  explicit Builder(uint64_t seed) : random_(seed) {}

  v1::RunSpec Run() {
    spec_.set_name("random");
    spec_.set_seed(random_());
    spec_.set_batch_per_group(UpTo(1, 6));
    if (Chance(4)) spec_.set_micro_batches(std::min(2U, spec_.batch_per_group()));
    auto* sgd = spec_.mutable_optimizer()->mutable_sgd();
    sgd->set_momentum(0.5F);
    sgd->set_nesterov(Chance(2));
    sgd->set_weight_decay(0.01F);
    if (Chance(3)) spec_.mutable_optimizer()->set_clip_norm(0.5F);
    if (Chance(5)) {
      Sequence();
    } else if (Chance(8)) {
      Translation();
    } else {
      Images();
    }
    auto* loss = Append("loss");
    loss->mutable_softmax_cross_entropy()->set_label_smoothing(Chance(2) ? 0.1F : 0.0F);
    return std::move(spec_);
  }

 private:
  // A random number in [min, max].
  uint32_t UpTo(uint32_t min, uint32_t max) { return min + random_() % (max - min + 1); }
  // True with probability 1 / n.
  bool Chance(uint32_t n) { return random_() % n == 0; }

  v1::Layer* Append(const std::string& kind) {
    v1::Layer* layer = spec_.mutable_model()->add_layer();
    layer->set_name(absl::StrCat(kind, spec_.model().layer_size()));
    return layer;
  }
  std::string LastName() const {
    return spec_.model().layer_size() == 0
               ? "input"
               : spec_.model().layer(spec_.model().layer_size() - 1).name();
  }

  void Activation() {
    v1::Layer* layer = Append("act");
    switch (random_() % 8) {
      case 0:
        layer->mutable_relu();
        break;
      case 1:
        layer->mutable_gelu()->set_approximate(Chance(2));
        break;
      case 3:
        layer->mutable_relu6();
        break;
      case 4:
        layer->mutable_hard_swish();
        break;
      case 5:
        layer->mutable_hard_sigmoid();
        break;
      case 6:
        layer->mutable_silu();
        break;
      case 2:
        layer->mutable_sigmoid();
        break;
      default:
        layer->mutable_tanh();
    }
  }

  // Keeps height and width, or reduces them to at least one.
  void Convolution(bool keep_size) {
    auto* convolution = Append("conv")->mutable_convolution();
    const uint32_t kernel_height = keep_size ? 2 * UpTo(0, 1) + 1 : UpTo(1, std::min(4U, height_));
    const uint32_t kernel_width = keep_size ? 2 * UpTo(0, 1) + 1 : UpTo(1, std::min(4U, width_));
    convolution->set_kernel_height(kernel_height);
    convolution->set_kernel_width(kernel_width);
    convolution->set_padding_height(kernel_height / 2);
    convolution->set_padding_width(kernel_width / 2);
    uint32_t dilation = 1;
    uint32_t stride = 1;
    if (!keep_size) {
      stride = UpTo(1, 3);
      if (height_ > 6 && width_ > 6) dilation = UpTo(1, 2);
      convolution->set_stride(stride);
      convolution->set_dilation(dilation);
    }
    const uint32_t groups = channels_ % 2 == 0 && Chance(3) ? 2 : 1;
    convolution->set_groups(groups);
    convolution->set_no_bias(Chance(3));
    if (!keep_size || groups > 1) channels_ = groups * UpTo(1, 4);
    convolution->set_out_channels(channels_);
    height_ = WindowsAlong(height_, kernel_height / 2, dilation * (kernel_height - 1) + 1, stride);
    width_ = WindowsAlong(width_, kernel_width / 2, dilation * (kernel_width - 1) + 1, stride);
  }

  void Pool() {
    v1::Layer* layer = Append("pool");
    const bool max = Chance(2);
    auto* pool = max ? layer->mutable_max_pool() : layer->mutable_average_pool();
    pool->set_kernel_height(UpTo(1, std::min(3U, height_)));
    pool->set_kernel_width(UpTo(1, std::min(3U, width_)));
    pool->set_stride_height(UpTo(1, 2));
    pool->set_stride_width(UpTo(1, 2));
    pool->set_padding_height(UpTo(0, pool->kernel_height() / 2));
    pool->set_padding_width(UpTo(0, pool->kernel_width() / 2));
    pool->set_ceil_mode(Chance(3));
    if (!max && !pool->ceil_mode()) pool->set_count_padding(Chance(2));
    height_ = WindowsAlong(height_, pool->padding_height(), pool->kernel_height(),
                           pool->stride_height(), pool->ceil_mode());
    width_ = WindowsAlong(width_, pool->padding_width(), pool->kernel_width(), pool->stride_width(),
                          pool->ceil_mode());
  }

  // A layer that does not change the shape.
  void SameShape() {
    switch (random_() % 5) {
      case 0:
        Append("bn")->mutable_batch_norm();
        break;
      case 1:
        Append("lrn")->mutable_local_response_norm()->set_alpha(0.1F);
        break;
      case 2:
        Append("drop")->mutable_dropout()->set_rate(0.3F);
        break;
      default:
        Activation();
    }
  }

  // Two paths that join again.
  void Branch() {
    const std::string from = LastName();
    const uint32_t channels = channels_;
    const bool multiply = Chance(4);
    const bool add = multiply || Chance(2);
    Convolution(/*keep_size=*/true);
    if (add) {
      auto* last = spec_.mutable_model()->mutable_layer(spec_.model().layer_size() - 1);
      last->mutable_convolution()->set_groups(1);
      last->mutable_convolution()->set_out_channels(channels);
      channels_ = channels;
    }
    if (Chance(2)) SameShape();
    // A factor for each channel, as in squeeze-and-excitation.
    if (multiply && Chance(2)) Append("squeeze")->mutable_global_average_pool();
    const std::string one = LastName();
    v1::Layer* joined = Append(multiply ? "multiply" : add ? "add" : "concat");
    joined->add_input(from);
    joined->add_input(one);
    if (multiply) {
      joined->mutable_multiply();
    } else if (add) {
      joined->mutable_add();
    } else {
      joined->mutable_concat();
      channels_ += channels;
    }
  }

  void Images() {
    channels_ = UpTo(1, 3);
    height_ = UpTo(4, 11);
    width_ = UpTo(4, 11);
    auto* input = spec_.mutable_model()->mutable_input();
    input->set_channels(channels_);
    input->set_height(height_);
    input->set_width(width_);
    Convolution(/*keep_size=*/false);
    const uint32_t layers = UpTo(1, 6);
    for (uint32_t i = 0; i < layers; ++i) {
      switch (random_() % 4) {
        case 0:
          Convolution(/*keep_size=*/false);
          break;
        case 1:
          Pool();
          break;
        case 2:
          Branch();
          break;
        default:
          SameShape();
      }
    }
    if (Chance(3)) {
      Append("global")->mutable_global_average_pool();
    } else if (Chance(4)) {
      TokensOfImage();
    }
    FullyConnected(UpTo(2, 9));
    if (Chance(2)) {
      Activation();
      FullyConnected(UpTo(2, 6));
    }
  }

  // As in a vision transformer.
  void TokensOfImage() {
    Append("tokens")->mutable_to_tokens();
    const bool learned = Chance(2);
    if (learned) Append("class")->mutable_class_token();
    Append("bias")->mutable_bias()->set_per_token(Chance(2));
    Residual([&] { Append("attention")->mutable_attention()->set_heads(1); });
    const uint32_t tokens = height_ * width_ + (learned ? 1 : 0);
    Append("take")->mutable_take_token()->set_token(UpTo(0, tokens - 1));
  }

  void FullyConnected(uint32_t out) {
    auto* layer = Append("fc")->mutable_fully_connected();
    layer->set_out_features(out);
    layer->set_no_bias(Chance(4));
  }

  void Lstm(uint32_t outputs) {
    auto* lstm = Append("lstm")->mutable_lstm();
    const bool projects = Chance(2);
    lstm->set_hidden(outputs + (projects ? UpTo(1, 3) : 0));
    if (projects) lstm->set_projection(outputs);
    lstm->set_reverse(Chance(2));
  }

  // Recurrent layers on a source and a target, with attention between them.
  void Translation() {
    const uint32_t source = UpTo(1, 4), target = UpTo(1, 4), features = UpTo(1, 5);
    spec_.mutable_model()->mutable_tokens()->set_length(source + target);
    auto* embedding = Append("embed")->mutable_embedding();
    embedding->set_vocabulary(UpTo(2, 8));
    embedding->set_features(UpTo(1, 5));
    const std::string embedded = LastName();
    Append("source")->mutable_take_token()->set_count(source);
    Lstm(features);
    if (Chance(2)) {
      const std::string before = LastName();
      Lstm(features);
      const std::string branch = LastName();
      v1::Layer* sum = Append("add");
      sum->add_input(before);
      sum->add_input(branch);
      sum->mutable_add();
    }
    const std::string encoded = LastName();
    v1::Layer* taken = Append("target");
    taken->add_input(embedded);
    taken->mutable_take_token()->set_token(source);
    taken->mutable_take_token()->set_count(target);
    Lstm(features);
    const std::string decoded = LastName();
    v1::Layer* context = Append("context");
    context->add_input(decoded);
    context->add_input(encoded);
    context->mutable_dot_product_attention();
    v1::Layer* joined = Append("concat");
    joined->add_input(decoded);
    joined->add_input(context->name());
    joined->mutable_concat();
    if (Chance(2)) Lstm(UpTo(1, 4));
    FullyConnected(UpTo(2, 6));
  }

  // Pre-norm transformer blocks.
  void Sequence() {
    const uint32_t heads = UpTo(1, 3);
    // A layer norm needs two features.
    const uint32_t features = std::max<uint32_t>(2, heads * UpTo(1, 3));
    spec_.mutable_model()->mutable_tokens()->set_length(UpTo(1, 6));
    auto* embedding = Append("embed")->mutable_embedding();
    embedding->set_vocabulary(UpTo(2, 8));
    embedding->set_features(features);
    embedding->set_positions(Chance(2));
    const uint32_t blocks = UpTo(1, 2);
    for (uint32_t i = 0; i < blocks; ++i) {
      Residual([&] {
        auto* attention = Append("attention")->mutable_attention();
        attention->set_heads(heads);
        attention->set_causal(Chance(2));
      });
      Residual([&] {
        FullyConnected(UpTo(1, 8));
        Activation();
        if (Chance(2)) Append("drop")->mutable_dropout()->set_rate(0.2F);
        FullyConnected(features);
      });
    }
    if (Chance(2)) {
      Append("head")->mutable_fully_connected()->set_tied_to(spec_.model().layer(0).name());
    } else {
      FullyConnected(UpTo(2, 6));
    }
  }

  void Residual(const std::function<void()>& inside) {
    const std::string from = LastName();
    Append("norm")->mutable_layer_norm();
    inside();
    const std::string branch = LastName();
    v1::Layer* sum = Append("add");
    sum->add_input(from);
    sum->add_input(branch);
    sum->mutable_add();
  }

  std::mt19937_64 random_;
  v1::RunSpec spec_;
  uint32_t channels_ = 0;
  uint32_t height_ = 0;
  uint32_t width_ = 0;
};

}  // namespace

v1::RunSpec RandomRun(uint64_t seed) {
  // Small images can become empty; then another model is drawn.
  for (uint64_t salt = 0;; ++salt) {
    v1::RunSpec spec = Builder(seed * 1000003 + salt).Run();
    if (Graph::FromModel(spec.model()).ok()) return spec;
  }
}

}  // namespace cadre
