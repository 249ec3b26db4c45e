// Translates a network in ONNX format to a model of Cadre, and trained weights back to the names of
// the network's own framework. docs/import.md lists what is supported.
//
//   CADRE_ASSIGN_OR_RETURN(const onnx::Model file, ReadOnnx("resnet18.onnx"));
//   CADRE_ASSIGN_OR_RETURN(const ImportedModel imported, ImportOnnx(file, "."));
//
// Thread-safe (pure functions; files are only read).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/import/onnx_file.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// Limit of the elements of an exported tensor: that of the weights of one layer.
inline constexpr int64_t kMaxExportedElements = int64_t{1} << 33;

struct NamedTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

struct ImportOptions {
  // If the graph has a second input, [samples, tokens], it is a mask of padding, and this is the id
  // of the tokens that are padding.
  std::optional<uint32_t> padding_token;
  // Another folder to which links in the model's folder may lead; empty: none. If the model is a
  // link itself, as in a cache of downloads, the folder of its target.
  std::string linked_folder;
  // The output with the scores. Empty: the only one of the graph.
  std::string scores;
};

struct ImportedModel {
  // With `original`, so that ExportTensors works.
  v1::Model model;
  // The value of every parameter of the model.
  std::vector<NamedTensor> weights;
  // What the file has and the model has not: one line for each kind, with its number and names.
  std::vector<std::string> left_out;
};

// `folder`: where the tensors are that the file has outside itself; empty: such files are refused.
// Guarantees: Graph::FromModel accepts the model, and every parameter has a value.
// Errors: InvalidArgument with one line for each operator that is not supported, with its node and
// the nearest operator that works, and for several outputs without options.scores; those of
// DecodeTensor.
absl::StatusOr<ImportedModel> ImportOnnx(const onnx::Model& file, const std::string& folder,
                                         const ImportOptions& options = {});

// A run file with the model, the weights of `weights_path` and defaults for the rest, with comments
// that state what to adapt.
std::string RunFileOf(const ImportedModel& imported, const std::string& name,
                      const std::string& weights_path);

struct ExportedTensors {
  std::vector<NamedTensor> tensors;
  // Original tensors of which the model has only a part, such as the row of a table that was used.
  std::vector<std::string> incomplete;
};

// The original tensors of an imported model. `read` returns the values of a parameter.
// Errors: FailedPrecondition for a model that was not imported; InvalidArgument with the tensor for
// positions outside the tensor or the parameter; those of `read`.
absl::StatusOr<ExportedTensors> ExportTensors(
    const v1::Model& model,
    const std::function<absl::StatusOr<std::vector<float>>(const std::string& parameter)>& read);

}  // namespace cadre
