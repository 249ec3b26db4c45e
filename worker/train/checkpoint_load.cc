#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "model/optimizer_state.h"
#include "worker/train/agreement.h"
#include "worker/train/checkpoint.h"
#include "worker/train/checkpoint_values.h"

namespace cadre {
namespace {

absl::Status ReadWeights(const std::string& path, const ParameterIndex& index,
                         std::span<const Owned> owned) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, OpenTensors(path, WeightTensors(index)));
  return ForEachTensorPart(index, owned, [&](const TensorPart& part) {
    return file.Read(*file.Find(part.parameter->name), part.first, part.values);
  });
}

absl::Status ReadStates(const std::string& path, const ParameterIndex& index,
                        const std::vector<std::string>& names,
                        const std::vector<std::vector<Owned>>& states) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, OpenTensors(path, StateTensors(index, names)));
  for (size_t i = 0; i < names.size(); ++i) {
    CADRE_RETURN_IF_ERROR(ForEachTensorPart(index, states[i], [&](const TensorPart& part) {
      if (IsStatistic(part.parameter->role)) {
        std::fill(part.values.begin(), part.values.end(), 0.0F);
        return absl::OkStatus();
      }
      const std::string name = StateTensorName(part.parameter->name, names[i]);
      return file.Read(*file.Find(name), part.first, part.values);
    }));
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const std::string& path, const v1::CheckpointManifest& manifest,
                            const v1::Optimizer& optimizer) {
  std::vector<std::string> states;
  for (const v1::StateManifest& state : manifest.optimizer().state())
    states.push_back(state.name());
  if (OptimizerKind(manifest.spec().optimizer()) == OptimizerKind(optimizer) &&
      states == OptimizerStateNames(optimizer)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": has the state of ", OptimizerKind(manifest.spec().optimizer()), " (",
      absl::StrJoin(states, ", "), "), but the run's optimizer is ", OptimizerKind(optimizer),
      "; to begin from the weights alone give its ", kModelFile));
}

bool HasManifest(const std::string& path) { return !absl::EndsWith(path, ".safetensors"); }

// The checkpoint that `from` names, with its manifest unless it contains only weights. Called on
// rank 0 alone: the group needs one answer to which is the newest, or ranks whose machines see
// different folders would continue with different collectives.
absl::StatusOr<LoadedCheckpoint> Choose(const std::string& from) {
  LoadedCheckpoint chosen;
  CADRE_ASSIGN_OR_RETURN(chosen.path, ResolveCheckpoint(from));
  if (HasManifest(chosen.path)) {
    CADRE_ASSIGN_OR_RETURN(chosen.manifest, ReadManifest(FileIn(chosen.path, kManifestFile)));
    if (chosen.manifest->ByteSizeLong() > kMaxSharedText) {
      return absl::InvalidArgumentError(
          absl::StrCat(FileIn(chosen.path, kManifestFile), ": is too large"));
    }
  }
  return chosen;
}

// A collective: every rank gets rank 0's choice.
absl::StatusOr<LoadedCheckpoint> ChosenByFirst(const std::string& from, Communicator& group) {
  absl::StatusOr<LoadedCheckpoint> chosen = LoadedCheckpoint();
  if (group.index() == 0) chosen = Choose(from);
  CADRE_RETURN_IF_ERROR(Agree(chosen.status(), group));
  LoadedCheckpoint shared;
  CADRE_ASSIGN_OR_RETURN(shared.path, TextOfFirst(chosen->path, group));
  if (!HasManifest(shared.path)) return shared;
  const std::string mine = chosen->manifest ? chosen->manifest->SerializeAsString() : std::string();
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, TextOfFirst(mine, group));
  if (!shared.manifest.emplace().ParseFromString(bytes)) {
    return absl::InternalError("rank 0's manifest cannot be read");
  }
  return shared;
}

// The part of loading that involves no other rank.
absl::Status ReadAll(const LoadedCheckpoint& from, const ParameterIndex& index,
                     const v1::Optimizer& optimizer, const CheckpointValues& values) {
  const std::string& path = from.path;
  if (!from.manifest) return ReadWeights(path, index, values.weights);
  CADRE_RETURN_IF_ERROR(ReadWeights(FileIn(path, kModelFile), index, values.weights));
  CADRE_RETURN_IF_ERROR(CheckOptimizer(FileIn(path, kManifestFile), *from.manifest, optimizer));
  return ReadStates(FileIn(path, kOptimizerFile), index, OptimizerStateNames(optimizer),
                    values.states);
}

// A collective. Manifest and digests are equal on all ranks, so the outcome is, too.
absl::Status CheckDigests(const std::string& path, const ParameterIndex& index,
                          const v1::CheckpointManifest& manifest, const CheckpointValues& values,
                          Communicator& group) {
  // Digests depend on positions, so they can be compared only if the tensors have the same order.
  if (!SameOrder(manifest, index)) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, GroupDigests(index, values, group));
  const auto wrong = [&](absl::string_view file, absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat(path, "/", file, ": ", what, " are not those that were saved"));
  };
  if (digests[0] != manifest.weights_digest()) return wrong(kModelFile, "the weights");
  for (int i = 0; i < manifest.optimizer().state_size(); ++i) {
    const v1::StateManifest& state = manifest.optimizer().state(i);
    if (digests[static_cast<size_t>(i) + 1] != state.digest()) {
      return wrong(kOptimizerFile, absl::StrCat("values of ", state.name()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& from,
                                                const ParameterIndex& index,
                                                const v1::Optimizer& optimizer,
                                                const CheckpointValues& values,
                                                Communicator& group) {
  CHECK_EQ(values.states.size(), OptimizerStateNames(optimizer).size());
  CADRE_ASSIGN_OR_RETURN(LoadedCheckpoint loaded, ChosenByFirst(from, group));
  CADRE_RETURN_IF_ERROR(Agree(ReadAll(loaded, index, optimizer, values), group));
  if (loaded.manifest.has_value()) {
    CADRE_RETURN_IF_ERROR(CheckDigests(loaded.path, index, *loaded.manifest, values, group));
  }
  return loaded;
}

}  // namespace cadre
