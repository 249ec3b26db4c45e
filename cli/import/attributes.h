// The attributes of ONNX nodes, and which of them are read: others are errors, since an attribute
// that is ignored would change what a graph computes.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/onnx/model.pb.h"

namespace cadre {

// The attributes of a node by name. The node is borrowed.
class Attributes {
 public:
  explicit Attributes(const onnx::Node& node) : node_(node) {}
  const onnx::Attribute* Find(absl::string_view name) const;
  int64_t Integer(absl::string_view name, int64_t fallback) const;
  double Number(absl::string_view name, double fallback) const;
  std::string Text(absl::string_view name, absl::string_view fallback) const;
  std::vector<int64_t> Integers(absl::string_view name, std::vector<int64_t> fallback) const;

 private:
  const onnx::Node& node_;
};

// "its attribute pads is [0, 0, 1, 1]", or "its attribute pads is absent".
std::string AttributeText(const onnx::Node& node, absl::string_view name);

// Errors: Unimplemented, naming the attribute and its value, if the node has an attribute that the
// operator does not have or whose effect is not implemented. OK for operators that are not
// supported at all.
absl::Status CheckAttributes(const onnx::Node& node);

}  // namespace cadre
