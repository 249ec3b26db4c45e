// The manifest describes the tensor files of a checkpoint: run, step, position in the data, and
// the parameters in the order of the flat model vector.
//
// Tensors are found by name, so other programs may write the files (OpenWeights,
// checkpoint_folder.h, accepts a .safetensors file without a manifest). The order in the manifest
// matters only for digests, which depend on positions: they can be compared only if SameOrder is
// true.
#include "model/formats/checkpoint_manifest.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "model/problem.h"
#include "model/text_message.h"

namespace cadre {
namespace {

constexpr size_t kMaxDifferences = 10;

}  // namespace

std::string StateTensorName(absl::string_view parameter, absl::string_view state) {
  return absl::StrCat(parameter, "@", state);
}

std::vector<NamedShape> WeightTensors(const ParameterIndex& index) {
  std::vector<NamedShape> tensors;
  for (const Parameter& parameter : index.parameters()) {
    tensors.push_back({parameter.name, parameter.shape});
  }
  return tensors;
}

// Running statistics have no optimizer state.
std::vector<NamedShape> StateTensors(const ParameterIndex& index,
                                     const std::vector<std::string>& states) {
  std::vector<NamedShape> tensors;
  for (const std::string& state : states) {
    for (const Parameter& parameter : index.parameters()) {
      if (IsStatistic(parameter.role)) continue;
      tensors.push_back({StateTensorName(parameter.name, state), parameter.shape});
    }
  }
  return tensors;
}

void DescribeParameters(const ParameterIndex& index, v1::CheckpointManifest* manifest) {
  manifest->clear_parameter();
  for (const Parameter& parameter : index.parameters()) {
    v1::ParameterManifest* entry = manifest->add_parameter();
    entry->set_name(parameter.name);
    for (const int64_t extent : parameter.shape.dims()) entry->add_extent(extent);
  }
}

bool SameOrder(const v1::CheckpointManifest& manifest, const ParameterIndex& index) {
  if (manifest.parameter_size() != std::ssize(index.parameters())) return false;
  for (int i = 0; i < manifest.parameter_size(); ++i) {
    const v1::ParameterManifest& entry = manifest.parameter(i);
    if (entry.name() != index[i].name) return false;
    const std::vector<int64_t> extents(entry.extent().begin(), entry.extent().end());
    if (extents != index[i].shape.dims()) return false;
  }
  return true;
}

std::vector<std::string> AveragingStateNames(const v1::CheckpointManifest& manifest) {
  std::vector<std::string> names;
  for (const v1::StateManifest& state : manifest.averaging_state()) names.push_back(state.name());
  return names;
}

absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& path,
                                                    const RootedFiles& files) {
  v1::CheckpointManifest manifest;
  // Later builds may add fields; format_version changes if they are not optional.
  CADRE_RETURN_IF_ERROR(ReadTextMessage(path, kMaxReadBytes, "a checkpoint manifest", manifest,
                                        UnknownFields::kIgnore, files)
                            .status());
  if (manifest.format_version() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no format_version"));
  }
  if (manifest.format_version() > kCheckpointFormat) {
    return absl::UnimplementedError(absl::StrCat(path, ": format ", manifest.format_version(),
                                                 ", of a later build; this one reads up to ",
                                                 kCheckpointFormat));
  }
  for (const auto* states : {&manifest.optimizer().state(), &manifest.averaging_state()}) {
    for (const v1::StateManifest& state : *states) {
      if (!state.name().empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(path, ": has a state without a name"));
    }
  }
  return manifest;
}

absl::Status WriteManifest(const std::string& path, const v1::CheckpointManifest& manifest) {
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(manifest, &text)) {
    return absl::InternalError(absl::StrCat("cannot print ", path));
  }
  return WriteFileAtomically(path, text);
}

// Lists up to kMaxDifferences tensors, those of the model first, because a missing or differently
// shaped weight identifies a wrong file better than an additional one.
absl::Status CheckTensors(absl::string_view file, const std::vector<NamedShape>& in_file,
                          const std::vector<NamedShape>& in_model) {
  std::map<absl::string_view, const Shape*> found;
  for (const NamedShape& tensor : in_file) found[tensor.name] = &tensor.shape;
  std::vector<std::string> differences;
  const auto differs = [&](const NamedShape& tensor, absl::string_view how) {
    differences.push_back(absl::StrCat(Quoted(tensor.name), " ", how));
  };
  for (const NamedShape& tensor : in_model) {
    const auto it = found.find(tensor.name);
    if (it == found.end()) {
      differs(tensor, absl::StrCat(tensor.shape.ToString(), " is not in the file"));
      continue;
    }
    if (*it->second != tensor.shape) {
      differs(tensor, absl::StrCat("is ", it->second->ToString(), " in the file, ",
                                   tensor.shape.ToString(), " in the model"));
    }
    found.erase(it);
  }
  for (const NamedShape& tensor : in_file) {
    if (!found.contains(tensor.name)) continue;
    differs(tensor, absl::StrCat(tensor.shape.ToString(), " is not in the model"));
  }
  if (differences.empty()) return absl::OkStatus();
  const size_t more = differences.size() - std::min(differences.size(), kMaxDifferences);
  differences.resize(differences.size() - more);
  return absl::InvalidArgumentError(
      absl::StrCat(file, " is of another model: ", absl::StrJoin(differences, "; "),
                   more > 0 ? absl::StrCat("; and ", more, " more") : ""));
}

// Tensors that are not in the model are ignored if weights are not read from their type: a run does
// not exchange such buffers, as num_batches_tracked of PyTorch's batch norm.
absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& path,
                                            std::vector<NamedShape> in_model,
                                            const RootedFiles& files,
                                            const std::vector<NamedShape>& optional) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, files));
  std::copy_if(optional.begin(), optional.end(), std::back_inserter(in_model),
               [&](const NamedShape& tensor) { return file.Find(tensor.name) != nullptr; });
  std::set<absl::string_view> names;
  for (const NamedShape& tensor : in_model) names.insert(tensor.name);
  std::vector<NamedShape> in_file;
  for (const StoredTensor& tensor : file.tensors()) {
    if (!SafetensorsFile::CanRead(tensor.type)) {
      if (!names.contains(tensor.name)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", Quoted(tensor.name), " has type ", Quoted(tensor.type),
                       "; weights are read from F32, F16, BF16 and F64"));
    }
    in_file.push_back({tensor.name, tensor.shape});
  }
  CADRE_RETURN_IF_ERROR(CheckTensors(path, in_file, in_model));
  return file;
}

}  // namespace cadre
