// Elementwise operators on one activation compose functions, which become activations of the engine
// when a layer needs the result.
//
// A function is its values at the points of value.h. If it is none of the engine's activations, the
// last operator is translated alone: its operands become layers first, and it adds or multiplies
// them, or is an activation of one of them.
#include <algorithm>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/import/rules.h"
#include "model/ops/activations.h"
#include "model/problem.h"

namespace cadre {

namespace {

// Nested operands of functions, and values; more is not a network.
constexpr int kMaxDepth = 200;

std::string KeyOf(const Samples& function) {
  return {reinterpret_cast<const char*>(function.data()), sizeof(Samples)};
}

bool IsAddition(const onnx::Node& node) {
  return node.op_type() == "Add" || node.op_type() == "Sum";
}

// The sum or product of activations, or the sum of one and a parameter.
absl::StatusOr<Value> Combine(Translator& t, const onnx::Node& node, const Value& a,
                              const Value& b) {
  if (a.is_activation() && b.is_activation()) return rules::AddOrMultiply(t, node, a, b);
  const bool first = a.is_activation();
  if (IsAddition(node) && (first ? b : a).is_parameter()) {
    return first ? rules::AddParameter(t, a, b) : rules::AddParameter(t, b, a);
  }
  const std::string other = t.Describe(first ? b : a), extents = ExtentsOf(first ? a : b);
  return Unsupported(absl::StrCat(IsAddition(node)
                                      ? absl::StrCat("it adds ", other, " to ", extents)
                                      : absl::StrCat("it multiplies ", extents, " by ", other),
                                  "; only a number, another activation, and with Add a bias work"));
}

}  // namespace

absl::StatusOr<Value> rules::Pairwise(Translator& t, const onnx::Node& node, const Inputs& in) {
  onnx::Node& pair = t.NewNode();
  pair.set_op_type(node.op_type());
  pair.set_name(node.name());
  if (node.output_size() > 0) pair.add_output(node.output(0));
  Value result = in[0];
  for (size_t i = 1; i < in.size(); ++i) {
    CADRE_ASSIGN_OR_RETURN(result, t.TranslateNode(pair, {result, in[i]}));
  }
  return result;
}

absl::StatusOr<Value> rules::Clip(Translator& t, const onnx::Node& node, const Inputs& in) {
  if (!in[0].is_activation() || t.drafts()[in[0].root].form == Draft::Form::kTokens) {
    return Unsupported("it limits what no layer computes");
  }
  double low = -INFINITY, high = INFINITY;
  for (const size_t i : {1, 2}) {
    if (i >= in.size() || in[i].kind == Value::Kind::kUnknown) continue;
    const auto limit = t.AsScalar(in[i]);
    if (!limit) {
      return Unsupported(absl::StrCat("its ", i == 1 ? "lower" : "upper",
                                      " limit is not a fixed number: it is ", t.Describe(in[i])));
    }
    (i == 1 ? low : high) = *limit;
  }
  Samples samples = in[0].function.value_or(kPoints);
  for (double& sample : samples) sample = std::min(std::max(sample, low), high);
  return t.Composed(in[0], samples, node, in);
}

Value Translator::Composed(const Value& base, const Samples& function, const onnx::Node& node,
                           const std::vector<Value>& in) {
  made_by_.try_emplace({base.root, KeyOf(function)}, &node, in);
  Value result = base;
  result.function = function;
  return result;
}

absl::StatusOr<Value> rules::Elementwise(Translator& t, const onnx::Node& node, const Inputs& in) {
  const NumberFunction function = FunctionOf(node, /*integer=*/false);
  if (!function || in.size() > 2) return NotSupported();
  // An activation and a number, or two functions of one activation, compose a function.
  const Value* base = nullptr;
  std::vector<Samples> operands;
  bool composes = true;
  for (const Value& input : in) {
    Samples samples;
    if (input.is_activation()) {
      composes =
          composes && (base == nullptr || (base->root == input.root && base->view == input.view));
      base = &input;
      samples = input.function.value_or(kPoints);
    } else if (const auto scalar = t.AsScalar(input)) {
      samples.fill(*scalar);
    } else {
      composes = false;
    }
    operands.push_back(samples);
  }
  if (base == nullptr) return NotSupported();
  if (t.drafts()[base->root].form == Draft::Form::kTokens) return CompareTokens(t, node, in);
  const bool sum_of_two = composes && in.size() == 2 && in[0].is_activation() &&
                          in[1].is_activation() && !in[0].function && !in[1].function;
  if (composes && !sum_of_two) {
    Samples samples;
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i] = function(operands[0][i], operands.size() > 1 ? operands[1][i] : 0);
    }
    return t.Composed(*base, samples, node, in);
  }
  if (in.size() != 2 || (!IsAddition(node) && node.op_type() != "Mul")) {
    return NotSupported();
  }
  return Combine(t, node, in[0], in[1]);
}

namespace {

// Exporters round constants to fp32.
bool Near(double a, double b) { return std::abs(a - b) <= 1e-5 * (1 + std::abs(b)); }

// "relu, relu6, ... and tanh".
std::string ActivationNames() {
  std::vector<std::string> names;
  for (const ActivationFunction& activation : Activations()) {
    const std::string name = LayerKindName(activation.kind);
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last);
}

// The activation of the engine with these values; null for other functions.
const ActivationFunction* ActivationOf(const Samples& function) {
  for (const ActivationFunction& known : Activations()) {
    bool equal = true;
    for (size_t i = 0; i < kPoints.size(); ++i) {
      equal = equal && Near(function[i], known.value(kPoints[i]));
    }
    if (equal) return &known;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Value> Translator::LastOperator(const onnx::Node& node,
                                               const std::vector<Value>& operands) {
  const absl::Cleanup leave = [this] { --depth_; };
  ++depth_;
  std::vector<Value> inputs;
  bool changed = false;
  for (Value operand : operands) {
    if (operand.is_activation() && operand.function) {
      CADRE_ASSIGN_OR_RETURN(operand, Plain(operand));
      changed = true;
    }
    inputs.push_back(std::move(operand));
  }
  absl::StatusOr<Value> result = NotSupported();
  if (changed) {
    result = TranslateNode(node, inputs);
    if (result.ok()) result = Plain(*result);
  } else if (inputs.size() == 2 && (IsAddition(node) || node.op_type() == "Mul")) {
    // Also a bias of one element, which is a number like that of an activation.
    result = Combine(*this, node, inputs[0], inputs[1]);
  }
  if (result.ok()) return result;
  return Unsupported(absl::StrCat(
      "the result of ", node.op_type(), " (node ",
      Quoted(node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name()),
      ") is not one of the activations ", ActivationNames()));
}

absl::StatusOr<Value> Translator::Plain(const Value& value) {
  if (!value.is_activation()) {
    return Unsupported(
        absl::StrCat("one of its inputs is ", Describe(value), ", which no layer computes"));
  }
  if (!value.function) return value;
  Value plain = value;
  plain.function.reset();
  const std::pair<int, std::string> key(value.root, KeyOf(*value.function));
  if (const auto made = activations_.find(key); made != activations_.end()) {
    plain.root = made->second;
    return plain;
  }
  if (*value.function == kPoints) return plain;  // such as x * 1
  if (const ActivationFunction* known = ActivationOf(*value.function)) {
    Draft draft = drafts_[value.root];
    draft.parameters.clear();
    draft.context.reset();
    draft.layer = LayerOf(known->activation);
    draft.tied_to = -1;
    draft.inputs = {value.root};
    plain.root = activations_[key] = AddDraft(std::move(draft));
    return plain;
  }
  const auto made_by = made_by_.find(key);
  if (made_by == made_by_.end() || depth_ >= kMaxDepth) {
    return Unsupported("the function of the input is not an activation");
  }
  const auto [node, operands] = made_by->second;
  CADRE_ASSIGN_OR_RETURN(const Value result, LastOperator(*node, operands));
  plain.root = result.root;
  // The value may have been rearranged since the operator, which only another form of the result
  // does not allow.
  const View& before = std::find_if(operands.begin(), operands.end(), [](const Value& operand) {
                         return operand.is_activation();
                       })->view;
  if (result.view == before && drafts_[result.root].form == drafts_[value.root].form) {
    activations_[key] = plain.root;
    return plain;
  }
  if (!(value.view == before)) {
    return Unsupported(absl::StrCat("the result of ", DisplayName(*node), ", ", ExtentsOf(value),
                                    ", is rearranged in a way that is not supported"));
  }
  plain.view = result.view;
  return plain;
}

}  // namespace cadre
