#include "worker/train/run_checkpoints.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

std::vector<OwnedValues> AsValues(std::span<const OwnedSpan> spans) {
  std::vector<OwnedValues> values;
  for (const OwnedSpan& span : spans) {
    values.push_back(
        {{span.begin, span.end}, {span.values, static_cast<size_t>(span.end - span.begin)}});
  }
  return values;
}

}  // namespace

absl::Status RunCheckpoints::Begin() {
  const v1::RunSpec& spec = assignment_.spec();
  if (spec.checkpoint().from().empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded,
                         LoadCheckpoint(spec.checkpoint().from(), replica_.index(),
                                        spec.optimizer(), Values(), replica_.comms().All()));
  if (loaded.manifest) {
    CADRE_RETURN_IF_ERROR(CheckManifest(loaded.path, *loaded.manifest));
    replica_.set_updates(static_cast<int64_t>(loaded.manifest->optimizer().updates()));
  }
  if (assignment_.shards_size() > 0) {
    CADRE_ASSIGN_OR_RETURN(const uint64_t digest, replica_.GroupDigest());
    if (digest != assignment_.digest()) {
      return absl::DataLossError(
          absl::StrCat(loaded.path,
                       ": its weights are not those that the aggregators read there; is it the "
                       "same folder on every machine?"));
    }
  }
  LOG_IF(INFO, lead()) << "beginning from " << loaded.path
                       << (loaded.manifest ? "" : ", weights alone");
  return replica_.GatherWeights();
}

absl::Status RunCheckpoints::CheckManifest(const std::string& path,
                                           const v1::CheckpointManifest& manifest) const {
  const uint32_t step = assignment_.step();
  if (manifest.step() != step) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is of step ", manifest.step(),
                                                   ", but checkpoint.from_step is ", step));
  }
  const uint64_t position =
      SamplesBefore(step, static_cast<int>(std::max(1U, assignment_.spec().cluster().groups())));
  LOG_IF(WARNING, lead() && manifest.cursor().position() != position)
      << path << ": " << manifest.cursor().position() << " samples were trained on, but " << step
      << " steps of this run are " << position
      << ": until the next epoch some samples come twice or not at all";
  return absl::OkStatus();
}

bool RunCheckpoints::Due(uint32_t step, bool last) const {
  const v1::Checkpoint& wanted = assignment_.spec().checkpoint();
  if (wanted.directory().empty() || assignment_.place().group() != 0 || step == saved_) {
    return false;
  }
  return last ||
         (wanted.every_steps() > 0 && step / wanted.every_steps() > saved_ / wanted.every_steps());
}

absl::Status RunCheckpoints::Save(const Facts& facts) {
  const v1::RunSpec& spec = assignment_.spec();
  v1::CheckpointManifest manifest;
  *manifest.mutable_spec() = spec;
  manifest.set_step(facts.step);
  manifest.set_version(facts.version);
  const uint64_t position = SamplesBefore(facts.step, facts.groups);
  const auto epoch_samples = static_cast<uint64_t>(facts.train_samples);
  manifest.mutable_cursor()->set_position(position);
  manifest.mutable_cursor()->set_samples_per_epoch(epoch_samples);
  manifest.mutable_cursor()->set_epoch(position / epoch_samples);
  manifest.set_seed(spec.seed());
  manifest.mutable_optimizer()->set_updates(static_cast<uint64_t>(replica_.updates()));
  const uint32_t keep = spec.checkpoint().keep();
  Communicator& group = replica_.comms().All();
  const absl::Status saved = SaveCheckpoint(
      {.directory = spec.checkpoint().directory(), .keep = static_cast<int>(keep == 0 ? 2 : keep)},
      replica_.index(), std::move(manifest), Values(), group);
  saved_ = facts.step;
  if (saved.ok()) {
    counters_.Add("checkpoints_saved");
    return absl::OkStatus();
  }
  // Training is worth more than a full disk; but a group that is dead is dead.
  CADRE_RETURN_IF_ERROR(group.Barrier());
  LOG_IF(ERROR, lead()) << "no checkpoint of step " << facts.step << ": " << saved;
  counters_.Add("checkpoints_failed");
  return absl::OkStatus();
}

CheckpointValues RunCheckpoints::Values() {
  CheckpointValues values{.weights = AsValues(replica_.owned())};
  for (int i = 0; i < replica_.states(); ++i) {
    values.states.push_back(AsValues(replica_.OwnedState(i)));
  }
  return values;
}

uint64_t RunCheckpoints::SamplesBefore(uint32_t step, int groups) const {
  return uint64_t{step} * static_cast<uint64_t>(groups) *
         uint64_t{assignment_.spec().batch_per_group()};
}

}  // namespace cadre
