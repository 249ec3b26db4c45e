#include "cli/import/attributes.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/problem.h"

namespace cadre {
namespace {

// Attributes that are read, or that do not change the results that are used. Operators that are
// missing have none.
const std::map<std::string, std::set<std::string>>& KnownAttributes() {
  static const auto& known = *new std::map<std::string, std::set<std::string>>{
      {"AveragePool",
       {"auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads",
        "strides"}},
      {"BatchNormalization", {"epsilon", "momentum", "training_mode"}},
      {"Cast", {"round_mode", "saturate", "to"}},
      {"CastLike", {"round_mode", "saturate"}},
      {"Concat", {"axis"}},
      {"ConstantOfShape", {"value"}},
      {"Conv", {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}},
      {"CumSum", {"exclusive", "reverse"}},
      {"Dropout", {"seed"}},
      {"Flatten", {"axis"}},
      {"Gather", {"axis"}},
      {"GatherElements", {"axis"}},
      {"GatherND", {"batch_dims"}},
      {"Gelu", {"approximate"}},
      {"Gemm", {"alpha", "beta", "transA", "transB"}},
      {"HardSigmoid", {"alpha", "beta"}},
      {"LRN", {"alpha", "beta", "bias", "size"}},
      {"LayerNormalization", {"axis", "epsilon", "stash_type"}},
      // The order of storage concerns the positions of the largest elements, which are refused.
      {"MaxPool",
       {"auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"}},
      {"Mod", {"fmod"}},
      {"ReduceMean", {"axes", "keepdims", "noop_with_empty_axes"}},
      {"Reshape", {"allowzero"}},
      {"Shape", {"end", "start"}},
      {"Softmax", {"axis"}},
      {"Split", {"axis", "num_outputs"}},
      {"SplitToSequence", {"axis", "keepdims"}},
      {"Swish", {"alpha"}},
      {"Transpose", {"perm"}},
      {"Trilu", {"upper"}}};
  return known;
}

// Operators without attributes that are translated or folded.
const std::set<std::string>& WithoutAttributes() {
  static const auto& names = *new std::set<std::string>{"Abs",         "Add",
                                                        "And",         "Ceil",
                                                        "Clip",        "Div",
                                                        "Equal",       "Erf",
                                                        "Exp",         "Expand",
                                                        "Floor",       "GlobalAveragePool",
                                                        "Greater",     "GreaterOrEqual",
                                                        "HardSwish",   "Identity",
                                                        "IsNaN",       "Less",
                                                        "LessOrEqual", "Log",
                                                        "MatMul",      "Max",
                                                        "Min",         "Mul",
                                                        "Neg",         "Not",
                                                        "Or",          "Pow",
                                                        "Range",       "Reciprocal",
                                                        "Relu",        "SequenceAt",
                                                        "Sigmoid",     "Size",
                                                        "Slice",       "Softplus",
                                                        "Sqrt",        "Squeeze",
                                                        "Sub",         "Sum",
                                                        "Tanh",        "Unsqueeze",
                                                        "Where"};
  return names;
}

std::string ValueText(const onnx::Attribute& attribute) {
  if (!attribute.s().empty()) return Quoted(attribute.s());
  if (!attribute.ints().empty()) {
    return absl::StrCat("[", absl::StrJoin(attribute.ints(), ", "), "]");
  }
  if (!attribute.floats().empty()) {
    return absl::StrCat("[", absl::StrJoin(attribute.floats(), ", "), "]");
  }
  if (attribute.has_t()) return "a tensor";
  return attribute.f() != 0 ? absl::StrCat(attribute.f()) : absl::StrCat(attribute.i());
}

}  // namespace

const onnx::Attribute* Attributes::Find(absl::string_view name) const {
  for (const onnx::Attribute& attribute : node_.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t Attributes::Integer(absl::string_view name, int64_t fallback) const {
  const onnx::Attribute* found = Find(name);
  return found == nullptr ? fallback : found->i();
}

double Attributes::Number(absl::string_view name, double fallback) const {
  const onnx::Attribute* found = Find(name);
  return found == nullptr ? fallback : found->f();
}

std::string Attributes::Text(absl::string_view name, absl::string_view fallback) const {
  const onnx::Attribute* found = Find(name);
  return found == nullptr ? std::string(fallback) : found->s();
}

std::vector<int64_t> Attributes::Integers(absl::string_view name,
                                          std::vector<int64_t> fallback) const {
  const onnx::Attribute* found = Find(name);
  if (found == nullptr) return fallback;
  return {found->ints().begin(), found->ints().end()};
}

std::string AttributeText(const onnx::Node& node, absl::string_view name) {
  const onnx::Attribute* found = Attributes(node).Find(name);
  return absl::StrCat("its attribute ", name, " is ",
                      found == nullptr ? "absent" : ValueText(*found));
}

absl::Status CheckAttributes(const onnx::Node& node) {
  const auto known = KnownAttributes().find(node.op_type());
  if (known == KnownAttributes().end() && WithoutAttributes().count(node.op_type()) == 0) {
    return absl::OkStatus();
  }
  std::set<std::string> names;
  for (const onnx::Attribute& attribute : node.attribute()) {
    if (!names.insert(attribute.name()).second) {
      return absl::UnimplementedError(
          absl::StrCat("it has two attributes ", Quoted(attribute.name())));
    }
    if (known != KnownAttributes().end() && known->second.count(attribute.name()) > 0) continue;
    return absl::UnimplementedError(
        absl::StrCat(AttributeText(node, attribute.name()), ", which is not supported"));
  }
  const Attributes attributes(node);
  // The only value that is implemented.
  const auto only = [&](const char* name, double value) {
    const onnx::Attribute* found = attributes.Find(name);
    return found == nullptr || (found->f() != 0 ? found->f() : found->i()) == value;
  };
  const struct {
    const char *op, *name;
    double value;
  } fixed[] = {
      {"Mod", "fmod", 0}, {"Swish", "alpha", 1}, {"ReduceMean", "noop_with_empty_axes", 0}};
  for (const auto& each : fixed) {
    if (node.op_type() == each.op && !only(each.name, each.value)) {
      return absl::UnimplementedError(
          absl::StrCat(AttributeText(node, each.name), "; only ", each.value, " is supported"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
