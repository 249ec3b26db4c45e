// Elementwise operators on one activation compose functions, which become activations of the engine
// when a layer needs the result.
//
// A function is its values at the points of value.h. If it is none of the engine's activations, the
// last operator is translated alone: its operands become layers first, and it adds or multiplies
// them, or is an activation of one of them.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/import/translator.h"
#include "model/problem.h"

namespace cadre {

namespace {

// Nested operands of functions, and values; more is not a network.
constexpr int kMaxDepth = 200;

std::string KeyOf(const Samples& function) {
  return {reinterpret_cast<const char*>(function.data()), sizeof(Samples)};
}

}  // namespace

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
      composes =
          composes && (base == nullptr || (base->root == input.root && base->view == input.view));
      base = &input;
      samples = input.function.value_or(kPoints);
    } else if (const auto scalar = AsScalar(input)) {
      samples.fill(*scalar);
    } else {
      composes = false;
    }
    operands.push_back(samples);
  }
  if (base == nullptr) return absl::NotFoundError("");
  if (drafts_[base->root].form == Draft::Form::kTokens) return CompareTokens(node, in);
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
    result =
        Unsupported("an activation and fixed numbers that are not all equal are not supported");
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
             inputs[1].is_activation() && (node->op_type() == "Add" || node->op_type() == "Mul")) {
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

}  // namespace cadre
