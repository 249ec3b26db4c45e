#include "worker/train/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "model/optimizer_state.h"
#include "worker/train/agreement.h"
#include "worker/train/checkpoint_values.h"
#include "worker/train/flat_gather.h"

namespace cadre {
namespace {

// The files of one checkpoint. Only rank 0 has one.
class CheckpointFiles {
 public:
  static absl::StatusOr<CheckpointFiles> Create(const CheckpointOptions& options,
                                                const ParameterIndex& index,
                                                const v1::CheckpointManifest& facts) {
    const std::vector<std::string> states = OptimizerStateNames(facts.spec().optimizer());
    const std::map<std::string, std::string> about = {{"format", "cadre"},
                                                      {"step", std::to_string(facts.step())}};
    CADRE_ASSIGN_OR_RETURN(CheckpointDraft draft,
                           CheckpointDraft::Begin(options.directory, facts.step()));
    CADRE_ASSIGN_OR_RETURN(
        SafetensorsWriter model,
        SafetensorsWriter::Create(FileIn(draft.path(), kModelFile), WeightTensors(index), about));
    CADRE_ASSIGN_OR_RETURN(SafetensorsWriter optimizer,
                           SafetensorsWriter::Create(FileIn(draft.path(), kOptimizerFile),
                                                     StateTensors(index, states), about));
    return CheckpointFiles(std::move(draft), std::move(model), std::move(optimizer));
  }

  absl::Status AppendWeights(std::span<const float> values) { return model_.Append(values); }

  // Skips running statistics, which have no optimizer state.
  absl::Status AppendState(const ParameterIndex& index, Interval chunk, std::span<float> values) {
    const Owned whole[] = {{chunk, values}};
    return ForEachTensorPart(index, whole, [&](const TensorPart& part) {
      if (IsStatistic(part.parameter->role)) return absl::OkStatus();
      return optimizer_.Append(part.values);
    });
  }

  absl::Status Publish(const v1::CheckpointManifest& manifest) {
    CADRE_RETURN_IF_ERROR(model_.Finish());
    CADRE_RETURN_IF_ERROR(optimizer_.Finish());
    CADRE_RETURN_IF_ERROR(WriteManifest(FileIn(draft_.path(), kManifestFile), manifest));
    return draft_.Publish();
  }

 private:
  CheckpointFiles(CheckpointDraft draft, SafetensorsWriter model, SafetensorsWriter optimizer)
      : draft_(std::move(draft)), model_(std::move(model)), optimizer_(std::move(optimizer)) {}

  // Declared first: its destructor must remove the folder last.
  CheckpointDraft draft_;
  SafetensorsWriter model_;
  SafetensorsWriter optimizer_;
};

// Gathers one list of values chunk by chunk; on rank 0 each chunk is passed to `use`. After `use`
// fails, gathering continues without it, because the other ranks take part in it.
absl::Status StreamChunks(std::span<const Owned> owned, int64_t size, int64_t chunk_size,
                          Communicator& group, FlatGather& gather, absl::Status* used,
                          const std::function<absl::Status(Interval, std::span<float>)>& use) {
  const bool first = group.index() == 0;
  std::vector<float> whole(first ? static_cast<size_t>(std::min(size, chunk_size)) : 0);
  for (int64_t begin = 0; begin < size; begin += chunk_size) {
    const Interval chunk = {begin, std::min(size, begin + chunk_size)};
    const std::span<float> part = first ? std::span(whole).first(chunk.size()) : std::span<float>();
    CADRE_RETURN_IF_ERROR(gather.Gather(chunk, owned, part));
    if (first && used->ok()) *used = use(chunk, part);
  }
  return absl::OkStatus();
}

void Complete(const ParameterIndex& index, std::span<const uint64_t> digests,
              v1::CheckpointManifest* manifest) {
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
}

}  // namespace

absl::Status SaveCheckpoint(const CheckpointOptions& options, const ParameterIndex& index,
                            v1::CheckpointManifest facts, const CheckpointValues& values,
                            Communicator& group) {
  const bool first = group.index() == 0;
  const int64_t size = index.size();

  std::optional<CheckpointFiles> files;  // on rank 0
  absl::Status used;
  if (first) {
    CHECK_EQ(values.states.size(), OptimizerStateNames(facts.spec().optimizer()).size());
    absl::StatusOr<CheckpointFiles> created = CheckpointFiles::Create(options, index, facts);
    used = created.status();
    if (created.ok()) files.emplace(*std::move(created));
  }
  CADRE_RETURN_IF_ERROR(Agree(used, group));

  CADRE_ASSIGN_OR_RETURN(FlatGather gather, FlatGather::Make(size, values.weights, group));
  CADRE_RETURN_IF_ERROR(
      StreamChunks(values.weights, size, options.chunk, group, gather, &used,
                   [&](Interval, std::span<float> whole) { return files->AppendWeights(whole); }));
  for (const auto& state : values.states) {
    CADRE_RETURN_IF_ERROR(StreamChunks(state, size, options.chunk, group, gather, &used,
                                       [&](Interval chunk, std::span<float> whole) {
                                         return files->AppendState(index, chunk, whole);
                                       }));
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, GroupDigests(index, values, group));
  if (first && used.ok()) {
    Complete(index, digests, &facts);
    used = files->Publish(facts);
  }
  if (first && used.ok()) {
    const absl::Status pruned =
        PruneCheckpoints(options.directory, facts.run(), options.keep, facts.step());
    LOG_IF(WARNING, !pruned.ok()) << "old checkpoints stay: " << pruned;
  }
  return Agree(used, group);
}

}  // namespace cadre
