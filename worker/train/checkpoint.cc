// A checkpoint stores whole tensors in parameter order, so that it can be loaded with any mesh. A
// rank owns intervals of that order, which cross borders of tensors: ForEachTensorPart splits them.
//
// Saving streams the model through rank 0 in chunks (flat_gather.cc), so that no rank holds more
// than a chunk in addition to its own values. All files are written to a draft folder, which is
// renamed when it is complete: a crash leaves the previous checkpoints and no partial one. Digests
// are sums over owned values, so the ranks compute them without a second pass over the files.
//
// Loading needs no communication of values: every rank reads what it owns. Only rank 0 decides
// which checkpoint is the newest; otherwise ranks whose hosts see different folders would call
// different collectives. After each local phase the ranks agree on its status.
#include "worker/train/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "model/optimizer_state.h"
#include "worker/train/flat_gather.h"

namespace cadre {
namespace {

// The path of a file of the checkpoint in `folder`.
std::string FileIn(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

// Elements [first, first + values.size()) of one tensor.
struct TensorPart {
  const Parameter* parameter = nullptr;
  int64_t first = 0;
  std::span<float> values;
};

// Calls `use` in the order of the list, until the first error.
absl::Status ForEachTensorPart(const ParameterIndex& index, std::span<const Owned> owned,
                               const std::function<absl::Status(const TensorPart&)>& use) {
  const std::vector<Parameter>& parameters = index.parameters();
  for (const Owned& part : owned) {
    auto it = std::partition_point(parameters.begin(), parameters.end(), [&](const Parameter& p) {
      return p.end() <= part.positions.begin;
    });
    for (int64_t at = part.positions.begin; at < part.positions.end; ++it) {
      const int64_t end = std::min(part.positions.end, it->end());
      CADRE_RETURN_IF_ERROR(
          use({.parameter = &*it,
               .first = at - it->offset,
               .values = part.values.subspan(at - part.positions.begin, end - at)}));
      at = end;
    }
  }
  return absl::OkStatus();
}

// `with_statistics`: includes running statistics.
uint64_t DigestOf(const ParameterIndex& index, std::span<const Owned> owned, bool with_statistics) {
  uint64_t digest = 0;
  const absl::Status status = ForEachTensorPart(index, owned, [&](const TensorPart& part) {
    if (with_statistics || !IsStatistic(part.parameter->role)) {
      digest += Digest(part.values, part.parameter->offset + part.first);
    }
    return absl::OkStatus();
  });
  CHECK(status.ok());
  return digest;
}

// A collective. Returns the additive digests of the group's weights, then of the optimizer's states
// and of those of the averaging, both without running statistics. Every element is owned once, so
// the ranks' digests add up to those of the model.
absl::StatusOr<std::vector<uint64_t>> GroupDigests(const ParameterIndex& index,
                                                   const CheckpointValues& values,
                                                   Communicator& group) {
  std::vector<uint64_t> digests = {DigestOf(index, values.weights, true)};
  for (const auto& state : values.states) digests.push_back(DigestOf(index, state, false));
  for (const AveragingState& state : values.averaging) {
    digests.push_back(DigestOf(index, state.values, false));
  }
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(digests)));
  return digests;
}

// ---- Saving

// The files of one checkpoint. Only rank 0 has one.
class CheckpointFiles {
 public:
  static absl::StatusOr<CheckpointFiles> Create(const CheckpointOptions& options,
                                                const ParameterIndex& index,
                                                const v1::CheckpointManifest& facts,
                                                const std::vector<std::string>& averaging_states) {
    const std::vector<std::string> states = OptimizerStateNames(facts.spec().optimizer());
    const std::map<std::string, std::string> about = {{"format", "cadre"},
                                                      {"step", std::to_string(facts.step())}};
    CADRE_ASSIGN_OR_RETURN(
        CheckpointDraft draft,
        CheckpointDraft::Begin(options.directory, facts.run(), facts.step(), options.files));
    CADRE_ASSIGN_OR_RETURN(
        SafetensorsWriter model,
        SafetensorsWriter::Create(FileIn(draft.path(), kModelFile), WeightTensors(index), about));
    CADRE_ASSIGN_OR_RETURN(SafetensorsWriter optimizer,
                           SafetensorsWriter::Create(FileIn(draft.path(), kOptimizerFile),
                                                     StateTensors(index, states), about));
    CheckpointFiles files(std::move(draft), std::move(model), std::move(optimizer));
    if (!averaging_states.empty()) {
      CADRE_ASSIGN_OR_RETURN(
          SafetensorsWriter averaging,
          SafetensorsWriter::Create(FileIn(files.draft_.path(), kAveragingFile),
                                    StateTensors(index, averaging_states), about));
      files.averaging_.emplace(std::move(averaging));
    }
    return files;
  }

  absl::Status AppendWeights(std::span<const float> values) { return model_.Append(values); }
  absl::Status AppendState(const ParameterIndex& index, Interval chunk, std::span<float> values) {
    return AppendTrained(optimizer_, index, chunk, values);
  }
  absl::Status AppendAveragingState(const ParameterIndex& index, Interval chunk,
                                    std::span<float> values) {
    return AppendTrained(*averaging_, index, chunk, values);
  }

  absl::Status Publish(const v1::CheckpointManifest& manifest) {
    CADRE_RETURN_IF_ERROR(model_.Finish());
    CADRE_RETURN_IF_ERROR(optimizer_.Finish());
    if (averaging_) CADRE_RETURN_IF_ERROR(averaging_->Finish());
    CADRE_RETURN_IF_ERROR(WriteManifest(FileIn(draft_.path(), kManifestFile), manifest));
    return draft_.Publish();
  }

 private:
  CheckpointFiles(CheckpointDraft draft, SafetensorsWriter model, SafetensorsWriter optimizer)
      : draft_(std::move(draft)), model_(std::move(model)), optimizer_(std::move(optimizer)) {}

  // Skips running statistics, which have no states.
  static absl::Status AppendTrained(SafetensorsWriter& writer, const ParameterIndex& index,
                                    Interval chunk, std::span<float> values) {
    const Owned whole[] = {{chunk, values}};
    return ForEachTensorPart(index, whole, [&](const TensorPart& part) {
      if (IsStatistic(part.parameter->role)) return absl::OkStatus();
      return writer.Append(part.values);
    });
  }

  // Declared first: its destructor must remove the folder last.
  CheckpointDraft draft_;
  SafetensorsWriter model_;
  SafetensorsWriter optimizer_;
  std::optional<SafetensorsWriter> averaging_;
};

// Gathers one list of values chunk by chunk; on rank 0 each chunk is passed to `use`. After `use`
// fails, gathering continues without it, because the other ranks take part in it.
absl::Status StreamChunks(std::span<const Owned> owned, int64_t size, int64_t chunk_size,
                          Communicator& group, FlatGather& gather, TrainerProgress* progress,
                          absl::Status* used,
                          const std::function<absl::Status(Interval, std::span<float>)>& use) {
  const bool first = group.index() == 0;
  std::vector<float> whole(first ? std::min(size, chunk_size) : 0);
  for (int64_t begin = 0; begin < size; begin += chunk_size) {
    const Interval chunk = {begin, std::min(size, begin + chunk_size)};
    const std::span<float> part = first ? std::span(whole).first(chunk.size()) : std::span<float>();
    CADRE_RETURN_IF_ERROR(gather.Gather(chunk, owned, part));
    if (first && used->ok()) *used = use(chunk, part);
    if (progress != nullptr) progress->Advance();
  }
  return absl::OkStatus();
}

void Complete(const ParameterIndex& index, const std::vector<std::string>& averaging_states,
              std::span<const uint64_t> digests, v1::CheckpointManifest* manifest) {
  manifest->set_format_version(kCheckpointFormat);
  DescribeParameters(index, manifest);
  manifest->set_weights_digest(digests[0]);
  v1::OptimizerManifest* optimizer = manifest->mutable_optimizer();
  optimizer->clear_state();
  for (const std::string& name : OptimizerStateNames(manifest->spec().optimizer())) {
    v1::StateManifest* state = optimizer->add_state();
    state->set_name(name);
    state->set_digest(digests[optimizer->state_size()]);
  }
  manifest->clear_averaging_state();
  for (const std::string& name : averaging_states) {
    v1::StateManifest* state = manifest->add_averaging_state();
    state->set_name(name);
    state->set_digest(digests[optimizer->state_size() + manifest->averaging_state_size()]);
  }
}

// ---- Loading

absl::Status ReadWeights(const std::string& path, const ParameterIndex& index,
                         const CheckpointValues& values, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, OpenTensors(path, WeightTensors(index), files));
  return ForEachTensorPart(index, values.weights, [&](const TensorPart& part) {
    if (values.progress != nullptr) values.progress->Advance();
    return file.Read(*file.Find(part.parameter->name), part.first, part.values);
  });
}

// Running statistics have no states: their values become zeros.
absl::Status ReadState(SafetensorsFile& file, const ParameterIndex& index, const std::string& state,
                       std::span<const Owned> owned, TrainerProgress* progress) {
  return ForEachTensorPart(index, owned, [&](const TensorPart& part) {
    if (progress != nullptr) progress->Advance();
    if (IsStatistic(part.parameter->role)) {
      std::fill(part.values.begin(), part.values.end(), 0.0F);
      return absl::OkStatus();
    }
    const std::string name = StateTensorName(part.parameter->name, state);
    return file.Read(*file.Find(name), part.first, part.values);
  });
}

absl::Status ReadStates(const std::string& path, const ParameterIndex& index,
                        const std::vector<std::string>& names, const CheckpointValues& values,
                        const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file,
                         OpenTensors(path, StateTensors(index, names), files));
  for (size_t i = 0; i < names.size(); ++i) {
    CADRE_RETURN_IF_ERROR(ReadState(file, index, names[i], values.states[i], values.progress));
  }
  return absl::OkStatus();
}

// `names`: those of the states in the file.
absl::Status ReadAveraging(const std::string& path, const ParameterIndex& index,
                           const std::vector<std::string>& names, const CheckpointValues& values,
                           const RootedFiles& files) {
  if (names.empty() || values.averaging.empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file,
                         OpenTensors(path, StateTensors(index, names), files));
  for (const AveragingState& state : values.averaging) {
    if (std::find(names.begin(), names.end(), state.name) == names.end()) continue;
    CADRE_RETURN_IF_ERROR(ReadState(file, index, state.name, state.values, values.progress));
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
// rank 0.
absl::StatusOr<LoadedCheckpoint> Choose(const std::string& from, const RootedFiles& files) {
  LoadedCheckpoint chosen;
  CADRE_ASSIGN_OR_RETURN(chosen.path, ResolveCheckpoint(from, files));
  if (HasManifest(chosen.path)) {
    CADRE_ASSIGN_OR_RETURN(chosen.manifest,
                           ReadManifest(FileIn(chosen.path, kManifestFile), files));
    if (chosen.manifest->ByteSizeLong() > kMaxSharedText) {
      return absl::InvalidArgumentError(
          absl::StrCat(FileIn(chosen.path, kManifestFile), ": is too large"));
    }
  }
  return chosen;
}

// A collective: every rank gets rank 0's choice.
absl::StatusOr<LoadedCheckpoint> ChosenByFirst(const std::string& from, Communicator& group,
                                               const RootedFiles& files) {
  absl::StatusOr<LoadedCheckpoint> chosen = LoadedCheckpoint();
  if (group.index() == 0) chosen = Choose(from, files);
  CADRE_RETURN_IF_ERROR(Agree(chosen.status(), group));
  LoadedCheckpoint shared;
  CADRE_ASSIGN_OR_RETURN(shared.path, BroadcastText(chosen->path, group));
  if (!HasManifest(shared.path)) return shared;
  const std::string mine = chosen->manifest ? chosen->manifest->SerializeAsString() : std::string();
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, BroadcastText(mine, group));
  if (!shared.manifest.emplace().ParseFromString(bytes)) {
    return absl::InternalError("rank 0's manifest cannot be read");
  }
  return shared;
}

// The local phase of loading: reads the values that this rank owns.
absl::Status ReadAll(const LoadedCheckpoint& from, const ParameterIndex& index,
                     const v1::Optimizer& optimizer, const CheckpointValues& values,
                     const RootedFiles& files) {
  const std::string& path = from.path;
  if (!from.manifest) return ReadWeights(path, index, values, files);
  CADRE_RETURN_IF_ERROR(ReadWeights(FileIn(path, kModelFile), index, values, files));
  CADRE_RETURN_IF_ERROR(CheckOptimizer(FileIn(path, kManifestFile), *from.manifest, optimizer));
  CADRE_RETURN_IF_ERROR(ReadStates(FileIn(path, kOptimizerFile), index,
                                   OptimizerStateNames(optimizer), values, files));
  return ReadAveraging(FileIn(path, kAveragingFile), index, AveragingStateNames(*from.manifest),
                       values, files);
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
    if (digests[1 + i] != state.digest()) {
      return wrong(kOptimizerFile, absl::StrCat("values of ", state.name()));
    }
  }
  for (size_t i = 0; i < values.averaging.size(); ++i) {
    for (const v1::StateManifest& state : manifest.averaging_state()) {
      if (state.name() != values.averaging[i].name) continue;
      if (digests[1 + values.states.size() + i] == state.digest()) continue;
      return wrong(kAveragingFile, absl::StrCat("values of ", state.name()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(const CheckpointOptions& options, const ParameterIndex& index,
                            v1::CheckpointManifest facts, const CheckpointValues& values,
                            Communicator& group, std::string* warning) {
  const bool first = group.index() == 0;
  const int64_t size = index.size();
  std::vector<std::string> averaging_states;
  for (const AveragingState& state : values.averaging) averaging_states.push_back(state.name);

  std::optional<CheckpointFiles> files;  // on rank 0
  absl::Status used;
  if (first) {
    CHECK_EQ(values.states.size(), OptimizerStateNames(facts.spec().optimizer()).size());
    absl::StatusOr<CheckpointFiles> created =
        CheckpointFiles::Create(options, index, facts, averaging_states);
    used = created.status();
    if (created.ok()) files.emplace(*std::move(created));
  }
  CADRE_RETURN_IF_ERROR(Agree(used, group));

  CADRE_ASSIGN_OR_RETURN(FlatGather gather, FlatGather::Make(size, values.weights, group));
  CADRE_RETURN_IF_ERROR(
      StreamChunks(values.weights, size, options.chunk, group, gather, values.progress, &used,
                   [&](Interval, std::span<float> whole) { return files->AppendWeights(whole); }));
  for (const auto& state : values.states) {
    CADRE_RETURN_IF_ERROR(StreamChunks(state, size, options.chunk, group, gather, values.progress,
                                       &used, [&](Interval chunk, std::span<float> whole) {
                                         return files->AppendState(index, chunk, whole);
                                       }));
  }
  if (!values.averaging.empty()) {
    CADRE_ASSIGN_OR_RETURN(gather, FlatGather::Make(size, values.averaging.front().values, group));
  }
  for (const AveragingState& state : values.averaging) {
    CADRE_RETURN_IF_ERROR(StreamChunks(state.values, size, options.chunk, group, gather,
                                       values.progress, &used,
                                       [&](Interval chunk, std::span<float> whole) {
                                         return files->AppendAveragingState(index, chunk, whole);
                                       }));
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, GroupDigests(index, values, group));
  if (first && used.ok()) {
    Complete(index, averaging_states, digests, &facts);
    used = files->Publish(facts);
  }
  if (first && used.ok()) {
    const absl::Status pruned =
        PruneCheckpoints(options.directory, facts.run(),
                         std::min<int64_t>(options.keep, std::numeric_limits<int>::max()),
                         facts.step(), options.files);
    if (!pruned.ok() && warning != nullptr) {
      *warning = absl::StrCat("old checkpoints stay: ", pruned.message());
    }
  }
  return Agree(used, group);
}

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& from,
                                                const ParameterIndex& index,
                                                const v1::Optimizer& optimizer,
                                                const CheckpointValues& values, Communicator& group,
                                                const RootedFiles& files) {
  CHECK_EQ(values.states.size(), OptimizerStateNames(optimizer).size());
  CADRE_ASSIGN_OR_RETURN(LoadedCheckpoint loaded, ChosenByFirst(from, group, files));
  CADRE_RETURN_IF_ERROR(Agree(ReadAll(loaded, index, optimizer, values, files), group));
  if (loaded.manifest.has_value()) {
    CADRE_RETURN_IF_ERROR(CheckDigests(loaded.path, index, *loaded.manifest, values, group));
  }
  return loaded;
}

}  // namespace cadre
