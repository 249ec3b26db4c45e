// Graphs of ONNX in protobuf text, for the tests of the importer.
#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/import/import.h"
#include "proto/cadre/onnx/model.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// An initializer of fp32 with the numbers 1, 2, 3, ...
inline std::string Weight(const std::string& name, const std::vector<int64_t>& dims) {
  std::string text = absl::StrCat("initializer { name: '", name, "' data_type: 1");
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    absl::StrAppend(&text, " dims: ", dim);
    elements *= dim;
  }
  for (int64_t i = 1; i <= elements; ++i) absl::StrAppend(&text, " float_data: ", i);
  return text + " }\n";
}

inline std::string Integers(const std::string& name, const std::vector<int64_t>& numbers) {
  std::string text =
      absl::StrCat("initializer { name: '", name, "' data_type: 7 dims: ", numbers.size());
  for (const int64_t number : numbers) absl::StrAppend(&text, " int64_data: ", number);
  return text + " }\n";
}

inline std::string Scalar(const std::string& name, double number) {
  return absl::StrCat("initializer { name: '", name, "' data_type: 1 float_data: ", number, " }\n");
}

// "Op a b -> y attribute..." as a node.
inline std::string Node(const std::string& line, const std::string& attributes = "") {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  std::string text =
      absl::StrCat("node { op_type: '", words[0], "' name: '", words.back(), "_node'");
  bool output = false;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "->") {
      output = true;
    } else {
      absl::StrAppend(&text, output ? " output: '" : " input: '", words[i], "'");
    }
  }
  return absl::StrCat(text, " ", attributes, " }\n");
}

inline std::string Ints(const std::string& name, const std::vector<int64_t>& numbers) {
  std::string text = absl::StrCat("attribute { name: '", name, "'");
  for (const int64_t number : numbers) absl::StrAppend(&text, " ints: ", number);
  return text + " }";
}

inline std::string Int(const std::string& name, int64_t number) {
  return absl::StrCat("attribute { name: '", name, "' i: ", number, " }");
}

inline std::string Text(const std::string& name, const std::string& text) {
  return absl::StrCat("attribute { name: '", name, "' s: '", text, "' }");
}

inline onnx::Model Parse(const std::vector<int64_t>& input, const std::string& body, int type = 1) {
  std::string text =
      absl::StrCat("ir_version: 8 opset_import { version: 17 }\ngraph {\n", body,
                   "input { name: 'x' type { tensor_type { elem_type: ", type, " shape {");
  for (const int64_t dim : input) absl::StrAppend(&text, " dim { dim_value: ", dim, " }");
  absl::StrAppend(&text, " } } } }\noutput { name: 'out' }\n}\n");
  onnx::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

inline absl::StatusOr<ImportedModel> Import(const std::vector<int64_t>& input,
                                            const std::string& body, int type = 1,
                                            const ImportOptions& options = {}) {
  return ImportOnnx(Parse(input, body, type), "", options);
}

// A network on features: `body` computes y from f, [2, 4].
inline absl::StatusOr<ImportedModel> OnFeatures(const std::string& body) {
  return Import({2, 4, 1, 1},
                absl::StrCat(Node("Flatten x -> f"), body, Weight("head.weight", {3, 4}),
                             Node("Gemm y head.weight -> out", Int("transB", 1))));
}

// A network on images of [2, 8, 8]: `body` computes r, [samples, 3, 8, 8], from x.
inline std::string Pooled(const std::string& body) {
  return body + Node("GlobalAveragePool r -> p") + Node("Flatten p -> f") +
         Weight("head.weight", {4, 3}) + Node("Gemm f head.weight -> out", Int("transB", 1));
}

inline std::string ConvNode(const std::string& attributes = Ints("pads", {1, 1, 1, 1})) {
  return Weight("conv.weight", {3, 2, 3, 3}) + Node("Conv x conv.weight -> c", attributes);
}

inline std::string OutputNamed(const std::string& name) {
  return absl::StrCat("output { name: '", name, "' }\n");
}

// The operations of the layers, without the loss.
inline std::vector<std::string> Operations(const absl::StatusOr<ImportedModel>& imported) {
  std::vector<std::string> names;
  if (!imported.ok()) return {std::string(imported.status().message())};
  for (const v1::Layer& layer : imported->model.layer()) {
    names.push_back(v1::Layer::descriptor()->FindFieldByNumber(layer.op_case())->name());
  }
  names.pop_back();
  return names;
}

inline std::string ErrorOf(const absl::StatusOr<ImportedModel>& imported) {
  return std::string(imported.status().message());
}

}  // namespace cadre
