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
// operators on unknown values are skipped, so that all operators that are missing are reported at
// once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/import/translator.h"
#include "model/problem.h"

namespace cadre {
namespace {

constexpr int64_t kMaxBatch = 1 << 16;

Value Unknown() { return {}; }

// What an operator that is not supported may be replaced by.
std::string NearestTo(const std::string& op) {
  static const auto& nearest = *new std::map<std::string, std::string>{
      {"LeakyRelu", "Relu"},
      {"PRelu", "Relu"},
      {"Elu", "Gelu or x * Sigmoid(x)"},
      {"Selu", "Gelu or x * Sigmoid(x)"},
      {"Softplus", "Relu"},
      {"InstanceNormalization", "BatchNormalization or LayerNormalization"},
      {"GroupNormalization", "BatchNormalization or LayerNormalization"},
      {"RMSNormalization", "LayerNormalization"},
      {"ConvTranspose", "Conv"},
      {"GlobalMaxPool", "GlobalAveragePool"},
      {"LpPool", "AveragePool"},
      {"ReduceMax", "MaxPool"},
      {"ReduceSum", "GlobalAveragePool"},
      {"Resize", "Conv with a stride"},
      {"Einsum", "MatMul"},
      {"Sub", "Add"},
      {"Div", "Mul"},
      {"LogSoftmax", "the scores before it: the loss contains the softmax"}};
  const auto found = nearest.find(op);
  return found == nearest.end() ? "" : "; the nearest that works is " + found->second;
}

}  // namespace

int Translator::Run() {
  SetInputs();
  for (const onnx::Node& node : graph_.node()) Translate(node);
  if (!problems_.empty()) return -1;
  if (graph_.output().empty()) {
    problems_.push_back("the graph has no output");
    return -1;
  }
  const std::string& name = graph_.output(0).name();
  const auto found = values_.find(name);
  if (found == values_.end() || !found->second.is_activation()) {
    problems_.push_back(absl::StrCat("output ", Quoted(name), " does not depend on the input"));
    return -1;
  }
  const auto scores = Rows(found->second);
  if (!scores.ok() || drafts_[scores->root].context) {
    problems_.push_back(absl::StrCat("output ", Quoted(name),
                                     " is not [samples, classes] or [samples, tokens, classes]"));
    return -1;
  }
  return scores->root;
}

// The first input that is not an initializer is that of the model: images or tokens.
void Translator::SetInputs() {
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
  Draft input;
  bool have = false;
  for (const onnx::ValueInfo& info : graph_.input()) {
    if (values_.count(info.name()) > 0) continue;
    const auto refuse = [&](const std::string& what) {
      problems_.push_back(absl::StrCat("input ", Quoted(info.name()), ": ", what));
    };
    std::vector<int64_t> dims;
    for (const onnx::Dimension& dim : info.type().tensor_type().shape().dim()) {
      dims.push_back(dim.dim_value());
    }
    if (have) {
      if (!dims.empty() && dims[0] == 0) dims[0] = batch_;
      const bool like_tokens = !drafts_.empty() && drafts_[0].form == Draft::Form::kTokens &&
                               dims == std::vector<int64_t>{batch_, drafts_[0].tokens};
      if (like_tokens && options_.padding_token && !has_mask_input_) {
        has_mask_input_ = true;
        Value& mask = values_[info.name()] = IsToken(Whole(0), Mask::kInput);
        mask.integer = info.type().tensor_type().elem_type() != 1;
      } else {
        refuse(absl::StrCat(
            "is a second input; a model has one, of images or of tokens, so give the others fixed "
            "values before the export",
            like_tokens && !has_mask_input_
                ? ", or name the token with --padding-token if the input is a mask of padding"
                : ""));
      }
      continue;
    }
    have = true;
    if (!dims.empty() && dims[0] == 0) dims[0] = 2;  // any number, if the batch is symbolic
    const bool positive = std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d > 0; });
    if (!positive || !View::IsPossible(dims) || (dims.size() != 4 && dims.size() != 2) ||
        dims[0] > kMaxBatch || ProductOf(dims) > (int64_t{1} << 31)) {
      refuse(absl::StrCat("has the extents [", absl::StrJoin(dims, ", "),
                          "]; it must be [samples, channels, height, width] or [samples, tokens], "
                          "where only the number of samples may be variable"));
      continue;
    }
    batch_ = dims[0];
    if (dims.size() == 4) {
      input.form = Draft::Form::kImage;
      input.channels = dims[1], input.height = dims[2], input.width = dims[3];
    } else if (info.type().tensor_type().elem_type() == 1) {
      refuse("is a matrix of numbers; only images and whole numbers of tokens are supported");
    } else {
      input.form = Draft::Form::kTokens;
      input.tokens = dims[1];
    }
    drafts_.push_back(input);
    values_[info.name()] = {.kind = Value::Kind::kActivation, .view = View(dims), .root = 0};
  }
  if (drafts_.empty()) drafts_.push_back(input);
  if (!have) problems_.push_back("the graph has no input");
  if (options_.padding_token && !has_mask_input_) {
    problems_.push_back(
        "--padding-token is given, but the graph has no second input [samples, tokens] that could "
        "be a mask of padding");
  }
}

void Translator::Translate(const onnx::Node& node) {
  std::vector<Value> inputs;
  bool known = true;
  for (const std::string& name : node.input()) {
    if (name.empty()) {
      inputs.emplace_back();  // an optional input that is absent
      continue;
    }
    const auto found = values_.find(name);
    known = known && found != values_.end() && found->second.kind != Value::Kind::kUnknown;
    if (known) inputs.push_back(found->second);
  }
  Results results = std::vector<Value>();
  if (known) {
    while (!inputs.empty() && inputs.back().kind == Value::Kind::kUnknown) inputs.pop_back();
    results = TranslateNode(node, std::move(inputs));
  }
  if (!results.ok()) {
    const std::string where = absl::StrCat(
        "operator ", node.domain().empty() ? "" : node.domain() + ".", node.op_type(), " of node ",
        Quoted(node.name().empty() && !node.output().empty() ? node.output(0) : node.name()));
    const bool missing = absl::IsNotFound(results.status());
    problems_.push_back(absl::StrCat(where, missing ? " is not supported" : ": ",
                                     missing ? "" : std::string(results.status().message()),
                                     NearestTo(node.op_type())));
    results = std::vector<Value>();
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    values_[node.output(i)] = i < std::ssize(*results) ? (*results)[i] : Unknown();
  }
}

Translator::Results Translator::TranslateNode(const onnx::Node& node, std::vector<Value> inputs) {
  if (!node.domain().empty() && node.domain() != "ai.onnx") return absl::NotFoundError("");
  if (node.op_type() == "Constant") {
    CADRE_ASSIGN_OR_RETURN(Value value, Constant(node));
    return std::vector<Value>{std::move(value)};
  }
  if (inputs.empty()) return absl::NotFoundError("");
  // Optional inputs may be absent, but not the first, and not those of a fold.
  if (inputs[0].kind == Value::Kind::kUnknown) return Unsupported("its first input is absent");
  Results results = Structure(node, inputs);
  if (results.ok() || !absl::IsNotFound(results.status())) return results;
  std::vector<Value> numbers;
  for (const Value& input : inputs) {
    if (const auto known = AsNumbers(input)) numbers.push_back(*known);
  }
  if (node.op_type() == "Shape" && inputs[0].kind != Value::Kind::kAttention &&
      inputs[0].kind != Value::Kind::kSequence) {
    numbers = {Value{.kind = Value::Kind::kNumbers, .view = inputs[0].view}};
    inputs.resize(1);
  }
  // Rows of a table of parameters stay parameters.
  const bool selects = node.op_type() == "Gather" && inputs[0].is_parameter();
  if (numbers.size() == inputs.size() && !selects) {
    const auto folded = Fold(node, numbers);
    if (folded.ok()) return std::vector<Value>{*folded};
    if (!absl::IsNotFound(folded.status())) return folded.status();
  }
  const bool masked =
      std::any_of(inputs.begin(), inputs.end(), [](const Value& v) { return v.is_mask(); });
  const bool of_attention = std::any_of(inputs.begin(), inputs.end(), [](const Value& v) {
    return v.kind == Value::Kind::kAttention;
  });
  if (masked && !of_attention) {
    const auto folded = FoldMasks(node, inputs);
    if (folded.ok()) return std::vector<Value>{*folded};
    if (!absl::IsNotFound(folded.status())) return folded.status();
    return Unsupported(
        "its input is a mask of padding, which only the scores of an attention can use; give other "
        "inputs of the graph, such as segments, fixed values before the export");
  }
  const auto rule = Rules().find(node.op_type());
  if (rule != Rules().end()) return (this->*rule->second)(node, inputs);
  if (of_attention) return OfAttention(node, inputs);
  return Elementwise(node, inputs);
}

absl::StatusOr<Value> Translator::Constant(const onnx::Node& node) {
  if (node.attribute().size() != 1) return Unsupported("has no value");
  const onnx::Attribute& value = node.attribute(0);
  if (value.name() == "value_float") return NumbersOf({}, {value.f()}, false);
  if (value.name() == "value_int") return NumbersOf({}, {static_cast<double>(value.i())}, true);
  if (value.name() == "value_ints") {
    return NumbersOf({value.ints_size()}, {value.ints().begin(), value.ints().end()}, true);
  }
  if (value.name() == "value_floats") {
    return NumbersOf({value.floats_size()}, {value.floats().begin(), value.floats().end()}, false);
  }
  if (value.name() != "value") return Unsupported("has a value that is not a tensor of numbers");
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

std::optional<Value> Translator::AsNumbers(const Value& value) {
  if (!value.is_numbers() && !value.is_parameter()) return std::nullopt;
  const int64_t elements = value.view.elements();
  if (elements > kMaxFoldedElements || elements > foldable_) return std::nullopt;
  foldable_ -= elements;
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

}  // namespace cadre
