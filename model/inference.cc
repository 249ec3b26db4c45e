// Every check stops at the first problem of a layer, because later ones would follow from it. A
// problem names the field of the settings, or no field if the inputs are invalid. Extents are
// checked before they are multiplied: with at most kMaxExtent per dimension and ElementsUpTo for
// products, no model overflows 64 bits.
//
// A window of k taps with dilation d covers r = d (k - 1) + 1 rows. On h rows with padding p on
// both sides and stride s it yields floor((h + 2p - r) / s) + 1 rows (Dumoulin, Visin 2016,
// relationship 15), so trailing rows that do not fill a stride are not covered. Pooling may round
// up (ceil_mode) if the additional window begins before the padding at the end. The window must fit
// into the padded input, and padding of pooling is at most half the kernel, so that every window
// contains at least one input element.
//
// Weights of a convolution are initialized with variance 2 / fan_in (He et al. 2015), where fan_in
// is the number of input channels of a group times the taps. Cost: a multiply-add counts as two
// operations. Limits: square dilations, and square strides of convolutions; sizes are bounded so
// that no product overflows int64_t (kMaxExtent, kMaxElements, kMaxWeights).
#include "model/inference.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre {
namespace {

// Deviation of the rows of embeddings (as in Radford et al. 2019).
constexpr double kEmbeddingStddev = 0.02;

// The deviation of weights that preserve the variance of the input, for layers that no ReLU (which
// halves the variance) follows.
double PlainStddev(int64_t fan_in) { return std::sqrt(1.0 / fan_in); }

constexpr float kEpsilon = 1e-5F;
constexpr float kMomentum = 0.1F;
// Krizhevsky et al. 2012.
constexpr uint32_t kResponseSize = 5;
constexpr float kResponseAlpha = 1e-4F;
constexpr float kResponseBeta = 0.75F;
constexpr float kResponseK = 2.0F;

// The methods for layers return false if they added a problem.
class LayerInference {
 public:
  // Both are borrowed.
  LayerInference(GraphLayer* layer, std::vector<LayerProblem>* problems)
      : layer_(*layer), problems_(*problems) {}

  bool Run() {
    switch (layer_.kind) {
      case LayerKind::kConvolution:
        return Convolution();
      case LayerKind::kMaxPool:
        return Pool(*settings().mutable_max_pool());
      case LayerKind::kAveragePool:
        return Pool(*settings().mutable_average_pool());
      case LayerKind::kGlobalAveragePool:
        return GlobalAveragePool();
      case LayerKind::kFullyConnected:
        return FullyConnected();
      case LayerKind::kRelu:
        return OutputLikeInput(1);
      case LayerKind::kGelu:
        return OutputLikeInput(8);
      case LayerKind::kRelu6:
      case LayerKind::kHardSigmoid:
      case LayerKind::kHardSwish:
        return OutputLikeInput(3);
      case LayerKind::kSilu:
        return OutputLikeInput(5);
      case LayerKind::kMultiply:
        return Multiply();
      case LayerKind::kToTokens:
        return NeedsImage() && Output(Shape{in()[0] * in()[1], in()[2]});
      case LayerKind::kClassToken:
        return ClassToken();
      case LayerKind::kTakeToken:
        return TakeToken();
      case LayerKind::kBias:
        return Bias();
      case LayerKind::kSigmoid:
      case LayerKind::kTanh:
        return OutputLikeInput(4);
      case LayerKind::kBatchNorm:
        return BatchNorm();
      case LayerKind::kLocalResponseNorm:
        return LocalResponseNorm();
      case LayerKind::kDropout:
        return Dropout();
      case LayerKind::kAdd:
        return Add();
      case LayerKind::kConcat:
        return Concat();
      case LayerKind::kFlatten:
        return Flatten();
      case LayerKind::kEmbedding:
        return Embedding();
      case LayerKind::kLayerNorm:
        return LayerNorm();
      case LayerKind::kAttention:
        return Attention();
      case LayerKind::kLstm:
        return Lstm();
      case LayerKind::kDotProductAttention:
        return DotProductAttention();
      case LayerKind::kSoftmaxCrossEntropy:
        return SoftmaxCrossEntropy();
    }
    return false;
  }

 private:
  const Shape& in() const { return layer_.input(); }
  v1::Layer& settings() { return layer_.settings; }

  // Adds a problem of a field of the operation ("": the operation as a whole). Returns false.
  template <typename... Parts>
  bool Problem(absl::string_view field, const Parts&... message) {
    const char* op = LayerKindName(layer_.kind);
    problems_.push_back({layer_.spec_layer, field.empty() ? op : absl::StrCat(op, ".", field),
                         absl::StrCat(message...)});
    return false;
  }

  // Requires a value from 1 to kMaxExtent.
  bool Extent(absl::string_view field, int64_t value) {
    if (value >= 1 && value <= kMaxExtent) return true;
    return Problem(field, "is ", value, "; it must be between 1 and ", kMaxExtent);
  }

  bool AtMostExtent(absl::string_view field, int64_t value) {
    return value <= kMaxExtent || Problem(field, "is ", value, "; it must be at most ", kMaxExtent);
  }

  // Requires a finite value of at least 0.
  bool NotNegative(absl::string_view field, float value) {
    if (std::isfinite(value) && value >= 0.0F) return true;
    return Problem(field, "is ", value, "; it must be a number of at least 0");
  }

  // Requires a value in [0, 1).
  bool Fraction(absl::string_view field, float value) {
    if (value >= 0.0F && value < 1.0F) return true;
    return Problem(field, "is ", value, "; it must be at least 0 and below 1");
  }

  bool NeedsImage() {
    if (in().rank() == 3) return true;
    return Problem("", "requires an image [height, width, channels]; its input is ",
                   in().ToString());
  }

  // Requires an input [features] or [tokens, features]: products and norms of features do not
  // accept images.
  bool NeedsRows() {
    if (in().rank() == 1 || in().rank() == 2) return true;
    return Problem("", "requires [features] or [tokens, features]; its input is the image ",
                   in().ToString());
  }

  bool NeedsInputs(size_t least) {
    if (layer_.inputs.size() >= least) return true;
    return Problem("", "takes ", layer_.inputs.size(), " input",
                   layer_.inputs.size() == 1 ? "" : "s", "; name at least ", least);
  }

  // Sets the output; a problem if it has too many elements.
  bool Output(Shape shape) {
    if (ElementsUpTo(shape, kMaxElements) > kMaxElements) {
      return Problem("", TooManyElements(shape, kMaxElements));
    }
    layer_.output = std::move(shape);
    return true;
  }

  bool OutputLikeInput(int64_t flops_per_element) {
    layer_.output = in();
    layer_.flops = flops_per_element * in().elements();
    return true;
  }

  // Adds a parameter; a problem if it has too many elements.
  bool Weight(const char* name, Shape shape, double stddev) {
    if (ElementsUpTo(shape, kMaxWeights) > kMaxWeights) {
      return Problem("", TooManyElements(shape, kMaxWeights));
    }
    layer_.parameters.push_back({.name = name,
                                 .shape = std::move(shape),
                                 .role = ParameterRole::kWeight,
                                 .initial_stddev = stddev});
    return true;
  }

  void Constant(const char* name, Shape shape, ParameterRole role, float value) {
    layer_.parameters.push_back(
        {.name = name, .shape = std::move(shape), .role = role, .initial_value = value});
  }

  // ---- Convolutions and pooling, and other operations on images

  // Sets kernel and padding of layer_.window, which are given either for both sides or for each.
  template <typename Settings>
  bool KernelAndPadding(const Settings& given) {
    const bool sides = given.kernel_height() != 0 || given.kernel_width() != 0;
    if (given.kernel() != 0 && sides) {
      return Problem("kernel", "cannot be combined with kernel_height or kernel_width");
    }
    const bool padding_of_sides = given.padding_height() != 0 || given.padding_width() != 0;
    if (given.padding() != 0 && padding_of_sides) {
      return Problem("padding", "cannot be combined with padding_height or padding_width");
    }
    Window& window = layer_.window;
    window.kernel_height = sides ? given.kernel_height() : given.kernel();
    window.kernel_width = sides ? given.kernel_width() : given.kernel();
    window.padding_height = padding_of_sides ? given.padding_height() : given.padding();
    window.padding_width = padding_of_sides ? given.padding_width() : given.padding();
    return Extent(sides ? "kernel_height" : "kernel", window.kernel_height) &&
           Extent(sides ? "kernel_width" : "kernel", window.kernel_width) &&
           AtMostExtent(padding_of_sides ? "padding_height" : "padding", window.padding_height) &&
           AtMostExtent(padding_of_sides ? "padding_width" : "padding", window.padding_width);
  }

  // Zero stands for the default 1 of stride, dilation and groups.
  bool Convolution() {
    if (!NeedsImage()) return false;
    v1::Convolution& conv = *settings().mutable_convolution();
    conv.set_stride(std::max(1U, conv.stride()));
    conv.set_dilation(std::max(1U, conv.dilation()));
    conv.set_groups(std::max(1U, conv.groups()));
    if (!Extent("out_channels", conv.out_channels()) || !KernelAndPadding(conv) ||
        !AtMostExtent("stride", conv.stride()) || !AtMostExtent("dilation", conv.dilation())) {
      return false;
    }
    layer_.window.stride_height = layer_.window.stride_width = conv.stride();
    layer_.window.dilation = conv.dilation();
    const int64_t channels = in()[2];
    const int64_t outputs = conv.out_channels();
    layer_.groups = conv.groups();
    if (channels % layer_.groups != 0 || outputs % layer_.groups != 0) {
      return Problem("groups", "is ", layer_.groups, "; it must divide the ", channels,
                     " input channels and the ", outputs, " output channels");
    }
    const bool sides = conv.kernel() == 0;
    if (!SlideWindow(outputs, sides ? "kernel_height" : "kernel",
                     sides ? "kernel_width" : "kernel")) {
      return false;
    }
    const Window& window = layer_.window;
    const Shape weight{outputs, channels / layer_.groups, window.kernel_height,
                       window.kernel_width};
    const double fan_in = weight[1] * weight[2] * weight[3];
    if (!Weight("weight", weight, std::sqrt(2.0 / fan_in))) return false;
    if (!conv.no_bias()) Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
    layer_.flops = 2 * layer_.output[0] * layer_.output[1] * weight.elements();
    return true;
  }

  // By default, windows are adjacent.
  bool PoolingStride(v1::Pooling& pool) {
    Window& window = layer_.window;
    const bool sides = pool.stride_height() != 0 || pool.stride_width() != 0;
    if (pool.stride() != 0 && sides) {
      return Problem("stride", "cannot be combined with stride_height or stride_width");
    }
    if (!sides && window.kernel_height == window.kernel_width) {
      if (pool.stride() == 0) pool.set_stride(window.kernel_height);
    } else if (pool.stride() == 0) {
      if (pool.stride_height() == 0) pool.set_stride_height(window.kernel_height);
      if (pool.stride_width() == 0) pool.set_stride_width(window.kernel_width);
    }
    window.stride_height = pool.stride() != 0 ? pool.stride() : pool.stride_height();
    window.stride_width = pool.stride() != 0 ? pool.stride() : pool.stride_width();
    return AtMostExtent(sides ? "stride_height" : "stride", window.stride_height) &&
           AtMostExtent(sides ? "stride_width" : "stride", window.stride_width);
  }

  bool Pool(v1::Pooling& pool) {
    if (!NeedsImage() || !KernelAndPadding(pool) || !PoolingStride(pool)) return false;
    const Window& window = layer_.window;
    const bool too_high = window.padding_height > window.kernel_height / 2;
    if (too_high || window.padding_width > window.kernel_width / 2) {
      return Problem(pool.padding() != 0 ? "padding"
                     : too_high          ? "padding_height"
                                         : "padding_width",
                     "is ", too_high ? window.padding_height : window.padding_width,
                     "; it must be at most half the kernel, ",
                     (too_high ? window.kernel_height : window.kernel_width) / 2);
    }
    if (pool.count_padding() && layer_.kind == LayerKind::kMaxPool) {
      return Problem("count_padding", "is only valid for average_pool");
    }
    if (pool.count_padding() && pool.ceil_mode()) {
      return Problem("count_padding", "cannot be combined with ceil_mode");
    }
    const bool sides = pool.kernel() == 0;
    if (!SlideWindow(in()[2], sides ? "kernel_height" : "kernel", sides ? "kernel_width" : "kernel",
                     pool.ceil_mode())) {
      return false;
    }
    layer_.flops = layer_.output.elements() * window.kernel_height * window.kernel_width;
    return true;
  }

  // Sets the output from layer_.window. Problems name the two fields.
  bool SlideWindow(int64_t channels, const char* height_field, const char* width_field,
                   bool ceil = false) {
    const Window& window = layer_.window;
    const int64_t height = in()[0] + 2 * window.padding_height;
    const int64_t width = in()[1] + 2 * window.padding_width;
    const bool too_high = window.reach_height() > height;
    if (too_high || window.reach_width() > width) {
      const int64_t kernel = too_high ? window.kernel_height : window.kernel_width;
      const int64_t room = height_field == width_field ? std::min(height, width)
                           : too_high                  ? height
                                                       : width;
      const std::string holes =
          window.dilation == 1 ? "" : absl::StrCat(" with a dilation of ", window.dilation);
      return Problem(too_high ? height_field : width_field, "is ", kernel, holes,
                     ", larger than the padded input of ", height, " x ", width, "; at most ",
                     (room - 1) / window.dilation + 1, " fits");
    }
    // Divides, since the product of all three could overflow.
    if (window.kernel_height * window.kernel_width > kMaxWeights / channels) {
      return Problem(height_field, "is ", window.kernel_height, ", too large for ", channels,
                     " channels");
    }
    return Output(Shape{WindowsAlong(in()[0], window.padding_height, window.reach_height(),
                                     window.stride_height, ceil),
                        WindowsAlong(in()[1], window.padding_width, window.reach_width(),
                                     window.stride_width, ceil),
                        channels});
  }

  bool GlobalAveragePool() {
    layer_.flops = in().elements();
    return NeedsImage() && Output(Shape{in()[2]});
  }

  bool Flatten() { return NeedsImage() && Output(Shape{in().elements()}); }

  // ---- Layers that multiply by matrices, or take rows from them

  // A sequence [tokens, features] is multiplied token by token, with the same weights.
  bool FullyConnected() {
    const v1::FullyConnected& fc = settings().fully_connected();
    if (!NeedsRows() || !Extent("out_features", fc.out_features())) return false;
    const int64_t inputs = in().dims().back();
    const int64_t outputs = fc.out_features();
    std::vector<int64_t> shape = in().dims();
    shape.back() = outputs;
    const Shape weight{outputs, inputs};
    if (ElementsUpTo(weight, kMaxWeights) > kMaxWeights) {
      return Problem("out_features", TooManyElements(weight, kMaxWeights));
    }
    if (!Output(Shape(std::move(shape)))) return false;
    if (layer_.tied_to == GraphLayer::kNotTied &&
        !Weight("weight", weight, std::sqrt(2.0 / inputs))) {
      return false;
    }
    if (!fc.no_bias()) Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
    layer_.flops = 2 * layer_.output.elements() * inputs;
    return true;
  }

  bool Embedding() {
    const v1::Embedding& embedding = settings().embedding();
    if (layer_.inputs[0] != Graph::kInput || in().rank() != 1) {
      return Problem("", "requires the tokens of a model with `tokens`; its input is ",
                     in().ToString());
    }
    if (!Extent("vocabulary", embedding.vocabulary()) ||
        !Extent("features", embedding.features())) {
      return false;
    }
    const int64_t length = in()[0];
    const int64_t features = embedding.features();
    if (!Output(Shape{length, features}) ||
        !Weight("weight", Shape{embedding.vocabulary(), features}, kEmbeddingStddev)) {
      return false;
    }
    if (!embedding.positions()) return true;
    layer_.flops = layer_.output.elements();
    return Weight("positions", Shape{length, features}, kEmbeddingStddev);
  }

  bool NeedsSequence() {
    if (in().rank() == 2) return true;
    return Problem("", "requires a sequence [tokens, features]; its input is ", in().ToString());
  }

  bool ClassToken() {
    return NeedsSequence() && Output(Shape{in()[0] + 1, in()[1]}) &&
           Weight("weight", Shape{in()[1]}, kEmbeddingStddev);
  }

  bool TakeToken() {
    if (!NeedsSequence()) return false;
    const int64_t token = settings().take_token().token();
    const int64_t count = settings().take_token().count();
    if (token >= in()[0]) {
      return Problem("token", "is ", token, "; the sequence has ", in()[0], " tokens");
    }
    if (count > in()[0] - token) {
      return Problem("count", "is ", count, "; from token ", token, " on, the sequence has ",
                     in()[0] - token);
    }
    return Output(count == 0 ? Shape{in()[1]} : Shape{count, in()[1]});
  }

  bool Bias() {
    if (!NeedsRows() || !OutputLikeInput(1)) return false;
    if (!settings().bias().per_token()) {
      Constant("bias", Shape{in().dims().back()}, ParameterRole::kBias, 0);
      return true;
    }
    return NeedsSequence() && Weight("bias", in(), kEmbeddingStddev);
  }

  // The weights of queries, keys and values have the head as first dimension, so that heads, the
  // index along which attention is split, are contiguous.
  bool Attention() {
    const int64_t heads = settings().attention().heads();
    if (!NeedsSequence() || !Extent("heads", heads)) return false;
    const int64_t tokens = in()[0];
    const int64_t features = in()[1];
    if (features % heads != 0) {
      return Problem("heads", "is ", heads, ", which does not divide the ", features, " features");
    }
    const int64_t size = features / heads;
    const double stddev = PlainStddev(features);
    if (!Weight("qkv_weight", Shape{heads, 3, size, features}, stddev)) return false;
    Constant("qkv_bias", Shape{heads, 3, size}, ParameterRole::kBias, 0);
    if (!Weight("out_weight", Shape{features, heads, size}, stddev)) return false;
    Constant("out_bias", Shape{features}, ParameterRole::kBias, 0);
    layer_.output = in();
    // The four projections, and the products with keys and with values.
    layer_.flops = 8 * tokens * features * features + 4 * tokens * tokens * features;
    return true;
  }

  bool DotProductAttention() {
    if (layer_.inputs.size() != 2) {
      return Problem("", "takes ", layer_.inputs.size(),
                     " inputs; name the queries and the source");
    }
    const Shape& source = layer_.input_shapes[1];
    if (in().rank() != 2 || source.rank() != 2 || in()[1] != source[1]) {
      return Problem("",
                     "requires queries [tokens, features] and a source of as many features; its "
                     "inputs are ",
                     in().ToString(), " and ", source.ToString());
    }
    if (ElementsUpTo(Shape{in()[0], source[0]}, kMaxElements) > kMaxElements) {
      return Problem("", TooManyElements(Shape{in()[0], source[0]}, kMaxElements));
    }
    layer_.flops = 4 * in().elements() * source[0];
    return Output(in());
  }

  // Initial values have the variance of those of torch.nn.LSTM, which are uniform in
  // [-1 / sqrt(hidden), 1 / sqrt(hidden)]; that of the bias is the variance of its two biases' sum.
  bool Lstm() {
    const v1::Lstm& lstm = settings().lstm();
    if (!NeedsSequence() || !Extent("hidden", lstm.hidden()) ||
        !AtMostExtent("projection", lstm.projection())) {
      return false;
    }
    const int64_t hidden = lstm.hidden();
    if (lstm.projection() >= hidden) {
      return Problem("projection", "is ", lstm.projection(), "; it must be less than the ", hidden,
                     " hidden features");
    }
    const int64_t tokens = in()[0];
    const int64_t features = in()[1];
    const int64_t outputs = lstm.projection() == 0 ? hidden : lstm.projection();
    const double stddev = std::sqrt(1.0 / (3 * hidden));
    if (ElementsUpTo(Shape{tokens, 4 * hidden}, kMaxElements) > kMaxElements) {
      return Problem("hidden", TooManyElements(Shape{tokens, 4 * hidden}, kMaxElements));
    }
    if (!Output(Shape{tokens, outputs}) ||
        !Weight("input_weight", Shape{4 * hidden, features}, stddev) ||
        !Weight("recurrent_weight", Shape{4 * hidden, outputs}, stddev)) {
      return false;
    }
    Constant("bias", Shape{4 * hidden}, ParameterRole::kBias, 0);
    layer_.parameters.back().initial_stddev = std::sqrt(2.0) * stddev;
    layer_.flops = 2 * tokens * 4 * hidden * (features + outputs);
    if (lstm.projection() == 0) return true;
    layer_.flops += 2 * tokens * hidden * outputs;
    return Weight("projection_weight", Shape{outputs, hidden}, stddev);
  }

  // ---- Norms

  // Mean and variance over samples and positions, per channel; the running statistics are
  // parameters that the optimizer does not change.
  bool BatchNorm() {
    v1::BatchNorm& norm = *settings().mutable_batch_norm();
    if (!NeedsImage() || !NotNegative("epsilon", norm.epsilon())) return false;
    if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
    if (!norm.has_momentum()) norm.set_momentum(kMomentum);
    if (!(norm.momentum() > 0.0F && norm.momentum() <= 1.0F)) {
      return Problem("momentum", "is ", norm.momentum(), "; it must be above 0 and at most 1");
    }
    const Shape channels{in()[2]};
    Constant("scale", channels, ParameterRole::kScale, 1);
    Constant("shift", channels, ParameterRole::kShift, 0);
    Constant("mean", channels, ParameterRole::kRunningMean, 0);
    Constant("variance", channels, ParameterRole::kRunningVariance, 1);
    return OutputLikeInput(7);
  }

  bool LayerNorm() {
    v1::LayerNorm& norm = *settings().mutable_layer_norm();
    if (!NeedsRows() || !NotNegative("epsilon", norm.epsilon())) return false;
    if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
    const Shape features{in().dims().back()};
    if (features.elements() == 1) {
      return Problem("",
                     "normalizes one feature, so that its output would be its shift, whatever "
                     "its input; it needs at least 2 features");
    }
    Constant("scale", features, ParameterRole::kScale, 1);
    Constant("shift", features, ParameterRole::kShift, 0);
    return OutputLikeInput(7);
  }

  // Zero means unset for the size only: zero is a valid alpha, beta and k.
  bool LocalResponseNorm() {
    v1::LocalResponseNorm& norm = *settings().mutable_local_response_norm();
    if (!NeedsImage() || !AtMostExtent("size", norm.size()) ||
        !NotNegative("alpha", norm.alpha()) || !NotNegative("beta", norm.beta()) ||
        !NotNegative("k", norm.k())) {
      return false;
    }
    if (norm.size() == 0) norm.set_size(kResponseSize);
    if (!norm.has_alpha()) norm.set_alpha(kResponseAlpha);
    if (!norm.has_beta()) norm.set_beta(kResponseBeta);
    if (!norm.has_k()) norm.set_k(kResponseK);
    return OutputLikeInput(2 * std::min<int64_t>(norm.size(), in()[2]) + 4);
  }

  // ---- Layers that combine inputs, drop elements, or end the model

  bool Dropout() { return Fraction("rate", settings().dropout().rate()) && OutputLikeInput(1); }

  bool Add() {
    if (!NeedsInputs(2)) return false;
    for (const Shape& shape : layer_.input_shapes) {
      if (shape == in()) continue;
      return Problem("", "adds ", in().ToString(), " and ", shape.ToString(),
                     "; its inputs must have equal shapes");
    }
    return OutputLikeInput(std::ssize(layer_.inputs) - 1);
  }

  // The factor is a whole tensor, or one number per channel of an image.
  bool Multiply() {
    if (layer_.inputs.size() != 2) {
      return Problem("", "takes ", layer_.inputs.size(), " inputs; name two");
    }
    const Shape& factor = layer_.input_shapes[1];
    if (factor != in() && !(in().rank() == 3 && factor == Shape{in()[2]})) {
      return Problem("", "multiplies ", in().ToString(), " by ", factor.ToString(),
                     "; the second input must have the shape of the first, or the channels of an "
                     "image");
    }
    return OutputLikeInput(1);
  }

  // Joins along the last dimension: channels of images, features of rows.
  bool Concat() {
    if (!NeedsInputs(2)) return false;
    std::vector<int64_t> joined = in().dims();
    joined.back() = 0;
    for (const Shape& shape : layer_.input_shapes) {
      std::vector<int64_t> dims = shape.dims();
      const int64_t channels = dims.back();
      dims.back() = joined.back();
      if (dims != joined) {
        return Problem("", "concatenates ", in().ToString(), " and ", shape.ToString(),
                       "; its inputs may only differ in the last dimension");
      }
      joined.back() += channels;
    }
    return Output(Shape(std::move(joined)));
  }

  // Softmax and loss are one layer, so that its gradient is probability minus label, without a
  // division by small probabilities.
  bool SoftmaxCrossEntropy() {
    if (!Fraction("label_smoothing", settings().softmax_cross_entropy().label_smoothing())) {
      return false;
    }
    if (in().rank() == 3) {
      return Problem("", "requires [classes] or [tokens, classes]; its input is the image ",
                     in().ToString(),
                     "; put a fully_connected, global_average_pool or flatten before it");
    }
    if (const int64_t classes = in().dims().back(); classes < 2) {
      return Problem("", "takes ", classes, " features; classes must be at least 2");
    }
    layer_.flops = kLossFlops * in().elements();
    return Output(Shape{1});
  }

  GraphLayer& layer_;
  std::vector<LayerProblem>& problems_;
};

}  // namespace

int64_t WindowsAlong(int64_t in, int64_t padding, int64_t reach, int64_t stride, bool ceil) {
  const int64_t room = in + 2 * padding - reach;
  if (room < 0) return 0;
  const int64_t whole = room / stride + 1;
  const bool another = ceil && room % stride != 0 && whole * stride < in + padding;
  return another ? whole + 1 : whole;
}

std::string TooManyElements(const Shape& shape, int64_t max) {
  return absl::StrCat("makes ", shape.ToString(), ", more than the ", max,
                      " elements that are allowed");
}

// Stops multiplying above the limit; the remaining extents only matter if one of them is 0.
int64_t ElementsUpTo(const Shape& shape, int64_t max) {
  int64_t elements = 1;
  for (const int64_t extent : shape.dims()) {
    if (extent == 0) return 0;
    if (elements > max) continue;
    elements *= extent;
  }
  return elements;
}

bool InferLayer(GraphLayer* layer, std::vector<LayerProblem>* problems) {
  return LayerInference(layer, problems).Run();
}

}  // namespace cadre
