// Operators on images: convolution, pooling, norms.
//
// ONNX images are [samples, channels, height, width]; the engine's are channels-last, with weights
// in ONNX's order.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/import/translator.h"
#include "model/inference.h"
#include "model/problem.h"

namespace cadre {

namespace {

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

// Two extents of at least 1: height, width.
absl::StatusOr<std::pair<uint32_t, uint32_t>> Sides(const std::vector<int64_t>& numbers,
                                                    const char* what) {
  const auto fits = [](int64_t number) { return number >= 1 && number <= kMaxExtent; };
  if (numbers.size() != 2 || !fits(numbers[0]) || !fits(numbers[1])) {
    return Unsupported(absl::StrCat("its ", what, " must be two extents of at least 1"));
  }
  return std::pair<uint32_t, uint32_t>(numbers[0], numbers[1]);
}

}  // namespace

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
  if (groups < 1 || groups > (1 << 20)) return Unsupported("its attribute group is not positive");
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
  if (before.channels != weight[1] * groups || weight[0] % groups != 0) {
    return Unsupported("its weight does not fit the channels of the input");
  }
  Draft draft = ImageDraft(
      x.root, weight[0],
      WindowsAlong(before.height, padding.first, dilation * (weight[2] - 1) + 1, stride),
      WindowsAlong(before.width, padding.second, dilation * (weight[3] - 1) + 1, stride));
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
  CADRE_ASSIGN_OR_RETURN(const auto kernel,
                         Sides(attributes.Integers("kernel_shape", {}), "kernel_shape"));
  CADRE_ASSIGN_OR_RETURN(const auto stride,
                         Sides(attributes.Integers("strides", {1, 1}), "strides"));
  CADRE_ASSIGN_OR_RETURN(const auto padding, PaddingOf(attributes));
  CADRE_ASSIGN_OR_RETURN(const uint32_t dilation,
                         Alike(attributes.Integers("dilations", {1, 1}), 1, "dilations"));
  if (dilation != 1) return Unsupported("dilations are not supported");
  if (node.output_size() > 1 && !node.output(1).empty()) {
    return Unsupported("the positions of the largest elements are not supported as an output");
  }
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  const Draft before = drafts_[x.root];
  const bool average = node.op_type() == "AveragePool";
  constexpr std::pair<uint32_t, uint32_t> kOnes = {1, 1};
  if (average && kernel == kOnes && stride == kOnes) return One(x);
  const auto draft_of = [&](bool ceil) {
    return ImageDraft(
        x.root, before.channels,
        WindowsAlong(before.height, padding.first, kernel.first, stride.first, ceil),
        WindowsAlong(before.width, padding.second, kernel.second, stride.second, ceil));
  };
  Draft draft = draft_of(attributes.Integer("ceil_mode", 0) != 0);
  if (draft.elements() <= 0) return Unsupported("its window is larger than the padded input");
  const bool ceil = draft.elements() != draft_of(false).elements();
  // Without padding, there is nothing to count.
  const bool counts = average && padding != std::pair<uint32_t, uint32_t>(0, 0) &&
                      attributes.Integer("count_include_pad", 0) != 0;
  if (ceil && counts) {
    return Unsupported("count_include_pad is not supported where ceil_mode adds an output");
  }
  v1::Pooling& pool =
      average ? *draft.layer.mutable_average_pool() : *draft.layer.mutable_max_pool();
  const auto is_square = [](const auto& sides) { return sides.first == sides.second; };
  if (is_square(kernel)) {
    pool.set_kernel(kernel.first);
  } else {
    pool.set_kernel_height(kernel.first);
    pool.set_kernel_width(kernel.second);
  }
  if (is_square(stride)) {
    pool.set_stride(stride.first);
  } else {
    pool.set_stride_height(stride.first);
    pool.set_stride_width(stride.second);
  }
  if (is_square(padding)) {
    pool.set_padding(padding.first);
  } else {
    pool.set_padding_height(padding.first);
    pool.set_padding_width(padding.second);
  }
  if (counts) pool.set_count_padding(true);
  if (ceil) pool.set_ceil_mode(true);
  return One(Whole(AddDraft(std::move(draft))));
}

Translator::Results Translator::GlobalPool(const onnx::Node& /*node*/,
                                           const std::vector<Value>& in) {
  CADRE_ASSIGN_OR_RETURN(const Value x, Image(in[0]));
  if (drafts_[x.root].height * drafts_[x.root].width == 1) return One(x);
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
  if (size < 1 || size > (1 << 20))
    return Unsupported("its attribute size is not a positive number");
  Draft draft = ImageDraft(x.root, before.channels, before.height, before.width);
  v1::LocalResponseNorm& norm = *draft.layer.mutable_local_response_norm();
  norm.set_size(size);
  norm.set_alpha(attributes.Number("alpha", 1e-4));
  norm.set_beta(attributes.Number("beta", 0.75));
  norm.set_k(attributes.Number("bias", 1));
  return One(Whole(AddDraft(std::move(draft))));
}

}  // namespace cadre
