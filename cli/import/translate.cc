// Translation of an ONNX graph to layers.
//
// Every value of the graph is one of the kinds of value.h. Known numbers are folded. Operators that
// only rearrange elements change the view of a value and make no layer. Elementwise operators on
// one activation compose a function, which is compared with the engine's activations when a layer
// needs the result; so a GELU may be one operator or eight. Operators with parameters make drafts
// of layers. A draft of which the output is not used in the end is dropped: the projections to
// queries, keys and values, for instance, become parts of the attention that begins with their
// product.
//
// Problems do not end the translation. What depends on an unsupported operator is unknown, and
// operators on unknown values are skipped, so that all operators that are missing are reported
// together. Only the nodes on which the scores depend are translated (graph_order.h); what else the
// file has is reported (left_out.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/counted_noun.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/problem.h"

namespace cadre {
namespace {

constexpr int64_t kMaxBatch = 1 << 16;

Value Unknown() { return {}; }

// What an operator does: with elements that it only rearranges, and as a layer.
struct Rules {
  rules::Rule rearrange = nullptr;
  rules::Rule layer = nullptr;
};

// The rules of an operator. Those that are not in the table are folded if their inputs are known
// numbers (folding.cc) or masks (translate_masks.cc), or are elementwise
// (translate_elementwise.cc); between the products of an attention, they are OfAttention
// (translate_attention.cc).
Rules RulesOf(const std::string& op) {
  static const auto& table = *new std::map<std::string, Rules>{
      // translate_structure.cc
      {"Cast", {.rearrange = rules::Cast}},
      {"CastLike", {.rearrange = rules::Cast}},
      {"Expand", {.rearrange = rules::Expand}},
      {"Flatten", {.rearrange = rules::Reshape}},
      {"Identity", {.rearrange = rules::Identity}},
      {"Reshape", {.rearrange = rules::Reshape}},
      {"SequenceAt", {.rearrange = rules::SequenceAt}},
      {"Shape", {.rearrange = rules::ShapeOf}},
      {"Slice", {.rearrange = rules::Slice}},
      {"Split", {.rearrange = rules::Split}},
      {"SplitToSequence", {.rearrange = rules::Split}},
      {"Squeeze", {.rearrange = rules::Squeeze}},
      {"Transpose", {.rearrange = rules::Transpose}},
      {"Unsqueeze", {.rearrange = rules::Unsqueeze}},
      // translate_images.cc
      {"AveragePool", {.layer = rules::Pool}},
      {"BatchNormalization", {.layer = rules::BatchNorm}},
      {"Conv", {.layer = rules::Convolution}},
      {"GlobalAveragePool", {.layer = rules::GlobalPool}},
      {"LRN", {.layer = rules::ResponseNorm}},
      {"MaxPool", {.layer = rules::Pool}},
      {"ReduceMean", {.layer = rules::Mean}},
      // translate_rows.cc
      {"Concat", {.layer = rules::Concat}},
      {"Dropout", {.layer = rules::Dropout}},
      {"Gather", {.rearrange = rules::SelectIndex, .layer = rules::Gather}},
      {"Gemm", {.layer = rules::Gemm}},
      {"LayerNormalization", {.layer = rules::LayerNorm}},
      {"MatMul", {.layer = rules::MatMul}},
      // translate_elementwise.cc
      {"Clip", {.layer = rules::Clip}},
      // translate_attention.cc
      {"Softmax", {.layer = rules::Softmax}},
  };
  const auto found = table.find(op);
  return found == table.end() ? Rules() : found->second;
}

// What an operator that is not supported may be replaced by.
std::string NearestTo(const std::string& op) {
  static const auto& nearest = *new std::map<std::string, std::string>{
      {"ArgMax", "the scores before it"},
      {"Celu", "Gelu or x * Sigmoid(x)"},
      {"ConvInteger", "Conv"},
      {"ConvTranspose", "Conv"},
      {"DepthToSpace", "Conv with a stride, or Reshape of tokens"},
      {"DequantizeLinear", "the network before its quantization"},
      {"Div", "Mul"},
      {"Einsum", "MatMul"},
      {"Elu", "Gelu or x * Sigmoid(x)"},
      {"GlobalLpPool", "GlobalAveragePool"},
      {"GlobalMaxPool", "GlobalAveragePool"},
      {"GroupNormalization", "BatchNormalization or LayerNormalization"},
      {"GRU", "the layer lstm of run files"},
      {"Hardmax", "the scores before it"},
      {"InstanceNormalization", "BatchNormalization or LayerNormalization"},
      {"LSTM", "the layer lstm of run files"},
      {"LeakyRelu", "Relu"},
      {"LogSoftmax", "the scores before it: the loss contains the softmax"},
      {"LpNormalization", "LayerNormalization"},
      {"LpPool", "AveragePool"},
      {"MatMulInteger", "MatMul"},
      {"Mean", "Add, or ReduceMean over height and width"},
      {"MeanVarianceNormalization", "BatchNormalization or LayerNormalization"},
      {"Mish", "x * Sigmoid(x)"},
      {"PRelu", "Relu"},
      {"Pad", "the attribute pads of Conv, MaxPool or AveragePool"},
      {"QLinearConv", "Conv"},
      {"QLinearMatMul", "MatMul"},
      {"QuantizeLinear", "the network before its quantization"},
      {"RMSNormalization", "LayerNormalization"},
      {"RNN", "the layer lstm of run files"},
      {"ReduceL2", "GlobalAveragePool"},
      {"ReduceMax", "MaxPool"},
      {"ReduceSum", "GlobalAveragePool"},
      {"Resize", "Conv with a stride"},
      {"Selu", "Gelu or x * Sigmoid(x)"},
      {"Softplus", "Relu"},
      {"Softsign", "Tanh"},
      {"SpaceToDepth", "Conv with a stride"},
      {"Sub", "Add"},
      {"ThresholdedRelu", "Relu"},
      {"Tile", "Expand"},
      {"Upsample", "Conv with a stride"}};
  const auto found = nearest.find(op);
  return found == nearest.end() ? "" : "; the nearest that works is " + found->second;
}

// "[samples, 3, ?, 8]": the extents of an input, with the names of those that are variable.
std::string ShapeText(const onnx::ValueInfo& info) {
  if (!info.type().has_tensor_type() || !info.type().tensor_type().has_shape()) {
    return "no extents";
  }
  return absl::StrCat("the extents [",
                      absl::StrJoin(info.type().tensor_type().shape().dim(), ", ",
                                    [](std::string* out, const onnx::Dimension& dim) {
                                      absl::StrAppend(
                                          out, dim.dim_value() != 0 ? absl::StrCat(dim.dim_value())
                                               : dim.dim_param().empty() ? "?"
                                                                         : Quoted(dim.dim_param()));
                                    }),
                      "]");
}

// Whether a dimension is variable: without a number, or -1 as converters of Paddle write.
bool IsVariable(const onnx::Dimension& dim) {
  return dim.dim_value() == 0 || dim.dim_value() == -1;
}

}  // namespace

std::string ExtentsOf(const Value& value) {
  if (value.kind == Value::Kind::kAttention) return "the scores of an attention";
  return absl::StrCat("[", absl::StrJoin(value.view.sizes(), ", "), "]");
}

int Translator::Run() {
  problems_ = order_.problems;
  if (!problems_.empty()) return -1;
  SetInitializers();
  SetInputs();
  for (const int n : order_.nodes) Translate(graph_.node(n));
  if (!problems_.empty()) return -1;
  const auto scores = ScoresDraft();
  if (scores.ok()) return *scores;
  problems_.push_back(absl::StrCat("output ", Quoted(scores_), ": ", scores.status().message()));
  return -1;
}

absl::StatusOr<int> Translator::ScoresDraft() {
  const auto found = values_.find(scores_);
  if (found == values_.end()) return Unsupported("it is not the result of a node");
  if (const auto what = untranslated_.find(scores_); what != untranslated_.end()) {
    return Unsupported(absl::StrCat("it is ", what->second, ", which is not supported"));
  }
  const Value& value = found->second;
  constexpr absl::string_view kScores =
      "; scores are [samples, classes] or [samples, tokens, classes]";
  if (value.kind == Value::Kind::kAttention) {
    return Unsupported(
        absl::StrCat("it is a matrix of scores or probabilities of an attention", kScores));
  }
  if (!value.is_activation()) {
    return Unsupported("it has fixed values: it does not depend on an input of the graph");
  }
  CADRE_ASSIGN_OR_RETURN(const Value plain, Plain(value));
  const auto rows = Rows(plain);
  if (!rows.ok())
    return Unsupported(absl::StrCat("it has the extents ", ExtentsOf(value), kScores));
  if (drafts_[rows->root].context) {
    return Unsupported("it is the context of an attention without its output projection");
  }
  return rows->root;
}

void Translator::SetInitializers() {
  for (size_t i = 0; i < initializers_.size(); ++i) {
    const OnnxTensor& tensor = initializers_[i];
    if (tensor.floats.empty() || tensor.dims.empty()) {
      std::vector<double> numbers = tensor.numbers;
      numbers.insert(numbers.end(), tensor.floats.begin(), tensor.floats.end());
      values_[tensor.name] = NumbersOf(tensor.dims, std::move(numbers), tensor.integer);
    } else {
      values_[tensor.name] = {
          .kind = Value::Kind::kParameter, .view = View(tensor.dims), .root = static_cast<int>(i)};
    }
  }
}

// The first input that is not an initializer, and on which the scores depend, is that of the model:
// images or tokens.
void Translator::SetInputs() {
  for (const onnx::ValueInfo& info : graph_.input()) {
    if (values_.count(info.name()) > 0 || order_.values.count(info.name()) == 0) continue;
    const absl::Status set = drafts_.empty() ? SetInput(info) : SetSecondInput(info);
    if (!set.ok()) {
      problems_.push_back(absl::StrCat("input ", Quoted(info.name()), ": ", set.message()));
      if (drafts_.empty()) drafts_.emplace_back();
    }
  }
  if (drafts_.empty()) {
    drafts_.emplace_back();
    problems_.push_back(graph_.input().empty()
                            ? "the graph has no input"
                            : absl::StrCat("output ", Quoted(scores_),
                                           " does not depend on an input of the graph"));
  }
  if (padding_token_ && !has_mask_input_) {
    problems_.push_back(
        "--padding-token is given, but the graph has no second input [samples, tokens] that could "
        "be a mask of padding");
  }
}

absl::Status Translator::SetInput(const onnx::ValueInfo& info) {
  const auto& shape = info.type().tensor_type().shape().dim();
  std::vector<int64_t> dims;
  for (const onnx::Dimension& dim : shape) dims.push_back(dim.dim_value());
  batch_is_variable_ = !shape.empty() && IsVariable(shape[0]);
  if (batch_is_variable_) dims[0] = batch_;
  const bool positive = std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d > 0; });
  if (!positive || !View::IsPossible(dims) || (dims.size() != 4 && dims.size() != 2) ||
      dims[0] > kMaxBatch || ProductOf(dims) > (int64_t{1} << 31)) {
    return Unsupported(absl::StrCat(
        "has ", ShapeText(info),
        "; it must have [samples, channels, height, width] or [samples, tokens], of which only the "
        "number of samples may be variable"));
  }
  batch_ = dims[0];
  Draft input;
  const int type = info.type().tensor_type().elem_type();
  if (dims.size() == 4) {
    input.form = Draft::Form::kImage;
    input.channels = dims[1], input.height = dims[2], input.width = dims[3];
  } else if (type == 1 || type == 10 || type == 11 || type == 16) {
    return Unsupported(absl::StrCat(
        "is a matrix of numbers, with ", ShapeText(info),
        "; only images [samples, channels, height, width] and whole numbers of tokens are "
        "supported"));
  } else {
    input.form = Draft::Form::kTokens;
    input.tokens = dims[1];
  }
  drafts_.push_back(input);
  values_[info.name()] = {.kind = Value::Kind::kActivation, .view = View(dims), .root = 0};
  return absl::OkStatus();
}

absl::Status Translator::SetSecondInput(const onnx::ValueInfo& info) {
  const auto& shape = info.type().tensor_type().shape().dim();
  const bool like_tokens = drafts_[0].form == Draft::Form::kTokens && shape.size() == 2 &&
                           (IsVariable(shape[0]) || shape[0].dim_value() == batch_) &&
                           shape[1].dim_value() == drafts_[0].tokens;
  if (like_tokens && padding_token_ && !has_mask_input_) {
    has_mask_input_ = true;
    Value& mask = values_[info.name()] = IsToken(Whole(0), Mask::kInput);
    mask.integer = info.type().tensor_type().elem_type() != 1;
    return absl::OkStatus();
  }
  return Unsupported(absl::StrCat(
      "is a second input, with ", ShapeText(info),
      "; a model has one, of images or of tokens, so give the others fixed values before the "
      "export",
      like_tokens && !has_mask_input_
          ? ", or name the token with --padding-token if the input is a mask of padding"
          : ""));
}

Value Translator::IsToken(const Value& tokens, int64_t id) const {
  auto mask = std::make_shared<Mask>(Mask{.id = id});
  const int64_t count = batch_ * drafts_[tokens.root].tokens;
  mask->on.assign(count, 1);
  mask->off.assign(count, 0);
  for (int64_t i = 0; i < count; ++i) mask->token.push_back(i);
  return {.kind = Value::Kind::kMask, .view = tokens.view, .integer = true, .mask = mask};
}

absl::Status Translator::SetPadding(int64_t id, bool hides_on, Attention& attention) {
  uint32_t padding = 0;
  if (id == Mask::kInput) {
    if (one_is_padding_.value_or(hides_on) != hides_on) {
      return Unsupported("the second input is 1 for padding in one attention, and 0 in another");
    }
    one_is_padding_ = hides_on;
    padding = *padding_token_;
  } else {
    padding = static_cast<uint32_t>(id);
    if (!hides_on) return Unsupported(absl::StrCat("its mask hides all tokens but ", padding));
  }
  if (attention.padding_token.value_or(padding) != padding) {
    return Unsupported("its masks are of different tokens");
  }
  attention.padding_token = padding;
  return absl::OkStatus();
}

void Translator::Translate(const onnx::Node& node) {
  node_ = &node;
  std::vector<Value> inputs;
  bool known = true;
  for (const std::string& name : node.input()) {
    if (name.empty()) {
      inputs.emplace_back();  // an optional input that is absent
      continue;
    }
    if (const auto what = untranslated_.find(name); what != untranslated_.end()) {
      problems_.push_back(absl::StrCat(DisplayName(node), ": its input ", Quoted(name), " is ",
                                       what->second, ", which is not supported"));
    }
    const auto found = values_.find(name);
    known = known && found != values_.end() && found->second.kind != Value::Kind::kUnknown;
    if (known) inputs.push_back(found->second);
  }
  std::vector<Value> results;
  bool translated = false;
  if (known) {
    while (!inputs.empty() && inputs.back().kind == Value::Kind::kUnknown) inputs.pop_back();
    const auto result = TranslateNode(node, std::move(inputs));
    translated = result.ok();
    if (!translated) {
      const absl::string_view what = result.status().message();
      problems_.push_back(absl::StrCat(DisplayName(node), what.empty() ? " is not supported" : ": ",
                                       what, NearestTo(node.op_type())));
    } else if (node.op_type() == "Split") {
      results = result->sequence;
    } else {
      results = {*result};
    }
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    values_[node.output(i)] = i < std::ssize(results) ? results[i] : Unknown();
    if (!translated || i < std::ssize(results)) continue;
    untranslated_[node.output(i)] = absl::StrCat("output ", i, " of ", DisplayName(node));
  }
}

absl::StatusOr<Value> Translator::TranslateNode(const onnx::Node& node, std::vector<Value> inputs) {
  const std::string& op = node.op_type();
  if (!IsDefaultDomain(node.domain())) return NotSupported();
  if (op == "Constant") return Constant(node);
  if (inputs.empty()) return NotSupported();
  CADRE_RETURN_IF_ERROR(CheckAttributes(node));
  // Optional inputs may be absent, but not the first, and not those of a fold.
  if (inputs[0].kind == Value::Kind::kUnknown) return Unsupported("its first input is absent");
  if (IsVariadic(op) && inputs.size() == 1) return inputs[0];
  const size_t operands = OperandsOf(op);
  if (operands > 0 && inputs.size() != operands && !IsVariadic(op)) {
    return Unsupported(
        absl::StrCat("it has ", Counted(std::ssize(inputs), "input"), " instead of ", operands));
  }
  const Rules rules = RulesOf(op);
  if (rules.rearrange != nullptr && rules::OnlyRearranges(node, inputs)) {
    return rules.rearrange(*this, node, inputs);
  }
  std::vector<Value> numbers;
  for (const Value& input : inputs) {
    if (const auto known = AsNumbers(input)) numbers.push_back(*known);
  }
  // Rows of a table of parameters stay parameters.
  const bool selects = op == "Gather" && inputs[0].is_parameter();
  if (numbers.size() == inputs.size() && !selects && IsFolded(node)) return Fold(node, numbers);
  const auto has = [&](Value::Kind kind) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [kind](const Value& value) { return value.kind == kind; });
  };
  const bool of_attention = has(Value::Kind::kAttention);
  if (has(Value::Kind::kMask) && !of_attention) return rules::FoldMasks(*this, node, inputs);
  if (IsVariadic(op) && inputs.size() > 2) return rules::Pairwise(*this, node, inputs);
  if (rules.layer != nullptr) return rules.layer(*this, node, inputs);
  if (of_attention) return rules::OfAttention(*this, node, inputs);
  return rules::Elementwise(*this, node, inputs);
}

absl::StatusOr<Value> Translator::Constant(const onnx::Node& node) {
  if (node.attribute().size() != 1) {
    return Unsupported(
        absl::StrCat("it has ", node.attribute_size(), " attributes instead of one, its value"));
  }
  const onnx::Attribute& value = node.attribute(0);
  if (value.name() == "value_float") return NumbersOf({}, {value.f()}, false);
  if (value.name() == "value_int") return NumbersOf({}, {static_cast<double>(value.i())}, true);
  if (value.name() == "value_ints") {
    return NumbersOf({value.ints_size()}, {value.ints().begin(), value.ints().end()}, true);
  }
  if (value.name() == "value_floats") {
    return NumbersOf({value.floats_size()}, {value.floats().begin(), value.floats().end()}, false);
  }
  if (value.name() != "value") {
    return Unsupported(absl::StrCat("its value is in the attribute ", Quoted(value.name()),
                                    "; only tensors of numbers are supported"));
  }
  CADRE_ASSIGN_OR_RETURN(OnnxTensor tensor, DecodeTensor(value.t(), ""));
  if (tensor.floats.size() > 1) {
    tensor.name = node.output().empty() ? "" : node.output(0);
    initializers_.push_back(std::move(tensor));
    return Value{.kind = Value::Kind::kParameter,
                 .view = View(initializers_.back().dims),
                 .root = static_cast<int>(initializers_.size()) - 1};
  }
  std::vector<double> numbers = std::move(tensor.numbers);
  numbers.insert(numbers.end(), tensor.floats.begin(), tensor.floats.end());
  return NumbersOf(tensor.dims, std::move(numbers), tensor.integer);
}

bool Translator::MayFold(int64_t elements) {
  if (elements > foldable_) return false;
  foldable_ -= elements;
  return true;
}

std::optional<Value> Translator::AsNumbers(const Value& value) {
  if (!value.is_numbers() && !value.is_parameter()) return std::nullopt;
  const int64_t elements = value.view.elements();
  if (elements > kMaxFoldedElements || !MayFold(elements)) return std::nullopt;
  if (value.is_numbers()) return value;
  std::vector<double> numbers;
  for (const int64_t position : value.view.Positions()) {
    numbers.push_back(initializers_[value.root].floats[position]);
  }
  return NumbersOf(value.view.sizes(), std::move(numbers), false);
}

std::optional<std::vector<int64_t>> Translator::AsIntegers(const Value& value) const {
  if (!value.is_numbers() || value.view.elements() > 1024) return std::nullopt;
  std::vector<int64_t> integers;
  for (const double number : NumbersIn(value)) {
    if (std::isnan(number)) return std::nullopt;
    // Exporters write the largest integer for "to the end".
    integers.push_back(static_cast<int64_t>(std::clamp(number, -0x1p62, 0x1p62)));
  }
  return integers;
}

std::optional<double> Translator::AsScalar(const Value& value) {
  if (value.is_parameter() && value.view.elements() != 1) return std::nullopt;
  const std::vector<Factor> factors = value.view.FactorsOf(0, value.view.rank());
  if (value.is_numbers() && factors.size() == 1 && factors[0].stride == 0) {
    return (*value.numbers)[value.view.offset()];
  }
  const auto numbers = AsNumbers(value);
  if (!numbers || numbers->view.elements() == 0) return std::nullopt;
  const std::vector<double> all = NumbersIn(*numbers);
  for (const double number : all) {
    if (number != all[0]) return std::nullopt;
  }
  return all[0];
}

}  // namespace cadre
