// Operators on images: convolution, pooling, norms.
//
// ONNX images are [samples, channels, height, width]; the engine's are channels-last, with weights
// in ONNX's order.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/ops/inference.h"
#include "model/problem.h"

namespace cadre::rules {

namespace {

using Sides = std::pair<uint32_t, uint32_t>;  // height, width

constexpr int64_t kMaxPadding = 1 << 20;

std::string ListText(const std::vector<int64_t>& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

// An attribute of two numbers, of at least `min` and small.
absl::StatusOr<Sides> SidesOf(const onnx::Node& node, const char* name,
                              const std::vector<int64_t>& fallback) {
  const std::vector<int64_t> numbers = Attributes(node).Integers(name, fallback);
  const auto fits = [](int64_t number) { return number >= 1 && number <= kMaxExtent; };
  if (numbers.size() != 2 || !fits(numbers[0]) || !fits(numbers[1])) {
    return Unsupported(
        absl::StrCat(AttributeText(node, name), "; it must be two numbers from 1 to ", kMaxExtent));
  }
  return Sides(numbers[0], numbers[1]);
}

// An attribute of two equal numbers.
absl::StatusOr<uint32_t> EqualSides(const onnx::Node& node, const char* name) {
  CADRE_ASSIGN_OR_RETURN(const Sides sides, SidesOf(node, name, {1, 1}));
  if (sides.first == sides.second) return sides.first;
  return Unsupported(
      absl::StrCat(AttributeText(node, name), "; its ", name, " must be equal in both directions"));
}

// The padding of one dimension by auto_pad SAME_UPPER or SAME_LOWER, at both sides together: as
// many outputs as the input divided by the stride, rounded up.
int64_t SamePadding(int64_t extent, int64_t window, int64_t stride) {
  const int64_t outputs = (extent + stride - 1) / stride;
  return std::max<int64_t>(0, (outputs - 1) * stride + window - extent);
}

// Padding that is equal at both ends of each dimension. `extent`: of the input; `window`: of the
// kernel with its dilation.
absl::StatusOr<Sides> PaddingOf(const onnx::Node& node, Sides extent, Sides window, Sides stride) {
  const Attributes attributes(node);
  const std::string automatic = attributes.Text("auto_pad", "NOTSET");
  const std::vector<int64_t> pads = attributes.Integers("pads", {0, 0, 0, 0});
  const bool none = std::all_of(pads.begin(), pads.end(), [](int64_t pad) { return pad == 0; });
  if (automatic != "NOTSET" && !automatic.empty() && !none) {
    return Unsupported(
        absl::StrCat(AttributeText(node, "auto_pad"), ", but ", AttributeText(node, "pads")));
  }
  if (automatic == "VALID") return Sides(0, 0);
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    const int64_t height = SamePadding(extent.first, window.first, stride.first);
    const int64_t width = SamePadding(extent.second, window.second, stride.second);
    if (height % 2 == 0 && width % 2 == 0) return Sides(height / 2, width / 2);
    return Unsupported(absl::StrCat(
        AttributeText(node, "auto_pad"), ", which adds ", Counted(height, "row"), " and ",
        Counted(width, "column"), " to its input of ", extent.first, " x ", extent.second,
        ": padding must be equal at opposite sides, so only even numbers are supported"));
  }
  if (automatic != "NOTSET" && !automatic.empty()) {
    return Unsupported(absl::StrCat(AttributeText(node, "auto_pad"),
                                    "; it must be NOTSET, VALID, SAME_UPPER or SAME_LOWER"));
  }
  const bool possible = std::all_of(pads.begin(), pads.end(),
                                    [](int64_t pad) { return pad >= 0 && pad <= kMaxPadding; });
  if (pads.size() != 4 || !possible) {
    return Unsupported(absl::StrCat(AttributeText(node, "pads"),
                                    "; it must be four numbers from 0 to ", kMaxPadding));
  }
  if (pads[0] != pads[2] || pads[1] != pads[3]) {
    return Unsupported(
        absl::StrCat(AttributeText(node, "pads"),
                     " (top, left, bottom, right); its padding must be equal at opposite sides"));
  }
  return Sides(pads[0], pads[1]);
}

// `layer`: a convolution or a pooling.
template <typename Layer>
void SetKernelAndPadding(Sides kernel, Sides padding, Layer& layer) {
  if (kernel.first == kernel.second) {
    layer.set_kernel(kernel.first);
  } else {
    layer.set_kernel_height(kernel.first);
    layer.set_kernel_width(kernel.second);
  }
  if (padding.first == padding.second) {
    layer.set_padding(padding.first);
  } else {
    layer.set_padding_height(padding.first);
    layer.set_padding_width(padding.second);
  }
}

// A convolution of one position is a fully connected layer. `plain`: the plain `input`.
absl::StatusOr<Value> ConvolutionOfFeatures(Translator& t, const Value& input, const Value& plain,
                                            const Value& weight, const Value& bias) {
  Value x = plain, w = weight;
  const int64_t features = t.drafts()[plain.root].features, outputs = weight.view.size(0);
  const auto rows = x.view.Reshaped({t.batch(), features});
  if (!rows || weight.view.size(1) != features) {
    return Unsupported(absl::StrCat("its weight is ", t.Describe(weight), ", and its input is ",
                                    t.Describe(input), ": they do not fit"));
  }
  x.view = *rows;
  w.view = *w.view.Reshaped({outputs, weight.view.size(1)});
  CADRE_ASSIGN_OR_RETURN(Value y, FullyConnected(t, x, w));
  if (bias.kind != Value::Kind::kUnknown) {
    CADRE_ASSIGN_OR_RETURN(y, AddParameter(t, y, bias));
  }
  y.view = *y.view.Reshaped({t.batch(), outputs, 1, 1});
  return y;
}

// The extents of the weight, [outputs, inputs of a group, height, width].
absl::StatusOr<std::vector<int64_t>> ExtentsOfFilters(const Translator& t, const onnx::Node& node,
                                                      const Inputs& in) {
  if (in.size() < 2 || !in[1].is_parameter()) {
    return Unsupported(absl::StrCat("its weight is ",
                                    in.size() < 2 ? std::string("absent") : t.Describe(in[1]),
                                    ", not a tensor of the file"));
  }
  const std::vector<int64_t> weight = in[1].view.sizes();
  if (weight.size() != 4 || weight[2] < 1 || weight[3] < 1) {
    return Unsupported(absl::StrCat("its weight is ", t.Describe(in[1]),
                                    "; only convolutions in two dimensions are supported"));
  }
  const std::vector<int64_t> kernel = {weight[2], weight[3]};
  if (Attributes(node).Integers("kernel_shape", kernel) != kernel) {
    return Unsupported(absl::StrCat(AttributeText(node, "kernel_shape"), ", but its weight is ",
                                    t.Describe(in[1])));
  }
  return weight;
}

}  // namespace

absl::StatusOr<Value> Convolution(Translator& t, const onnx::Node& node, const Inputs& in) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<int64_t> weight, ExtentsOfFilters(t, node, in));
  CADRE_ASSIGN_OR_RETURN(const uint32_t stride, EqualSides(node, "strides"));
  CADRE_ASSIGN_OR_RETURN(const uint32_t dilation, EqualSides(node, "dilations"));
  const int64_t groups = Attributes(node).Integer("group", 1);
  if (groups < 1 || groups > (1 << 20)) {
    return Unsupported(AttributeText(node, "group") + "; it must be a number from 1 to 1048576");
  }
  const Value bias = in.size() > 2 ? in[2] : Value();
  CADRE_ASSIGN_OR_RETURN(const Value plain, t.Plain(in[0]));
  const Draft before = t.drafts()[plain.root];
  const Sides extent =
      before.form == Draft::Form::kImage ? Sides(before.height, before.width) : Sides(1, 1);
  const Sides window(dilation * (weight[2] - 1) + 1, dilation * (weight[3] - 1) + 1);
  CADRE_ASSIGN_OR_RETURN(const Sides padding, PaddingOf(node, extent, window, {stride, stride}));
  // The result of global pooling is [features] here: a convolution of one position.
  if (before.form == Draft::Form::kFeatures && plain.view.rank() == 4 && weight[2] == 1 &&
      weight[3] == 1 && groups == 1 && stride == 1 && padding == Sides(0, 0)) {
    return ConvolutionOfFeatures(t, in[0], plain, in[1], bias);
  }
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Image(plain));
  if (before.channels != weight[1] * groups || weight[0] % groups != 0) {
    return Unsupported(absl::StrCat("its weight is ", t.Describe(in[1]), ", its input is ",
                                    t.Describe(in[0]), ", and ", AttributeText(node, "group"),
                                    ": they do not fit"));
  }
  Draft draft = ImageDraft(x.root, weight[0],
                           WindowsAlong(before.height, padding.first, window.first, stride),
                           WindowsAlong(before.width, padding.second, window.second, stride));
  if (draft.elements() <= 0) {
    return Unsupported(absl::StrCat("its kernel of ", window.first, " x ", window.second,
                                    " is larger than its padded input, which is ",
                                    t.Describe(in[0])));
  }
  v1::Convolution& conv = *draft.layer.mutable_convolution();
  conv.set_out_channels(weight[0]);
  SetKernelAndPadding(Sides(weight[2], weight[3]), padding, conv);
  if (stride != 1) conv.set_stride(stride);
  if (dilation != 1) conv.set_dilation(dilation);
  if (groups != 1) conv.set_groups(groups);
  CADRE_ASSIGN_OR_RETURN(DraftParameter filters, t.WholeParameter("weight", Shape(weight), in[1]));
  draft.parameters.push_back(std::move(filters));
  if (bias.kind != Value::Kind::kUnknown) {
    CADRE_ASSIGN_OR_RETURN(DraftParameter added, t.WholeParameter("bias", Shape{weight[0]}, bias));
    draft.parameters.push_back(std::move(added));
  } else {
    conv.set_no_bias(true);
  }
  return t.Whole(t.AddDraft(std::move(draft)));
}

absl::StatusOr<Value> Pool(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const Sides kernel, SidesOf(node, "kernel_shape", {}));
  CADRE_ASSIGN_OR_RETURN(const Sides stride, SidesOf(node, "strides", {1, 1}));
  CADRE_ASSIGN_OR_RETURN(const uint32_t dilation, EqualSides(node, "dilations"));
  if (dilation != 1) {
    return Unsupported(AttributeText(node, "dilations") + "; only [1, 1] is supported");
  }
  if (node.output_size() > 1 && !node.output(1).empty()) {
    return Unsupported("the positions of the largest elements are not supported as an output");
  }
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Image(in[0]));
  const Draft before = t.drafts()[x.root];
  CADRE_ASSIGN_OR_RETURN(const Sides padding,
                         PaddingOf(node, Sides(before.height, before.width), kernel, stride));
  const bool average = node.op_type() == "AveragePool";
  if (average && kernel == Sides(1, 1) && stride == Sides(1, 1) && padding == Sides(0, 0)) {
    return x;
  }
  const auto draft_of = [&](bool ceil) {
    return ImageDraft(
        x.root, before.channels,
        WindowsAlong(before.height, padding.first, kernel.first, stride.first, ceil),
        WindowsAlong(before.width, padding.second, kernel.second, stride.second, ceil));
  };
  Draft draft = draft_of(attributes.Integer("ceil_mode", 0) != 0);
  if (draft.elements() <= 0) {
    return Unsupported(absl::StrCat(AttributeText(node, "kernel_shape"),
                                    ", larger than its padded input, which is ",
                                    t.Describe(in[0])));
  }
  const bool ceil = draft.elements() != draft_of(false).elements();
  if (ceil && attributes.Text("auto_pad", "NOTSET") != "NOTSET") {
    return Unsupported(absl::StrCat(AttributeText(node, "auto_pad"), " and ",
                                    AttributeText(node, "ceil_mode"),
                                    ", which runtimes do not combine in the same way"));
  }
  // Without padding, there is nothing to count.
  const bool counts =
      average && padding != Sides(0, 0) && attributes.Integer("count_include_pad", 0) != 0;
  if (ceil && counts) {
    return Unsupported("count_include_pad is not supported where ceil_mode adds an output");
  }
  v1::Pooling& pool =
      average ? *draft.layer.mutable_average_pool() : *draft.layer.mutable_max_pool();
  SetKernelAndPadding(kernel, padding, pool);
  if (stride.first == stride.second) {
    pool.set_stride(stride.first);
  } else {
    pool.set_stride_height(stride.first);
    pool.set_stride_width(stride.second);
  }
  if (counts) pool.set_count_padding(true);
  if (ceil) pool.set_ceil_mode(true);
  return t.Whole(t.AddDraft(std::move(draft)));
}

absl::StatusOr<Value> GlobalPool(Translator& t, const onnx::Node& /*node*/, const Inputs& in) {
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Image(in[0]));
  if (t.drafts()[x.root].height * t.drafts()[x.root].width == 1) return x;
  Draft draft;
  draft.layer.mutable_global_average_pool();
  draft.inputs = {x.root};
  draft.features = t.drafts()[x.root].channels;
  Value y = t.Whole(t.AddDraft(std::move(draft)));
  y.view = *y.view.Reshaped({t.batch(), t.drafts()[y.root].features, 1, 1});
  return y;
}

absl::StatusOr<Value> Mean(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  std::vector<int64_t> axes = attributes.Integers("axes", {});
  if (in.size() > 1) {
    const auto given = t.AsIntegers(in[1]);
    if (!given) {
      return Unsupported(absl::StrCat("its axes are ", t.Describe(in[1]), ", not fixed numbers"));
    }
    axes = *given;
  }
  for (int64_t& axis : axes) axis += axis < 0 ? in[0].view.rank() : 0;
  std::sort(axes.begin(), axes.end());
  if (in[0].view.rank() != 4 || axes != std::vector<int64_t>{2, 3}) {
    return Unsupported(absl::StrCat("its axes are ", ListText(axes), ", and its input is ",
                                    t.Describe(in[0]),
                                    "; only the mean over height and width of images [samples, "
                                    "channels, height, width] is supported"));
  }
  CADRE_ASSIGN_OR_RETURN(Value result, GlobalPool(t, node, in));
  if (attributes.Integer("keepdims", 1) == 0) {
    result.view = *result.view.Reshaped({t.batch(), result.view.size(1)});
  }
  return result;
}

absl::StatusOr<Value> BatchNorm(Translator& t, const onnx::Node& node, const Inputs& in) {
  if (in.size() != 5) {
    return Unsupported(absl::StrCat("it has ", in.size(), " inputs instead of five"));
  }
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Image(in[0]));
  const Draft before = t.drafts()[x.root];
  Draft draft = ImageDraft(x.root, before.channels, before.height, before.width);
  v1::BatchNorm& norm = *draft.layer.mutable_batch_norm();
  norm.set_epsilon(attributes.Number("epsilon", 1e-5));
  // ONNX states the weight of the old statistics.
  const float momentum = 1 - attributes.Number("momentum", 0.9);
  norm.set_momentum(std::round(momentum * 1e6F) / 1e6F);
  const char* const names[] = {"scale", "shift", "mean", "variance"};
  for (int i = 0; i < 4; ++i) {
    CADRE_ASSIGN_OR_RETURN(DraftParameter parameter,
                           t.WholeParameter(names[i], Shape{before.channels}, in[i + 1]));
    draft.parameters.push_back(std::move(parameter));
  }
  return t.Whole(t.AddDraft(std::move(draft)));
}

absl::StatusOr<Value> ResponseNorm(Translator& t, const onnx::Node& node, const Inputs& in) {
  const Attributes attributes(node);
  CADRE_ASSIGN_OR_RETURN(const Value x, t.Image(in[0]));
  const Draft before = t.drafts()[x.root];
  const int64_t size = attributes.Integer("size", 0);
  if (size < 1 || size > (1 << 20)) {
    return Unsupported(AttributeText(node, "size") + "; it must be a number from 1 to 1048576");
  }
  Draft draft = ImageDraft(x.root, before.channels, before.height, before.width);
  v1::LocalResponseNorm& norm = *draft.layer.mutable_local_response_norm();
  norm.set_size(size);
  norm.set_alpha(attributes.Number("alpha", 1e-4));
  norm.set_beta(attributes.Number("beta", 0.75));
  norm.set_k(attributes.Number("bias", 1));
  return t.Whole(t.AddDraft(std::move(draft)));
}

}  // namespace cadre::rules
