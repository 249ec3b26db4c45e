// The manifest of a checkpoint, and the names of its files and tensors.
//
// A checkpoint is a folder "step-<N>" with model.safetensors (whole tensors by parameter name),
// optimizer.safetensors ("<parameter>@<state>", for parameters that are trained),
// averaging.safetensors (likewise, if there are states of the averaging between groups) and
// manifest.textproto.
//
// Thread-safe (pure functions over values and files).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/formats/safetensors.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/checkpoint.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kAveragingFile[] = "averaging.safetensors";
inline constexpr char kManifestFile[] = "manifest.textproto";
inline constexpr uint32_t kCheckpointFormat = 1;

// Tensors of model.safetensors: every parameter, in index order.
std::vector<NamedShape> WeightTensors(const ParameterIndex& index);
// Tensors of optimizer.safetensors and averaging.safetensors: for each state, the trained
// parameters in index order.
std::vector<NamedShape> StateTensors(const ParameterIndex& index,
                                     const std::vector<std::string>& states);
// "<parameter>@<state>".
std::string StateTensorName(absl::string_view parameter, absl::string_view state);

// Sets the names and shapes of all parameters in the manifest, in index order.
void DescribeParameters(const ParameterIndex& index, v1::CheckpointManifest* manifest);
// Whether elements have the same flat positions by the manifest and by the index.
bool SameOrder(const v1::CheckpointManifest& manifest, const ParameterIndex& index);

// Names of the states of the averaging that the checkpoint contains.
std::vector<std::string> AveragingStateNames(const v1::CheckpointManifest& manifest);

// Every state has a name. Errors: NotFound, PermissionDenied, ... as ReadFile; InvalidArgument with
// "FILE:LINE:COLUMN:", or "FILE:" alone, for invalid manifests; Unimplemented for a later format
// than that of this build.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(
    const std::string& path, const RootedFiles& files = RootedFiles::Unrestricted());
// Errors: as WriteFileAtomically.
absl::Status WriteManifest(const std::string& path, const v1::CheckpointManifest& manifest);

// Opens a file of tensors, which may also have those of `optional`. Tensors of integers and of
// unknown types that are not in the model are ignored. Errors: as SafetensorsFile::Open; as
// CheckTensors; InvalidArgument for a tensor of the model whose type cannot be read.
absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& path,
                                            std::vector<NamedShape> in_model,
                                            const RootedFiles& files = RootedFiles::Unrestricted(),
                                            const std::vector<NamedShape>& optional = {});

// Compares the tensors of a file with those of the model, in any order. Errors: InvalidArgument,
// naming `file` and up to ten tensors that have another shape or that only one of the two has, with
// the number of further ones.
absl::Status CheckTensors(absl::string_view file, const std::vector<NamedShape>& in_file,
                          const std::vector<NamedShape>& in_model);

}  // namespace cadre
