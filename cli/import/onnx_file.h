// Reads ONNX files: the message, and the tensors that it has in itself or in other files.
//
// Files may come from anywhere. A tensor's bytes are used only if their number is that of its
// extents; other files are opened only beneath the folder of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/onnx/model.pb.h"

namespace cadre {

// A tensor of numbers.
struct OnnxTensor {
  std::string name;
  std::vector<int64_t> dims;
  // Whole numbers and truth values; otherwise floating point.
  bool integer = false;
  // One of the two has the elements in row-major order: fp32 tensors `floats`, others `numbers`.
  std::vector<float> floats;
  std::vector<double> numbers;
};

// Where tensors outside the message are: the folder of the model; empty: they are refused. Links in
// it may lead to `linked_folder` as well, unless it is empty.
// Errors: InvalidArgument with the tensor's name for unknown types and sizes that do not fit;
// those of files.
absl::StatusOr<OnnxTensor> DecodeTensor(const onnx::Tensor& tensor, const std::string& folder,
                                        const std::string& linked_folder = "");

// Whether a domain of operators is ONNX's own, which has two names: "" and "ai.onnx".
bool IsDefaultDomain(absl::string_view domain);

// Errors: InvalidArgument for bytes that are not an ONNX model, and for models with local
// functions, without a version of the default domain's operators, or with one below 13.
absl::StatusOr<onnx::Model> ParseOnnx(absl::string_view bytes);

// Reads a file of at most 2 GiB. Errors: those of ReadFile and ParseOnnx, with the path.
absl::StatusOr<onnx::Model> ReadOnnx(const std::string& path);

}  // namespace cadre
