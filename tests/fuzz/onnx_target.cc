// The reader of ONNX files and the translation of graphs.
#include <google/protobuf/stubs/logging.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/import/import.h"
#include "glog/logging.h"
#include "model/graph.h"
#include "tests/fuzz/targets.h"

namespace cadre::fuzz {

// A file that is translated is a model whose parameters all have values, and these values come back
// from an export.
void Onnx(std::span<const uint8_t> input) {
  // Without this, each text that is not UTF-8 is logged.
  static const bool silent = (google::protobuf::SetLogHandler(nullptr), true);
  static_cast<void>(silent);
  const auto file = ParseOnnx({reinterpret_cast<const char*>(input.data()), input.size()});
  if (!file.ok()) return;
  ImportOptions options;
  if (file->graph().input_size() > 1) options.padding_token = 0;
  const auto imported = ImportOnnx(*file, /*folder=*/"", options);
  if (!imported.ok()) {
    CHECK(!imported.status().message().empty());
    return;
  }
  CHECK(Graph::FromModel(imported->model).ok());
  std::map<std::string, const NamedTensor*> weights;
  for (const NamedTensor& tensor : imported->weights) {
    CHECK_EQ(tensor.shape.elements(), std::ssize(tensor.values));
    weights[tensor.name] = &tensor;
  }
  const auto exported = ExportTensors(
      imported->model, [&](const std::string& name) -> absl::StatusOr<std::vector<float>> {
        return weights.at(name)->values;
      });
  CHECK(exported.ok() || imported->model.original().empty()) << exported.status();
}

}  // namespace cadre::fuzz
