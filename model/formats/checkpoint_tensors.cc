#include "model/formats/checkpoint_tensors.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "base/status.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"

namespace cadre {

absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& path,
                                            const std::vector<NamedShape>& in_model) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<NamedShape> in_file;
  for (const StoredTensor& tensor : file.tensors()) in_file.push_back({tensor.name, tensor.shape});
  CADRE_RETURN_IF_ERROR(CheckTensors(path, in_file, in_model));
  return file;
}

absl::StatusOr<SafetensorsFile> OpenWeights(const std::string& from, const ParameterIndex& index) {
  CADRE_ASSIGN_OR_RETURN(std::string path, ResolveCheckpoint(from));
  if (!absl::EndsWith(path, ".safetensors")) {
    path = (std::filesystem::path(path) / kModelFile).string();
  }
  return OpenTensors(path, WeightTensors(index));
}

}  // namespace cadre
