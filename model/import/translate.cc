// Translation of an ONNX graph to layers.
//
// Every value of the graph is one of the kinds of value.h. Known numbers are folded. Operators that
// only rearrange elements change the view of a value and make no layer. Elementwise operators on one
// activation compose a function, which is compared with the engine's activations when a layer needs
// the result; so a GELU may be one operator or eight. Operators with parameters make drafts of
// layers. A draft of which the output is not used in the end is dropped: the projections to queries,
// keys and values, for instance, become parts of the attention that begins with their product.
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

// Nested operands of functions, and values; more is not a network.
constexpr int kMaxDepth = 200;
constexpr int64_t kMaxBatch = 1 << 16;

Value Unknown() { return {}; }

std::string KeyOf(const Samples& function) {
  return {reinterpret_cast<const char*>(function.data()), sizeof(Samples)};
}

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
      {"LSTM", "attention"},
      {"GRU", "attention"},
      {"RNN", "attention"},
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
      values_[tensor.name] = {.kind = Value::Kind::kParameter,
                              .view = View(tensor.dims),
                              .root = static_cast<int>(i)};
    }
  }
  Draft input;
  bool have = false;
  for (const onnx::ValueInfo& info : graph_.input()) {
    if (values_.count(info.name()) > 0) continue;
    const auto refuse = [&](const std::string& what) {
      problems_.push_back(absl::StrCat("input ", Quoted(info.name()), ": ", what));
    };
    if (have) {
      refuse("is a second input; a model has one, of images or of tokens, so give the others fixed "
             "values before the export");
      continue;
    }
    have = true;
    std::vector<int64_t> dims;
    for (const onnx::Dimension& dim : info.type().tensor_type().shape().dim()) {
      dims.push_back(dim.dim_value());
    }
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
    const std::string where =
        absl::StrCat("operator ", node.domain().empty() ? "" : node.domain() + ".",
                     node.op_type(), " of node ",
                     Quoted(node.name().empty() && !node.output().empty() ? node.output(0)
                                                                          : node.name()));
    const bool missing = absl::IsNotFound(results.status());
    problems_.push_back(
        absl::StrCat(where, missing ? " is not supported" : ": ",
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
  const auto rule = Rules().find(node.op_type());
  if (rule != Rules().end()) return (this->*rule->second)(node, inputs);
  for (const Value& input : inputs) {
    if (input.kind == Value::Kind::kAttention) return OfAttention(node, inputs);
  }
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

// --- Operators that only rearrange elements ---

Translator::Results Translator::Structure(const onnx::Node& node, const std::vector<Value>& in) {
  const std::string& op = node.op_type();
  const Value& x = in[0];
  const Attributes attributes(node);
  const auto one = [](Value value) { return std::vector<Value>{std::move(value)}; };
  if (op == "Identity") return one(x);
  if (op == "SequenceAt" && x.kind == Value::Kind::kSequence && in.size() > 1) {
    const auto index = AsIntegers(in[1]);
    if (!index || index->size() != 1 || (*index)[0] < 0 ||
        (*index)[0] >= std::ssize(x.sequence)) {
      return Unsupported("its index is not known");
    }
    return one(x.sequence[(*index)[0]]);
  }
  if (x.kind == Value::Kind::kAttention || x.kind == Value::Kind::kSequence) {
    return absl::NotFoundError("");
  }
  if ((op == "Cast" || op == "CastLike") && !x.is_numbers()) return one(x);
  if (op == "CastLike" && in.size() > 1 && !in[1].is_numbers()) {
    Value numbers = x;
    numbers.integer = false;  // activations and parameters are floating point
    return one(numbers);
  }
  if (op == "Split" || op == "SplitToSequence") return Split(node, in);
  Value result = x;
  if (op == "Transpose") {
    std::vector<int64_t> order(x.view.rank());
    for (int d = 0; d < x.view.rank(); ++d) order[d] = x.view.rank() - 1 - d;
    order = attributes.Integers("perm", order);
    std::set<int64_t> dims(order.begin(), order.end());
    if (std::ssize(order) != x.view.rank() || std::ssize(dims) != x.view.rank() ||
        (!dims.empty() && (*dims.begin() != 0 || *dims.rbegin() != x.view.rank() - 1))) {
      return Unsupported("its attribute perm is not a permutation of the dimensions");
    }
    result.view = x.view.Transposed(order);
    return one(result);
  }
  if (op == "Expand") {
    const auto sizes = in.size() > 1 ? AsIntegers(in[1]) : std::nullopt;
    const auto view = sizes ? x.view.Expanded(*sizes) : std::nullopt;
    if (!view || (x.is_numbers() && view->elements() > kMaxFoldedElements) ||
        (x.is_activation() && view->elements() != x.view.elements())) {
      return Unsupported("the extents are not known, or do not fit");
    }
    result.view = *view;
    return one(result);
  }
  if (op == "Gather" && !x.is_numbers() && in.size() > 1 && in[1].is_numbers() &&
      in[1].view.rank() == 0) {
    const auto index = AsIntegers(in[1]);
    int64_t axis = attributes.Integer("axis", 0);
    axis += axis < 0 ? x.view.rank() : 0;
    if (!index || axis < 0 || axis >= x.view.rank()) return Unsupported("its index is not known");
    const int64_t at = (*index)[0] + ((*index)[0] < 0 ? x.view.size(axis) : 0);
    if (at < 0 || at >= x.view.size(axis)) return Unsupported("its index is outside the tensor");
    result.view = x.view.Selected(axis, at);
    return one(result);
  }
  absl::StatusOr<Value> changed = absl::NotFoundError("");
  if (op == "Reshape" || op == "Flatten") changed = Reshape(node, in);
  if (op == "Squeeze") changed = Squeeze(in);
  if (op == "Unsqueeze") changed = Unsqueeze(in);
  if (op == "Slice") changed = Slice(in);
  if (!changed.ok()) return changed.status();
  return one(*std::move(changed));
}

absl::StatusOr<Value> Translator::Reshape(const onnx::Node& node, const std::vector<Value>& in) {
  Value result = in[0];
  const std::vector<int64_t> before = in[0].view.sizes();
  const int64_t elements = in[0].view.elements();
  std::vector<int64_t> sizes;
  if (node.op_type() == "Flatten") {
    int64_t axis = Attributes(node).Integer("axis", 1);
    axis += axis < 0 ? std::ssize(before) : 0;
    if (axis < 0 || axis > std::ssize(before)) return Unsupported("its axis is not a dimension");
    sizes = {ProductOf({before.begin(), before.begin() + axis}),
             ProductOf({before.begin() + axis, before.end()})};
  } else {
    const auto wanted = in.size() > 1 ? AsIntegers(in[1]) : std::nullopt;
    if (!wanted || wanted->size() > View::kMaxDims) return Unsupported("its shape is not known");
    sizes = *wanted;
    int64_t known = 1;
    int open = -1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0 && d < before.size()) sizes[d] = before[d];
      if (sizes[d] == -1 && open < 0) {
        open = static_cast<int>(d);
      } else if (sizes[d] <= 0 || sizes[d] > elements) {
        return Unsupported("its shape does not fit the input");
      } else if (known <= elements) {
        known *= sizes[d];
      }
    }
    if (open >= 0) sizes[open] = elements / known;
  }
  const auto view = in[0].view.Reshaped(sizes);
  if (!view) {
    return Unsupported(absl::StrCat("[", absl::StrJoin(before, ", "), "] cannot become [",
                                    absl::StrJoin(sizes, ", "), "]"));
  }
  result.view = *view;
  return result;
}

absl::StatusOr<Value> Translator::Squeeze(const std::vector<Value>& in) {
  Value result = in[0];
  const auto axes = in.size() > 1 ? AsIntegers(in[1]) : std::nullopt;
  if (in.size() > 1 && !axes) return Unsupported("its axes are not known");
  std::set<int64_t> removed;
  for (int64_t d = 0; !axes && d < in[0].view.rank(); ++d) {
    if (in[0].view.size(d) == 1) removed.insert(d);
  }
  for (size_t i = 0; axes && i < axes->size(); ++i) {
    removed.insert((*axes)[i] + ((*axes)[i] < 0 ? in[0].view.rank() : 0));
  }
  for (auto d = removed.rbegin(); d != removed.rend(); ++d) {
    if (*d < 0 || *d >= in[0].view.rank() || in[0].view.size(*d) != 1) {
      return Unsupported(absl::StrCat("dimension ", *d, " does not have the extent 1"));
    }
    result.view = result.view.Selected(*d, 0);
  }
  return result;
}

absl::StatusOr<Value> Translator::Unsqueeze(const std::vector<Value>& in) {
  const auto axes = in.size() > 1 ? AsIntegers(in[1]) : std::nullopt;
  if (!axes || in[0].view.rank() + axes->size() > View::kMaxDims) {
    return Unsupported("its axes are not known");
  }
  const int64_t rank = in[0].view.rank() + std::ssize(*axes);
  std::set<int64_t> added;
  for (const int64_t axis : *axes) added.insert(axis + (axis < 0 ? rank : 0));
  std::vector<int64_t> sizes = in[0].view.sizes();
  for (const int64_t d : added) {
    if (d < 0 || d > std::ssize(sizes)) return Unsupported("its axes do not fit");
    sizes.insert(sizes.begin() + d, 1);
  }
  Value result = in[0];
  const auto view = in[0].view.Reshaped(sizes);
  if (!view) return Unsupported("its axes do not fit");
  result.view = *view;
  return result;
}

absl::StatusOr<Value> Translator::Slice(const std::vector<Value>& in) {
  if (in.size() < 3) return Unsupported("it has no limits");
  const auto begins = AsIntegers(in[1]), ends = AsIntegers(in[2]);
  auto axes = in.size() > 3 ? AsIntegers(in[3]) : std::nullopt;
  const auto steps = in.size() > 4 ? AsIntegers(in[4]) : std::nullopt;
  if (!begins || !ends || begins->size() != ends->size() || (in.size() > 3 && !axes)) {
    return Unsupported("its limits are not known");
  }
  if (!axes) {
    axes.emplace();
    for (size_t i = 0; i < begins->size(); ++i) axes->push_back(i);
  }
  Value result = in[0];
  for (size_t i = 0; i < begins->size(); ++i) {
    const int64_t axis = i < axes->size() ? (*axes)[i] + ((*axes)[i] < 0 ? in[0].view.rank() : 0)
                                          : -1;
    if (axis < 0 || axis >= in[0].view.rank() ||
        (steps && (i >= steps->size() || (*steps)[i] != 1))) {
      return Unsupported("only steps of 1 are supported");
    }
    const int64_t extent = result.view.size(axis);
    const auto at = [&](int64_t limit) {
      return std::clamp<int64_t>(limit < 0 ? limit + extent : limit, 0, extent);
    };
    const int64_t begin = at((*begins)[i]);
    const auto view = result.view.Sliced(axis, begin, std::max(begin, at((*ends)[i])));
    if (!view) return Unsupported("the elements are not evenly spaced");
    result.view = *view;
  }
  return result;
}

Translator::Results Translator::Split(const onnx::Node& node, const std::vector<Value>& in) {
  const Attributes attributes(node);
  const bool sequence = node.op_type() == "SplitToSequence";
  int64_t axis = attributes.Integer("axis", 0);
  axis += axis < 0 ? in[0].view.rank() : 0;
  if (axis < 0 || axis >= in[0].view.rank()) return Unsupported("its axis is not a dimension");
  const int64_t extent = in[0].view.size(axis);
  std::vector<int64_t> lengths;
  if (in.size() > 1) {
    const auto given = AsIntegers(in[1]);
    if (!given || given->empty()) return Unsupported("the lengths of the parts are not known");
    lengths = *given;
    if (in[1].view.rank() == 0) {
      const int64_t length = lengths[0];
      if (length <= 0 || extent / length > 4096) return Unsupported("its length does not fit");
      lengths.assign(extent / length, length);
      if (extent % length != 0) lengths.push_back(extent % length);
    }
  } else {
    const int64_t parts = sequence ? extent : attributes.Integer("num_outputs", node.output_size());
    if (parts <= 0 || parts > 4096 || extent % parts != 0) {
      return Unsupported("the parts have different lengths");
    }
    lengths.assign(parts, extent / parts);
  }
  std::vector<Value> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    if (length < 0 || length > extent) return Unsupported("the lengths of the parts do not fit");
    const auto view = in[0].view.Sliced(axis, begin, begin + length);
    if (!view) return Unsupported("the lengths of the parts do not fit");
    parts.push_back(in[0]);
    parts.back().view = *view;
    begin += length;
  }
  if (begin != extent) return Unsupported("the lengths of the parts do not fit");
  if (!sequence) return parts;
  if (attributes.Integer("keepdims", 1) == 0) return Unsupported("only keepdims = 1 is supported");
  return std::vector<Value>{{.kind = Value::Kind::kSequence, .sequence = std::move(parts)}};
}

// --- Elementwise operators ---

Translator::Results Translator::Activation(const Value& x, const Samples& function) {
  Value result = x;
  result.function = function;
  return std::vector<Value>{std::move(result)};
}

Translator::Results Translator::Clip(const onnx::Node& node, const std::vector<Value>& in) {
  if (!in[0].is_activation() || drafts_[in[0].root].form == Draft::Form::kTokens) {
    return Unsupported("its input is not an activation");
  }
  double low = -INFINITY, high = INFINITY;
  for (const size_t i : {1, 2}) {
    if (i >= in.size() || in[i].kind == Value::Kind::kUnknown) continue;
    const auto limit = AsScalar(in[i]);
    if (!limit) return Unsupported("its limits are not known");
    (i == 1 ? low : high) = *limit;
  }
  Samples samples = in[0].function.value_or(kPoints);
  for (double& sample : samples) sample = std::min(std::max(sample, low), high);
  made_by_.try_emplace({in[0].root, KeyOf(samples)}, &node, in);
  return Activation(in[0], samples);
}

Translator::Results Translator::Elementwise(const onnx::Node& node, const std::vector<Value>& in) {
  const NumberFunction function = FunctionOf(node, /*integer=*/false);
  if (!function || in.size() > 2) return absl::NotFoundError("");
  // An activation and a number, or two functions of one activation, compose a function.
  const Value* base = nullptr;
  std::vector<Samples> operands;
  bool composes = true;
  for (const Value& input : in) {
    Samples samples;
    if (input.is_activation()) {
      composes = composes && (base == nullptr ||
                              (base->root == input.root && base->view == input.view));
      base = &input;
      samples = input.function.value_or(kPoints);
    } else if (const auto scalar = AsScalar(input)) {
      samples.fill(*scalar);
    } else {
      composes = false;
    }
    operands.push_back(samples);
  }
  if (base == nullptr || drafts_[base->root].form == Draft::Form::kTokens) {
    return absl::NotFoundError("");
  }
  const bool sum_of_two = composes && in.size() == 2 && in[0].is_activation() &&
                          in[1].is_activation() && !in[0].function && !in[1].function;
  if (composes && !sum_of_two) {
    Samples result;
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = function(operands[0][i], operands.size() > 1 ? operands[1][i] : 0);
    }
    made_by_.try_emplace({base->root, KeyOf(result)}, &node, in);
    return Activation(*base, result);
  }
  if (in.size() != 2 || (node.op_type() != "Add" && node.op_type() != "Mul")) {
    return absl::NotFoundError("");
  }
  absl::StatusOr<Value> result = absl::NotFoundError("");
  if (in[0].is_activation() && in[1].is_activation()) {
    result = AddOrMultiply(node, in[0], in[1]);
  } else if (node.op_type() == "Add" && in[0].is_activation() && in[1].is_parameter()) {
    result = AddParameter(in[0], in[1]);
  } else if (node.op_type() == "Add" && in[1].is_activation() && in[0].is_parameter()) {
    result = AddParameter(in[1], in[0]);
  } else {
    result = Unsupported("an activation and fixed numbers that are not all equal are not supported");
  }
  if (!result.ok()) return result.status();
  return std::vector<Value>{*std::move(result)};
}

namespace {

struct KnownActivation {
  NumberFunction function;
  void (*set)(v1::Layer& layer);
};

// The activations of the engine.
const std::vector<KnownActivation>& KnownActivations() {
  const auto of = [](const char* op, bool approximate = false) {
    onnx::Node node;
    node.set_op_type(op);
    if (approximate) {
      onnx::Attribute& attribute = *node.add_attribute();
      attribute.set_name("approximate");
      attribute.set_s("tanh");
    }
    return FunctionOf(node, false);
  };
  static const auto& known = *new std::vector<KnownActivation>{
      {of("Relu"), [](v1::Layer& layer) { layer.mutable_relu(); }},
      {of("Gelu"), [](v1::Layer& layer) { layer.mutable_gelu(); }},
      {of("Gelu", true), [](v1::Layer& layer) { layer.mutable_gelu()->set_approximate(true); }},
      {of("Sigmoid"), [](v1::Layer& layer) { layer.mutable_sigmoid(); }},
      {of("Tanh"), [](v1::Layer& layer) { layer.mutable_tanh(); }},
      {of("Swish"), [](v1::Layer& layer) { layer.mutable_silu(); }},
      {of("HardSwish"), [](v1::Layer& layer) { layer.mutable_hard_swish(); }},
      {[](double x, double) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); },
       [](v1::Layer& layer) { layer.mutable_hard_sigmoid(); }},
      {[](double x, double) { return std::clamp(x, 0.0, 6.0); },
       [](v1::Layer& layer) { layer.mutable_relu6(); }}};
  return known;
}

// Exporters round constants to fp32.
bool Near(double a, double b) { return std::abs(a - b) <= 1e-5 * (1 + std::abs(b)); }

}  // namespace

absl::StatusOr<Value> Translator::Plain(const Value& value) {
  if (!value.is_activation()) return Unsupported("an input is not an activation");
  if (!value.function) return value;
  Value plain = value;
  plain.function.reset();
  const Samples& function = *value.function;
  const std::pair<int, std::string> key(value.root, KeyOf(function));
  if (const auto made = activations_.find(key); made != activations_.end()) {
    plain.root = made->second;
    return plain;
  }
  for (const KnownActivation& known : KnownActivations()) {
    bool equal = true;
    for (size_t i = 0; i < kPoints.size(); ++i) {
      equal = equal && Near(function[i], known.function(kPoints[i], 0));
    }
    if (!equal) continue;
    Draft draft = drafts_[value.root];
    draft.parameters.clear();
    draft.context.reset();
    draft.layer = v1::Layer();
    draft.tied_to = -1;
    known.set(draft.layer);
    draft.inputs = {value.root};
    plain.root = AddDraft(std::move(draft));
    activations_[key] = plain.root;
    return plain;
  }
  // The operands become layers; then the last operator is an activation, or adds or multiplies.
  const auto made_by = made_by_.find(key);
  if (made_by == made_by_.end() || depth_ >= kMaxDepth) {
    return Unsupported("the function of the input is not an activation");
  }
  const auto [node, operands] = made_by->second;
  std::vector<Value> inputs;
  bool changed = false;
  ++depth_;
  for (Value operand : operands) {
    if (operand.is_activation() && operand.function) {
      const auto made = Plain(operand);
      if (!made.ok()) {
        --depth_;
        return made.status();
      }
      operand = *made;
      changed = true;
    }
    inputs.push_back(operand);
  }
  Results results = Unsupported("");
  if (changed) results = TranslateNode(*node, inputs);
  absl::StatusOr<Value> result = Unsupported("");
  if (results.ok() && !results->empty() && results->front().is_activation()) {
    result = Plain(results->front());
  } else if (!changed && inputs.size() == 2 && inputs[0].is_activation() &&
             inputs[1].is_activation() &&
             (node->op_type() == "Add" || node->op_type() == "Mul")) {
    result = AddOrMultiply(*node, inputs[0], inputs[1]);
  }
  --depth_;
  if (!result.ok()) {
    return Unsupported(absl::StrCat("the result of ", node->op_type(), " (node ",
                                    Quoted(node->name()),
                                    ") is not one of the activations relu, relu6, gelu, silu, "
                                    "hard_swish, hard_sigmoid, sigmoid and tanh"));
  }
  plain.root = result->root;
  if (!(result->view == value.view)) plain.view = result->view;
  activations_[key] = plain.root;
  return plain;
}

// --- Scores of attention ---

Translator::Results Translator::OfAttention(const onnx::Node& node,
                                            const std::vector<Value>& in) {
  const std::string& op = node.op_type();
  const auto one = [](Attention attention) {
    return std::vector<Value>{{.kind = Value::Kind::kAttention,
                               .attention = std::make_shared<const Attention>(attention)}};
  };
  size_t at = 0;
  while (in[at].kind != Value::Kind::kAttention) ++at;
  Attention attention = *in[at].attention;
  if (attention.softmax) return Unsupported("changes probabilities of an attention");
  if ((op == "Mul" || (op == "Div" && at == 0)) && in.size() == 2) {
    const auto scalar = AsScalar(in[1 - at]);
    if (!scalar || *scalar == 0) return Unsupported("scales scores by other than a number");
    attention.scale *= op == "Mul" ? *scalar : 1 / *scalar;
    return one(attention);
  }
  std::vector<double> added;
  View mask;
  if (op == "Add" && in.size() == 2) {
    const auto numbers = AsNumbers(in[1 - at]);
    if (!numbers) return Unsupported("adds to the scores of an attention what is not a fixed mask");
    mask = numbers->view;
    added = NumbersIn(*numbers);
  } else if (op == "Where" && in.size() == 3 && at == 1) {
    const auto condition = AsNumbers(in[0]);
    const auto elsewhere = AsScalar(in[2]);
    if (!condition || !elsewhere) return Unsupported("its mask is not fixed");
    mask = condition->view;
    for (const double kept : NumbersIn(*condition)) added.push_back(kept != 0 ? 0 : *elsewhere);
  } else {
    return Unsupported("is not supported between the products and the softmax of an attention");
  }
  // All zero, or zero exactly where the key is not later than the query.
  const int rank = mask.rank();
  const int64_t columns = rank > 0 ? mask.size(rank - 1) : 1;
  const int64_t rows = rank > 1 ? mask.size(rank - 2) : 1;
  bool none = true, causal = rows == columns;
  for (size_t i = 0; i < added.size(); ++i) {
    const int64_t column = i % columns, row = i / columns % rows;
    none = none && added[i] == 0;
    causal = causal && (column <= row ? added[i] == 0 : added[i] <= -1e4);
  }
  if (!none && !causal) {
    return Unsupported(
        "its mask is neither empty nor causal; padding masks are not supported, so export the model "
        "for whole sequences");
  }
  attention.causal = attention.causal || !none;
  return one(attention);
}

}  // namespace cadre
