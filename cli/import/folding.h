// Evaluates operators whose inputs are known numbers: shapes, indices, masks.
//
// Thread-safe (pure functions).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/import/attributes.h"
#include "cli/import/value.h"
#include "proto/cadre/onnx/model.pb.h"

namespace cadre {

// Limit of the elements of a folded result.
inline constexpr int64_t kMaxFoldedElements = 1 << 22;

// The function of an elementwise operator of one or two numbers; null for other operators.
// `integer`: division rounds towards zero.
using NumberFunction = std::function<double(double, double)>;
NumberFunction FunctionOf(const onnx::Node& node, bool integer);
// The numbers that it takes, 1 or 2; 0 for other operators.
size_t OperandsOf(const std::string& op);
// Whether it takes any number of operands, two at a time.
bool IsVariadic(const std::string& op);

// Whether the operator is evaluated if its inputs are known numbers.
bool IsFolded(const onnx::Node& node);

// The result of an operator that only depends on known numbers. Requires: IsFolded, and an input.
// Errors: InvalidArgument for inputs that do not fit.
absl::StatusOr<Value> Fold(const onnx::Node& node, const std::vector<Value>& inputs);

}  // namespace cadre
