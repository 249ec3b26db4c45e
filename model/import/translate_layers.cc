// The operators that become layers.
//
// ONNX images are [samples, channels, height, width]; the engine's are channels-last, with weights
// in ONNX's order. So only three things need care: an image that becomes rows (in the order of the
// channels, or as tokens), rows in another order of samples and tokens, and the weights of
// attention, whose parts come from one, two or three projections.
//
// Attention. The product of queries and keys names two views of outputs of projections; the views
// state from which row, and which feature of a row, the element of a head comes. Reading the
// projections' weights through the same strides gives the engine's weights [heads, 3, head features,
// features], whatever order of heads, queries, keys and values the framework has.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/import/translator.h"

namespace cadre {
namespace {

std::vector<Value> One(Value value) { return {std::move(value)}; }

Draft ImageDraft(int input, int64_t channels, int64_t height, int64_t width) {
  Draft draft;
  draft.inputs = {input};
  draft.form = Draft::Form::kImage;
  draft.channels = channels, draft.height = height, draft.width = width;
  return draft;
}

// The same number in all elements, which must be at least `min` and small.
absl::StatusOr<uint32_t> Alike(const std::vector<int64_t>& numbers, int64_t min, const char* what) {
  for (const int64_t number : numbers) {
    if (number < min || number > (1 << 20) || number != numbers[0]) {
      return Unsupported(absl::StrCat("its ", what, " must be equal in both directions"));
    }
  }
  if (numbers.empty()) return Unsupported(absl::StrCat("it has no ", what));
  return static_cast<uint32_t>(numbers[0]);
}

// Padding that is equal at both ends of each dimension: height, width.
absl::StatusOr<std::pair<uint32_t, uint32_t>> PaddingOf(const Attributes& attributes) {
  const std::string automatic = attributes.Text("auto_pad", "NOTSET");
  const std::vector<int64_t> pads = attributes.Integers("pads", {0, 0, 0, 0});
  if (automatic == "VALID") return std::pair<uint32_t, uint32_t>(0, 0);
  if (automatic != "NOTSET" || pads.size() != 4 || pads[0] != pads[2] || pads[1] != pads[3] ||
      pads[0] < 0 || pads[1] < 0 || pads[0] > (1 << 20) || pads[1] > (1 << 20)) {
    return Unsupported("its padding must be equal at opposite sides");
  }
  return std::pair<uint32_t, uint32_t>(pads[0], pads[1]);
}

int64_t OutputExtent(int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                     int64_t dilation) {
  const int64_t reach = dilation * (kernel - 1) + 1;
  return in + 2 * padding < reach ? 0 : (in + 2 * padding - reach) / stride + 1;
}

DraftParameter ParameterOf(const char* name, Shape shape, int initializer, View original) {
  View whole(shape.dims());
  return {.name = name, .shape = std::move(shape), .pieces = {{initializer, original, whole}}};
}

}  // namespace

const std::map<std::string, Translator::Rule>& Translator::Rules() {
  static const auto& rules = *new std::map<std::string, Rule>{
      {"Conv", &Translator::Convolution},
      {"MaxPool", &Translator::Pool},
      {"AveragePool", &Translator::Pool},
      {"GlobalAveragePool", &Translator::GlobalPool},
      {"ReduceMean", &Translator::Mean},
      {"BatchNormalization", &Translator::BatchNorm},
      {"LayerNormalization", &Translator::LayerNorm},
      {"LRN", &Translator::ResponseNorm},
      {"Gemm", &Translator::Gemm},
      {"MatMul", &Translator::MatMul},
      {"Gather", &Translator::Gather},
      {"Concat", &Translator::Concat},
      {"Clip", &Translator::Clip},
      {"Dropout", &Translator::Dropout},
      {"Softmax", &Translator::Softmax},
  };
  return rules;
}

// --- Access to activations ---

int Translator::AddDraft(Draft draft) {
  drafts_.push_back(std::move(draft));
  return static_cast<int>(drafts_.size()) - 1;
}

Value Translator::Whole(int draft) const {
  const Draft& of = drafts_[draft];
  Value value{.kind = Value::Kind::kActivation, .root = draft};
  switch (of.form) {
    case Draft::Form::kTokens:
      value.view = View({batch_, of.tokens});
      break;
    case Draft::Form::kImage:
      value.view = View({batch_, of.channels, of.height, of.width});
      break;
    case Draft::Form::kRows:
      value.view = View({batch_, of.tokens, of.features});
      break;
    case Draft::Form::kFeatures:
      value.view = View({batch_, of.features});
      break;
  }
  return value;
}

absl::StatusOr<Value> Translator::Image(const Value& value) {
  CADRE_ASSIGN_OR_RETURN(Value plain, Plain(value));
  const Draft& draft = drafts_[plain.root];
  if (draft.form == Draft::Form::kImage && plain.view == Whole(plain.root).view) return plain;
  return Unsupported("its input is not an image [samples, channels, height, width]");
}

absl::StatusOr<Value> Translator::Rows(const Value& value) {
  CADRE_ASSIGN_OR_RETURN(Value plain, Plain(value));
  const absl::Status misfit =
      Unsupported("its input is not rows of features [samples, features] or [samples, tokens, "
                  "features]");
  if (plain.view.rank() < 2 || plain.view.elements() == 0) return misfit;
  const int last = plain.view.rank() - 1;
  const Draft draft = drafts_[plain.root];
  if (draft.form == Draft::Form::kTokens) return misfit;
  if (draft.form == Draft::Form::kImage) {
    const int64_t elements = draft.elements(), positions = draft.height * draft.width;
    if (plain.view.IsWhole() && plain.view.size(last) == elements) {
      Draft flatten;
      flatten.layer.mutable_flatten();
      flatten.inputs = {plain.root};
      flatten.features = elements;
      const std::pair<int, std::string> key(plain.root, "flatten");
      if (activations_.count(key) == 0) activations_[key] = AddDraft(flatten);
      plain.root = activations_[key];
      return plain;
    }
    if (plain.view.offset() != 0 || plain.view.size(last) != draft.channels) return misfit;
    // Samples move by whole images, positions by one, channels by the positions of an image.
    std::vector<Factor> channel = plain.view.factors(last);
    if (draft.channels > 1 && (channel.size() != 1 || channel[0].stride != positions)) {
      return misfit;
    }
    std::vector<std::vector<Factor>> dims;
    std::vector<Factor> flat;
    std::vector<int64_t> sizes;
    for (int d = 0; d < last; ++d) {
      sizes.push_back(plain.view.size(d));
      for (Factor factor : plain.view.factors(d)) {
        if (factor.stride % elements != 0) {
          if (factor.stride >= positions) return misfit;
          factor.stride *= draft.channels;
        }
        flat.push_back(factor);
      }
    }
    flat.push_back({draft.channels, 1});
    sizes.push_back(draft.channels);
    const auto view = View(flat, 0).Reshaped(sizes);
    if (!view) return misfit;
    Draft tokens;
    tokens.layer.mutable_to_tokens();
    tokens.inputs = {plain.root};
    tokens.form = Draft::Form::kRows;
    tokens.tokens = positions;
    tokens.features = draft.channels;
    const std::pair<int, std::string> key(plain.root, "tokens");
    if (activations_.count(key) == 0) activations_[key] = AddDraft(tokens);
    plain.root = activations_[key];
    plain.view = *view;
    return Rows(plain);
  }
  const int64_t features = draft.features;
  if (plain.view.size(last) != features) return misfit;
  if (features > 1 && plain.view.factors(last) != std::vector<Factor>{{features, 1}}) return misfit;
  std::vector<Factor> leading;
  for (int d = 0; d < last; ++d) {
    for (const Factor& factor : plain.view.factors(d)) leading.push_back(factor);
  }
  std::sort(leading.begin(), leading.end(),
            [](const Factor& a, const Factor& b) { return a.stride > b.stride; });
  const View rows(leading, 0);
  const std::vector<Factor> all = rows.FactorsOf(0, rows.rank());
  const int64_t count = batch_ * draft.tokens;
  const bool whole = count == 1 ? all.empty() : all == std::vector<Factor>{{count, features}};
  if (whole && plain.view.offset() == 0) return plain;
  // One token of each sample.
  const bool samples = batch_ == 1 ? all.empty()
                                   : all == std::vector<Factor>{{batch_, draft.tokens * features}};
  if (!samples || draft.context || plain.view.offset() % features != 0 ||
      plain.view.offset() >= draft.tokens * features) {
    return misfit;
  }
  Draft token;
  token.layer.mutable_take_token()->set_token(plain.view.offset() / features);
  token.inputs = {plain.root};
  token.features = features;
  plain.root = AddDraft(std::move(token));
  const std::vector<int64_t> sizes = plain.view.sizes();
  plain.view = *Whole(plain.root).view.Reshaped(sizes);
  return plain;
}

Value Translator::OnRows(const Value& x, Draft draft, int64_t features) {
  const Draft& before = drafts_[x.root];
  draft.inputs = {x.root};
  draft.form = before.form;
  draft.tokens = before.tokens;
  draft.features = features;
  Value result = x;
  result.view =
      x.view.WithLast({1, 0}).Scaled(features, before.features).WithLast({features, 1});
  result.root = AddDraft(std::move(draft));
  return result;
}

absl::StatusOr<DraftParameter> Translator::WholeParameter(const char* name, const Shape& shape,
                                                          const Value& value) const {
  if (!value.is_parameter()) {
    return Unsupported(absl::StrCat("its ", name,
                                    " is not a parameter of the model but computed from others"));
  }
  if (value.view.elements() != shape.elements()) {
    return Unsupported(absl::StrCat("its ", name, " has ", value.view.elements(),
                                    " elements instead of ", shape.ToString()));
  }
  return ParameterOf(name, shape, value.root, value.view);
}

// --- Images ---

Translator::Results Translator::Convolution(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  if (in.size() < 2 || !in[1].is_parameter()) {
    return Unsupported("its weight is not a parameter of the model but computed from others");
  }
  const std::vector<int64_t> weight = in[1].view.sizes();
  if (weight.size() != 4 || weight[2] < 1 || weight[3] < 1) {
    return Unsupported("only convolutions in two dimensions are supported");
  }
  CADRE_ASSIGN_OR_RETURN(const uint32_t stride,
                         Alike(attributes.Integers("strides", {1, 1}), 1, "strides"));
  CADRE_ASSIGN_OR_RETURN(const uint32_t dilation,
                         Alike(attributes.Integers("dilations", {1, 1}), 1, "dilations"));
  CADRE_ASSIGN_OR_RETURN(const auto padding, PaddingOf(attributes));
  const int64_t groups = attributes.Integer("group", 1);
  // The result of global pooling is [features] here: a convolution of one position.
  CADRE_ASSIGN_OR_RETURN(const Value plain, Plain(in[0]));
  const Draft before = drafts_[plain.root];
  if (before.form == Draft::Form::kFeatures && plain.view.rank() == 4 && weight[2] == 1 &&
      weight[3] == 1 && groups == 1 && stride == 1 && padding == std::pair(0U, 0U)) {
    Value x = plain, w = in[1];
    const auto rows = x.view.Reshaped({batch_, before.features});
    if (!rows || weight[1] != before.features) return Unsupported("its weight does not fit");
    x.view = *rows;
    w.view = *w.view.Reshaped({weight[0], weight[1]});
    CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(x, w));
    if (in.size() > 2) {
      CADRE_ASSIGN_OR_RETURN(y, AddParameter(y, in[2]));
    }
    y.view = *y.view.Reshaped({batch_, weight[0], 1, 1});
    return One(y);
  }
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(plain));
  if (groups < 1 || before.channels != weight[1] * groups || weight[0] % groups != 0) {
    return Unsupported("its weight does not fit the channels of the input");
  }
  Draft draft = ImageDraft(x.root, weight[0],
                           OutputExtent(before.height, weight[2], stride, padding.first, dilation),
                           OutputExtent(before.width, weight[3], stride, padding.second, dilation));
  if (draft.elements() <= 0) return Unsupported("its kernel is larger than the padded input");
  v1::Convolution& conv = *draft.layer.mutable_convolution();
  conv.set_out_channels(weight[0]);
  if (weight[2] == weight[3]) {
    conv.set_kernel(weight[2]);
  } else {
    conv.set_kernel_height(weight[2]);
    conv.set_kernel_width(weight[3]);
  }
  if (stride != 1) conv.set_stride(stride);
  if (padding.first == padding.second) {
    conv.set_padding(padding.first);
  } else {
    conv.set_padding_height(padding.first);
    conv.set_padding_width(padding.second);
  }
  if (dilation != 1) conv.set_dilation(dilation);
  if (groups != 1) conv.set_groups(groups);
  CADRE_ASSIGN_OR_RETURN(DraftParameter kernel, WholeParameter("weight", Shape(weight), in[1]));
  draft.parameters.push_back(std::move(kernel));
  if (in.size() > 2) {
    CADRE_ASSIGN_OR_RETURN(DraftParameter bias, WholeParameter("bias", Shape{weight[0]}, in[2]));
    draft.parameters.push_back(std::move(bias));
  } else {
    conv.set_no_bias(true);
  }
  return One(Whole(AddDraft(std::move(draft))));
}

Translator::Results Translator::Pool(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const uint32_t kernel,
                         Alike(attributes.Integers("kernel_shape", {}), 1, "kernel_shape"));
  CADRE_ASSIGN_OR_RETURN(const uint32_t stride,
                         Alike(attributes.Integers("strides", {1, 1}), 1, "strides"));
  CADRE_ASSIGN_OR_RETURN(const auto padding, PaddingOf(attributes));
  if (padding.first != padding.second) return Unsupported("its padding must be equal on all sides");
  CADRE_ASSIGN_OR_RETURN(const uint32_t dilation,
                         Alike(attributes.Integers("dilations", {1, 1}), 1, "dilations"));
  if (dilation != 1) return Unsupported("dilations are not supported");
  if (node.output_size() > 1 && !node.output(1).empty()) {
    return Unsupported("the positions of the largest elements are not supported as an output");
  }
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  const Draft before = drafts_[x.root];
  const bool average = node.op_type() == "AveragePool";
  if (average && kernel == 1 && stride == 1) return One(x);
  const int64_t height = OutputExtent(before.height, kernel, stride, padding.first, 1);
  const int64_t width = OutputExtent(before.width, kernel, stride, padding.first, 1);
  const auto leaves = [&](int64_t extent) {
    return extent + 2 * padding.first >= kernel &&
           (extent + 2 * padding.first - kernel) % stride != 0;
  };
  if (attributes.Integer("ceil_mode", 0) != 0 && (leaves(before.height) || leaves(before.width))) {
    return Unsupported("ceil_mode is only supported where it does not add an output");
  }
  Draft draft = ImageDraft(x.root, before.channels, height, width);
  if (draft.elements() <= 0) return Unsupported("its window is larger than the padded input");
  v1::Pooling& pool =
      average ? *draft.layer.mutable_average_pool() : *draft.layer.mutable_max_pool();
  pool.set_kernel(kernel);
  pool.set_stride(stride);
  pool.set_padding(padding.first);
  if (average && padding.first != 0) {
    pool.set_count_padding(attributes.Integer("count_include_pad", 0) != 0);
  }
  return One(Whole(AddDraft(std::move(draft))));
}

Translator::Results Translator::GlobalPool(const onnx::Node& /*node*/,
                                           const std::vector<Value>& in) {
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  Draft draft;
  draft.layer.mutable_global_average_pool();
  draft.inputs = {x.root};
  draft.features = drafts_[x.root].channels;
  Value y = Whole(AddDraft(std::move(draft)));
  y.view = *y.view.Reshaped({batch_, drafts_[y.root].features, 1, 1});
  return One(y);
}

Translator::Results Translator::Mean(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  std::vector<int64_t> axes = attributes.Integers("axes", {});
  if (in.size() > 1) {
    const auto given = AsIntegers(in[1]);
    if (given) axes = *given;
  }
  for (int64_t& axis : axes) axis += axis < 0 ? in[0].view.rank() : 0;
  std::sort(axes.begin(), axes.end());
  if (in[0].view.rank() != 4 || axes != std::vector<int64_t>{2, 3}) {
    return Unsupported("only the mean over height and width of images is supported");
  }
  CADRE_ASSIGN_OR_RETURN(std::vector<Value> results, GlobalPool(node, in));
  if (attributes.Integer("keepdims", 1) == 0) {
    results[0].view = *results[0].view.Reshaped({batch_, results[0].view.size(1)});
  }
  return results;
}

Translator::Results Translator::BatchNorm(const onnx::Node& node, const std::vector<Value>& in) {
  if (in.size() != 5) return Unsupported("needs five inputs");
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  const Draft before = drafts_[x.root];
  Draft draft = ImageDraft(x.root, before.channels, before.height, before.width);
  v1::BatchNorm& norm = *draft.layer.mutable_batch_norm();
  norm.set_epsilon(attributes.Number("epsilon", 1e-5));
  // ONNX states the weight of the old statistics.
  const float momentum = 1 - attributes.Number("momentum", 0.9);
  norm.set_momentum(std::round(momentum * 1e6F) / 1e6F);
  const char* const names[] = {"scale", "shift", "mean", "variance"};
  for (int i = 0; i < 4; ++i) {
    CADRE_ASSIGN_OR_RETURN(DraftParameter parameter,
                           WholeParameter(names[i], Shape{before.channels}, in[i + 1]));
    draft.parameters.push_back(std::move(parameter));
  }
  return One(Whole(AddDraft(std::move(draft))));
}

Translator::Results Translator::ResponseNorm(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  const Draft before = drafts_[x.root];
  const int64_t size = attributes.Integer("size", 0);
  if (size < 1 || size > (1 << 20)) return Unsupported("its attribute size is not a positive number");
  Draft draft = ImageDraft(x.root, before.channels, before.height, before.width);
  v1::LocalResponseNorm& norm = *draft.layer.mutable_local_response_norm();
  norm.set_size(size);
  norm.set_alpha(attributes.Number("alpha", 1e-4));
  norm.set_beta(attributes.Number("beta", 0.75));
  norm.set_k(attributes.Number("bias", 1));
  return One(Whole(AddDraft(std::move(draft))));
}

// --- Rows ---

Translator::Results Translator::LayerNorm(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  int64_t axis = attributes.Integer("axis", -1);
  axis += axis < 0 ? in[0].view.rank() : 0;
  if (axis != in[0].view.rank() - 1) return Unsupported("only norms of the last dimension work");
  if (in.size() != 3) return Unsupported("needs a scale and a bias");
  CADRE_ASSIGN_OR_RETURN(const Value x, Rows(in[0]));
  const int64_t features = drafts_[x.root].features;
  if (drafts_[x.root].context) return Unsupported("the attention before it has no projection");
  Draft draft;
  draft.layer.mutable_layer_norm()->set_epsilon(attributes.Number("epsilon", 1e-5));
  CADRE_ASSIGN_OR_RETURN(DraftParameter scale, WholeParameter("scale", Shape{features}, in[1]));
  CADRE_ASSIGN_OR_RETURN(DraftParameter shift, WholeParameter("shift", Shape{features}, in[2]));
  draft.parameters = {std::move(scale), std::move(shift)};
  return One(OnRows(x, std::move(draft), features));
}

Translator::Results Translator::Gemm(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  if (in.size() < 2 || attributes.Number("alpha", 1) != 1 || attributes.Integer("transA", 0) != 0 ||
      (in.size() > 2 && attributes.Number("beta", 1) != 1)) {
    return Unsupported("only alpha = beta = 1 and transA = 0 are supported");
  }
  Value weight = in[1];
  if (weight.view.rank() != 2) return Unsupported("its weight is not a matrix");
  if (attributes.Integer("transB", 0) == 0) weight.view = weight.view.Transposed({1, 0});
  CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(in[0], weight));
  if (in.size() > 2) {
    CADRE_ASSIGN_OR_RETURN(y, AddParameter(y, in[2]));
  }
  return One(y);
}

Translator::Results Translator::MatMul(const onnx::Node& /*node*/, const std::vector<Value>& in) {
  if (in.size() != 2) return Unsupported("needs two inputs");
  if (in[0].kind == Value::Kind::kAttention && in[1].is_activation()) {
    return Context(*in[0].attention, in[1]);
  }
  if (in[0].is_activation() && in[1].is_activation()) return Scores(in[0], in[1]);
  if (!in[0].is_activation() || in[1].view.rank() != 2) {
    return Unsupported("only products with a matrix of weights, and those of attention, work");
  }
  Value weight = in[1];
  weight.view = weight.view.Transposed({1, 0});
  CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(in[0], weight));
  return One(y);
}

absl::StatusOr<Value> Translator::FullyConnected(const Value& x, const Value& weight) {
  if (!weight.is_parameter()) {
    return Unsupported("its weight is not a parameter of the model but computed from others");
  }
  CADRE_ASSIGN_OR_RETURN(const Value rows, Rows(x));
  const Draft before = drafts_[rows.root];
  const int64_t out = weight.view.size(0);
  if (weight.view.size(1) != before.features || out < 1) {
    return Unsupported(absl::StrCat("its weight needs ", weight.view.size(1),
                                    " features; the input has ", before.features));
  }
  if (before.context) return OutputProjection(rows, weight);
  Draft draft;
  v1::FullyConnected& fc = *draft.layer.mutable_fully_connected();
  fc.set_out_features(out);
  fc.set_no_bias(true);
  for (size_t i = 0; i < drafts_.size() && draft.tied_to < 0; ++i) {
    if (!drafts_[i].layer.has_embedding()) continue;
    const Piece& table = drafts_[i].parameters[0].pieces[0];
    if (table.initializer == weight.root && table.original == weight.view) {
      draft.tied_to = static_cast<int>(i);
    }
  }
  // The drafts of an embedding with and without positions have one table; the last one is used.
  for (size_t i = 0; i < drafts_.size(); ++i) {
    if (draft.tied_to >= 0 && drafts_[i].layer.has_embedding()) {
      draft.tied_to = static_cast<int>(i);
    }
  }
  if (draft.tied_to < 0) {
    draft.parameters.push_back(
        ParameterOf("weight", Shape{out, before.features}, weight.root, weight.view));
  }
  return OnRows(rows, std::move(draft), out);
}

// The layers with a bias are made when it is added; the drafts without it are then not used.
absl::StatusOr<Value> Translator::AddParameter(const Value& x, const Value& bias) {
  CADRE_ASSIGN_OR_RETURN(const Value rows, Rows(x));
  const Draft before = drafts_[rows.root];
  const int64_t features = before.features;
  Value result = rows;
  const int bias_rank = bias.view.rank();
  if (bias_rank == 0) return Unsupported("adds a single parameter");
  if (bias.view.elements() == features && bias.view.size(bias_rank - 1) == features) {
    Draft draft = before;
    if (draft.layer.has_fully_connected() && draft.layer.fully_connected().no_bias()) {
      draft.layer.mutable_fully_connected()->clear_no_bias();
      draft.parameters.push_back(ParameterOf("bias", Shape{features}, bias.root, bias.view));
    } else if (draft.layer.has_attention() && draft.parameters.size() == 3) {
      draft.parameters.push_back(ParameterOf("out_bias", Shape{features}, bias.root, bias.view));
    } else {
      draft = Draft();
      draft.layer.mutable_bias();
      draft.parameters.push_back(ParameterOf("bias", Shape{features}, bias.root, bias.view));
      return OnRows(rows, std::move(draft), features);
    }
    result.root = AddDraft(std::move(draft));
    return result;
  }
  const absl::Status misfit = Unsupported(
      "a parameter that is added to rows must be [features] or [tokens, features]");
  if (before.form != Draft::Form::kRows || !(rows.view == Whole(rows.root).view)) return misfit;
  // [tokens, features], possibly the same for all samples or for all tokens.
  auto wide = bias.view.Expanded({batch_, before.tokens, features});
  if (!wide || wide->sizes() != std::vector<int64_t>{batch_, before.tokens, features}) {
    return misfit;
  }
  const View once = wide->Selected(0, 0);
  const auto repeats = [](const std::vector<Factor>& factors) {
    return factors.empty() || (factors.size() == 1 && factors[0].stride == 0);
  };
  if (!repeats(wide->factors(0))) return misfit;
  const bool all_tokens = repeats(once.factors(0));
  Draft draft;
  if (all_tokens && before.tokens > 1) {
    draft.layer.mutable_bias();
    draft.parameters.push_back(
        ParameterOf("bias", Shape{features}, bias.root, once.Selected(0, 0)));
    return OnRows(rows, std::move(draft), features);
  }
  if (before.layer.has_embedding() && !before.layer.embedding().positions()) {
    draft = before;
    draft.layer.mutable_embedding()->set_positions(true);
    draft.parameters.push_back(
        ParameterOf("positions", Shape{before.tokens, features}, bias.root, once));
    result.root = AddDraft(std::move(draft));
    return result;
  }
  draft.layer.mutable_bias()->set_per_token(true);
  draft.parameters.push_back(ParameterOf("bias", Shape{before.tokens, features}, bias.root, once));
  return OnRows(rows, std::move(draft), features);
}

absl::StatusOr<Value> Translator::AddOrMultiply(const onnx::Node& node, Value a, Value b) {
  CADRE_ASSIGN_OR_RETURN(a, Plain(a));
  CADRE_ASSIGN_OR_RETURN(b, Plain(b));
  const bool add = node.op_type() == "Add";
  // An image and one factor per channel, in either order.
  for (int order = 0; order < 2 && !add; ++order, std::swap(a, b)) {
    const Draft image = drafts_[a.root], factor = drafts_[b.root];
    if (image.form != Draft::Form::kImage || !(a.view == Whole(a.root).view) ||
        b.view.sizes() != std::vector<int64_t>{batch_, image.channels, 1, 1} ||
        image.height * image.width == 1) {
      continue;
    }
    const auto flat = b.view.Reshaped({batch_, image.channels});
    if (!flat) continue;
    b.view = *flat;
    CADRE_ASSIGN_OR_RETURN(b, Rows(b));
    Draft draft = ImageDraft(a.root, image.channels, image.height, image.width);
    draft.inputs.push_back(b.root);
    draft.layer.mutable_multiply();
    return Whole(AddDraft(std::move(draft)));
  }
  if (!(a.view == b.view) || drafts_[a.root].form != drafts_[b.root].form) {
    // The same rows in forms that differ.
    CADRE_ASSIGN_OR_RETURN(a, Rows(a));
    CADRE_ASSIGN_OR_RETURN(b, Rows(b));
  }
  const Draft &first = drafts_[a.root], &second = drafts_[b.root];
  if (!(a.view == b.view) || first.form != second.form || first.elements() != second.elements() ||
      first.form == Draft::Form::kTokens || first.context || second.context) {
    return Unsupported("its inputs have different extents");
  }
  Draft draft = first;
  draft.parameters.clear();
  draft.layer = v1::Layer();
  draft.tied_to = -1;
  draft.inputs = {a.root, b.root};
  if (add) {
    draft.layer.mutable_add();
  } else {
    draft.layer.mutable_multiply();
  }
  Value result = a;
  result.root = AddDraft(std::move(draft));
  return result;
}

// A table and tokens: an embedding. A table and fixed numbers: rows of the table.
Translator::Results Translator::Gather(const onnx::Node& node, const std::vector<Value>& in) {
  if (in.size() != 2 || !in[0].is_parameter() || in[0].view.rank() != 2 ||
      Attributes(node).Integer("axis", 0) != 0) {
    return Unsupported("only rows of a table of parameters can be selected");
  }
  const int64_t rows = in[0].view.size(0), features = in[0].view.size(1);
  if (in[1].is_numbers()) {
    const auto indices = AsIntegers(in[1]);
    if (!indices || indices->empty()) return Unsupported("too many rows are selected");
    // Consecutive rows, or one row, for all samples.
    const std::vector<int64_t> dims = in[1].view.sizes();
    const int64_t count = dims.empty() ? 1 : dims.back();
    const int64_t step = count > 1 ? (*indices)[1] - (*indices)[0] : 0;
    const int64_t first = (*indices)[0];
    for (size_t i = 0; i < indices->size(); ++i) {
      if ((*indices)[i] != first + step * static_cast<int64_t>(i % count)) {
        return Unsupported("only consecutive rows, or one row, can be selected by fixed numbers");
      }
    }
    if (step < 0 || step > 1 || first < 0 || first + step * (count - 1) >= rows) {
      return Unsupported("the selected rows are not in the table");
    }
    Value result = in[0];
    const View from = *in[0].view.Sliced(0, first, first + step * (count - 1) + 1);
    std::vector<int64_t> sizes(dims);
    sizes.push_back(features);
    const auto base = step == 0 ? from.Expanded({count, features}) : std::optional<View>(from);
    std::vector<int64_t> aligned(dims.size() > 1 ? dims.size() - 1 : 0, 1);
    aligned.push_back(count);
    aligned.push_back(features);
    if (dims.empty()) aligned = {features};
    const auto shaped = base ? base->Reshaped(aligned) : std::nullopt;
    const auto view = shaped ? shaped->Expanded(sizes) : std::nullopt;
    if (!view) return Unsupported("the selected rows do not fit");
    result.view = *view;
    return One(result);
  }
  if (!in[1].is_activation() || in[1].function ||
      drafts_[in[1].root].form != Draft::Form::kTokens ||
      !(in[1].view == Whole(in[1].root).view)) {
    return Unsupported("selects rows by other than the tokens of the input");
  }
  Draft draft;
  draft.inputs = {in[1].root};
  draft.form = Draft::Form::kRows;
  draft.tokens = drafts_[in[1].root].tokens;
  draft.features = features;
  if (features < 1 || rows < 1) return Unsupported("its table is empty");
  v1::Embedding& embedding = *draft.layer.mutable_embedding();
  embedding.set_vocabulary(rows);
  embedding.set_features(features);
  draft.parameters.push_back(
      ParameterOf("weight", Shape{rows, features}, in[0].root, in[0].view));
  return One(Whole(AddDraft(std::move(draft))));
}

Translator::Results Translator::Concat(const onnx::Node& node, const std::vector<Value>& in) {
  if (in.size() == 1) return One(in[0]);
  int64_t axis = Attributes(node).Integer("axis", 0);
  const int rank = in[0].view.rank();
  axis += axis < 0 ? rank : 0;
  // A learned token before a sequence.
  if (in.size() == 2 && in[0].is_parameter() && in[1].is_activation() && rank == 3 && axis == 1) {
    CADRE_ASSIGN_OR_RETURN(const Value x, Rows(in[1]));
    const Draft before = drafts_[x.root];
    const auto token = in[0].view.Expanded({batch_, 1, before.features});
    if (before.form != Draft::Form::kRows || !(x.view == Whole(x.root).view) || !token ||
        token->sizes() != std::vector<int64_t>{batch_, 1, before.features} ||
        (batch_ > 1 && token->factors(0) != std::vector<Factor>{{batch_, 0}})) {
      return Unsupported("only one learned token can be put before a sequence");
    }
    Draft draft;
    draft.layer.mutable_class_token();
    draft.inputs = {x.root};
    draft.form = Draft::Form::kRows;
    draft.tokens = before.tokens + 1;
    draft.features = before.features;
    draft.parameters.push_back(ParameterOf("weight", Shape{before.features}, in[0].root,
                                           token->Selected(0, 0).Selected(0, 0)));
    return One(Whole(AddDraft(std::move(draft))));
  }
  Draft draft;
  draft.layer.mutable_concat();
  for (const Value& input : in) {
    if (!input.is_activation()) return Unsupported("joins an activation and fixed numbers");
    const auto image = Image(input);
    const auto part = image.ok() ? image : Rows(input);
    if (!part.ok()) return part.status();
    const Draft& before = drafts_[part->root];
    if (draft.inputs.empty()) draft.form = before.form;
    const bool same = draft.inputs.empty() ||
                      (before.form == draft.form && before.height == draft.height &&
                       before.width == draft.width && before.tokens == draft.tokens);
    const int along = draft.form == Draft::Form::kImage ? 1 : part->view.rank() - 1;
    if (!same || axis != along || before.context || !(part->view == Whole(part->root).view)) {
      return Unsupported("only channels of images and features of rows can be joined");
    }
    draft.inputs.push_back(part->root);
    draft.channels += before.channels;
    draft.height = before.height, draft.width = before.width;
    draft.tokens = before.tokens;
    draft.features += before.features;
  }
  return One(Whole(AddDraft(std::move(draft))));
}

// In a graph that was exported for training it drops elements; in others it does nothing.
Translator::Results Translator::Dropout(const onnx::Node& /*node*/, const std::vector<Value>& in) {
  const auto rate = in.size() > 1 ? AsScalar(in[1]) : std::optional<double>(0.5);
  const auto training = in.size() > 2 ? AsScalar(in[2]) : std::optional<double>(0);
  if (!rate || !training) return Unsupported("its rate is not known");
  if (*training == 0 || *rate == 0) return One(in[0]);
  if (!in[0].is_activation()) {
    return Unsupported("dropout of attention probabilities is not supported; set its rate to 0");
  }
  if (!(*rate > 0 && *rate < 1)) return Unsupported("its rate is not between 0 and 1");
  CADRE_ASSIGN_OR_RETURN(Value x, Plain(in[0]));
  Draft draft = drafts_[x.root];
  if (draft.context || draft.form == Draft::Form::kTokens) return Unsupported("its input");
  draft.parameters.clear();
  draft.layer = v1::Layer();
  draft.tied_to = -1;
  draft.layer.mutable_dropout()->set_rate(*rate);
  draft.inputs = {x.root};
  x.root = AddDraft(std::move(draft));
  return One(x);
}

// --- Attention ---

Translator::Results Translator::Softmax(const onnx::Node& node, const std::vector<Value>& in) {
  if (in[0].kind != Value::Kind::kAttention) {
    return Unsupported("is only supported in attention; the loss contains the softmax of scores");
  }
  const int64_t axis = Attributes(node).Integer("axis", -1);
  const int rank = in[0].attention->queries.view.rank();
  if (axis != -1 && axis != rank - 1) return Unsupported("its axis is not the keys");
  Attention attention = *in[0].attention;
  attention.softmax = true;
  return One({.kind = Value::Kind::kAttention,
              .attention = std::make_shared<const Attention>(attention)});
}

namespace {

// The factor of a function that only scales.
std::optional<double> ScaleOf(const Value& value) {
  if (!value.function) return 1;
  const Samples& function = *value.function;
  const double scale = function[0] / kPoints[0];
  for (size_t i = 0; i < kPoints.size(); ++i) {
    if (std::abs(function[i] - scale * kPoints[i]) > 1e-6 * (1 + std::abs(function[i]))) {
      return std::nullopt;
    }
  }
  return scale;
}

}  // namespace

Translator::Results Translator::Scores(const Value& queries, const Value& keys) {
  const auto of_queries = ScaleOf(queries), of_keys = ScaleOf(keys);
  if (!of_queries || !of_keys || queries.view.rank() < 3 ||
      queries.view.rank() != keys.view.rank()) {
    return Unsupported("only products with a matrix of weights, and those of attention, work");
  }
  Attention attention{.queries = queries, .keys = keys, .scale = *of_queries * *of_keys};
  attention.queries.function.reset();
  attention.keys.function.reset();
  return One({.kind = Value::Kind::kAttention,
              .attention = std::make_shared<const Attention>(attention)});
}

namespace {

// Where the elements of queries, keys or values come from, as features of a projection's rows.
struct HeadLayout {
  int64_t offset = 0, heads = 1, head_stride = 0, size = 0, stride = 1;
};

// The layout of a view [..., rows, head features], where `rows` and `features` are the numbers of
// the dimensions. Nothing if tokens and samples are not whole rows of the draft.
std::optional<HeadLayout> LayoutOf(const Draft& draft, int64_t batch, const View& view, int tokens,
                                   int features) {
  const int64_t row = draft.features;
  HeadLayout layout{.offset = view.offset(), .size = view.size(features)};
  const auto& of_tokens = view.factors(tokens);
  const auto& of_features = view.factors(features);
  if (draft.form != Draft::Form::kRows || view.size(tokens) != draft.tokens ||
      (draft.tokens > 1 && of_tokens != std::vector<Factor>{{draft.tokens, row}}) ||
      (layout.size > 1 && of_features.size() != 1) || layout.offset >= row) {
    return std::nullopt;
  }
  if (layout.size > 1) layout.stride = of_features[0].stride;
  int64_t samples = 1;
  for (int d = 0; d < view.rank(); ++d) {
    if (d == tokens || d == features) continue;
    for (const Factor& factor : view.factors(d)) {
      if (factor.stride == draft.tokens * row) {
        samples *= factor.size;
      } else if (layout.heads == 1) {
        layout.heads = factor.size;
        layout.head_stride = factor.stride;
      } else {
        return std::nullopt;
      }
    }
  }
  // Heads must not share features.
  const bool apart = layout.heads == 1 || layout.head_stride >= layout.size * layout.stride ||
                     (layout.head_stride > 0 &&
                      layout.stride >= layout.heads * layout.head_stride);
  if (samples != batch || layout.stride <= 0 || layout.head_stride < 0 || !apart ||
      layout.offset + (layout.heads - 1) * layout.head_stride +
              (layout.size - 1) * layout.stride >=
          row) {
    return std::nullopt;
  }
  return layout;
}

}  // namespace

// The three projections become one parameter; the context is completed by the output projection.
Translator::Results Translator::Context(const Attention& attention, const Value& values) {
  if (!attention.softmax || values.function) {
    return Unsupported("multiplies scores of an attention before their softmax");
  }
  const View& q = attention.queries.view;
  const int rank = q.rank();
  if (values.view.rank() != rank) return Unsupported("the values do not fit the probabilities");
  const Value* const parts[3] = {&attention.queries, &attention.keys, &values};
  HeadLayout layouts[3];
  Draft draft;
  DraftParameter weight{.name = "qkv_weight"}, bias{.name = "qkv_bias"};
  const absl::Status misfit = Unsupported(
      "only self-attention is supported, of projections with biases of one sequence to queries, "
      "keys and values of all heads");
  for (int p = 0; p < 3; ++p) {
    const Draft& projection = drafts_[parts[p]->root];
    // Keys are transposed: [..., head features, tokens].
    const auto layout = LayoutOf(projection, batch_, parts[p]->view, rank - (p == 1 ? 1 : 2),
                                 rank - (p == 1 ? 2 : 1));
    if (!layout || !projection.layer.has_fully_connected() || projection.parameters.size() != 2) {
      return misfit;
    }
    layouts[p] = *layout;
    if (p == 0) draft = drafts_[projection.inputs[0]];
    if (layout->heads != layouts[0].heads || layout->size != layouts[0].size ||
        projection.inputs != drafts_[parts[0]->root].inputs) {
      return misfit;
    }
    const int64_t heads = layout->heads, size = layout->size, in = draft.features;
    if (heads * size != in) {
      return Unsupported(absl::StrCat(heads, " heads of ", size, " do not have the ", in,
                                      " features of the input"));
    }
    const Piece& matrix = projection.parameters[0].pieces[0];
    const auto& outs = matrix.original.factors(0);
    const auto& ins = matrix.original.factors(1);
    const auto& biases = projection.parameters[1].pieces[0].original.factors(0);
    if (outs.size() != 1 || ins.size() != 1 || biases.size() != 1) return misfit;
    const int64_t head = layout->head_stride, step = layout->stride;
    weight.pieces.push_back(
        {matrix.initializer,
         View({{heads, head * outs[0].stride}, {size, step * outs[0].stride}, {in, ins[0].stride}},
              matrix.original.offset() + layout->offset * outs[0].stride),
         View({{heads, 3 * size * in}, {size, in}, {in, 1}}, p * size * in)});
    const Piece& vector = projection.parameters[1].pieces[0];
    bias.pieces.push_back(
        {vector.initializer,
         View({{heads, head * biases[0].stride}, {size, step * biases[0].stride}},
              vector.original.offset() + layout->offset * biases[0].stride),
         View({{heads, 3 * size}, {size, 1}}, p * size)});
  }
  const int64_t heads = layouts[0].heads, size = layouts[0].size;
  const double expected = 1 / std::sqrt(static_cast<double>(size));
  if (std::abs(attention.scale / expected - 1) > 1e-4) {
    return Unsupported(absl::StrCat("scores are scaled by ", attention.scale, "; ", expected,
                                    ", one over the root of the head features, is supported"));
  }
  weight.shape = Shape{heads, 3, size, draft.features};
  bias.shape = Shape{heads, 3, size};
  const int input = drafts_[attention.queries.root].inputs[0];
  Draft context;
  context.layer.mutable_attention()->set_heads(heads);
  if (attention.causal) context.layer.mutable_attention()->set_causal(true);
  context.inputs = {input};
  context.form = Draft::Form::kRows;
  context.tokens = draft.tokens;
  context.features = heads * size;
  context.heads = heads;
  context.context = attention;
  context.parameters = {std::move(weight), std::move(bias)};
  // The dimensions of the queries, with the strides of the context [samples, tokens, heads, size].
  std::vector<Factor> flat;
  std::vector<int64_t> sizes;
  for (int d = 0; d < rank; ++d) {
    sizes.push_back(q.size(d));
    if (d == rank - 1) {
      flat.push_back({size, 1});
    } else if (d == rank - 2) {
      flat.push_back({context.tokens, heads * size});
    } else {
      for (const Factor& factor : q.factors(d)) {
        const bool sample =
            factor.stride == draft.tokens * drafts_[attention.queries.root].features;
        flat.push_back({factor.size, sample ? context.tokens * heads * size : size});
      }
    }
  }
  Value result{.kind = Value::Kind::kActivation};
  const auto view = View(flat, 0).Reshaped(sizes);
  if (!view) return misfit;
  result.view = *view;
  result.root = AddDraft(std::move(context));
  return One(result);
}

absl::StatusOr<Value> Translator::OutputProjection(const Value& x, const Value& weight) {
  Draft draft = drafts_[x.root];
  const int64_t out = weight.view.size(0), size = draft.features / draft.heads;
  if (out != draft.features) {
    return Unsupported(absl::StrCat("the output projection of an attention has ", out,
                                    " features instead of ", draft.features));
  }
  draft.context.reset();
  draft.parameters.push_back(
      ParameterOf("out_weight", Shape{out, draft.heads, size}, weight.root, weight.view));
  Value result = x;
  result.root = AddDraft(std::move(draft));
  return result;
}

}  // namespace cadre
