// A run file becomes a run spec in four steps: the text is read (with the positions of its fields),
// flags replace values, the checkpoint is resolved, and everything is validated. All problems are
// collected and reported together, each at its position in the file. A problem that a flag causes
// is reported at the field that the flag replaced.
//
// The checkpoint is resolved when the run is submitted: a directory of checkpoints is replaced by
// its newest one. Otherwise processes that start at different times might begin from different
// checkpoints.
#include "cli/spec_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/peer_text.h"
#include "base/status.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/data_check.h"
#include "model/parameter_index.h"
#include "model/problem.h"
#include "model/validate.h"
#include "model/zoo_file.h"

namespace cadre {
namespace {

// A pinned mesh determines the number of ranks. The product is limited so that it fits into the
// field.
void PinMesh(const std::vector<v1::MeshAxis>& mesh, v1::Cluster& cluster) {
  cluster.clear_model_ranks();
  cluster.clear_space_ranks();
  cluster.mutable_mesh()->Assign(mesh.begin(), mesh.end());
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : mesh) {
    ranks = std::min<uint64_t>(ranks * axis.size(), std::numeric_limits<uint32_t>::max());
  }
  cluster.set_ranks_per_group(static_cast<uint32_t>(ranks));
}

// A pin of the command line replaces the pin of the same layer in the run file.
void PinLayer(const v1::LayerPin& pin, v1::Cluster& cluster) {
  for (v1::LayerPin& there : *cluster.mutable_layer()) {
    if (there.layer() != pin.layer()) continue;
    there = pin;
    return;
  }
  *cluster.add_layer() = pin;
}

void Replace(const SpecFlags& flags, v1::RunSpec& spec) {
  v1::Cluster& cluster = *spec.mutable_cluster();
  ApplyPins(flags, cluster);
  if (flags.groups) cluster.set_groups(*flags.groups);
  if (flags.ranks) cluster.set_ranks_per_group(*flags.ranks);
  if (flags.aggregators) cluster.set_aggregators(*flags.aggregators);
  if (flags.collectives) cluster.set_collectives(*flags.collectives);
  if (flags.overlap) cluster.set_overlap(*flags.overlap);
  if (flags.device) cluster.set_device(*flags.device);
  if (flags.precision) spec.set_precision(*flags.precision);
  if (flags.batch) spec.set_batch_per_group(*flags.batch);
  if (flags.from) {
    spec.mutable_checkpoint()->set_from(*flags.from);
    spec.mutable_checkpoint()->clear_from_step();
    spec.mutable_checkpoint()->clear_from_position();
  }
  if (flags.checkpoint) spec.mutable_checkpoint()->set_directory(*flags.checkpoint);
}

// Paths must be absolute, because the processes of a local run may have other working directories.
std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// Tensors that are not in the model and that are not weights either, by their type.
std::string NoteOfUnread(const SafetensorsFile& file) {
  int64_t count = 0;
  const StoredTensor* first = nullptr;
  for (const StoredTensor& tensor : file.tensors()) {
    if (SafetensorsFile::CanRead(tensor.type)) continue;
    if (count++ == 0) first = &tensor;
  }
  if (first == nullptr) return "";
  return absl::StrCat("; ", Counted(count, "tensor"), " that the model does not have ",
                      count == 1 ? "is" : "are", " not read: ", Quoted(first->name), " (",
                      Escaped(first->type), ")", count == 1 ? "" : " and others");
}

// A checkpoint folder has a manifest, which states step and position in the data; a single
// safetensors file has weights only, so training starts at step 0 with them.
void CheckBeginning(const std::string& path, v1::RunSpec& spec, std::vector<Problem>* problems,
                    std::string* note) {
  // FindProblems reports other errors of the model.
  if (!ParameterIndex::FromModel(spec.model()).ok()) return;
  const auto weights = OpenWeights(path, spec.model());
  if (!weights.ok()) {
    problems->push_back({"checkpoint.from", std::string(weights.status().message())});
    return;
  }
  *note = NoteOfUnread(*weights);
  if (absl::EndsWith(path, ".safetensors")) return;
  const auto manifest = ReadManifest((std::filesystem::path(path) / kManifestFile).string());
  if (!manifest.ok()) {
    problems->push_back({"checkpoint.from", std::string(manifest.status().message())});
    return;
  }
  v1::Checkpoint& checkpoint = *spec.mutable_checkpoint();
  if (checkpoint.from_step() != 0 && checkpoint.from_step() != manifest->step()) {
    problems->push_back(
        {"checkpoint.from_step", absl::StrCat("is ", checkpoint.from_step(), ", but ", path,
                                              " is of step ", manifest->step(), "; leave it out")});
  }
  checkpoint.set_from_step(static_cast<uint32_t>(manifest->step()));
  checkpoint.set_from_position(manifest->cursor().position());
  if (manifest->seed() == spec.seed()) return;
  absl::StrAppend(note, "; it was trained with seed ", manifest->seed(), ", this run has ",
                  spec.seed(), ": the order of samples changes, so until the next epoch some are ",
                  "used twice or not at all");
}

// Resolves the checkpoint now, so that a newer one that appears later is not used.
std::string BeginFrom(const SpecFlags& flags, v1::RunSpec& spec, std::vector<Problem>* problems) {
  v1::Checkpoint& checkpoint = *spec.mutable_checkpoint();
  if (flags.here && !checkpoint.directory().empty()) {
    checkpoint.set_directory(Absolute(checkpoint.directory()));
  }
  if (checkpoint.from().empty()) return "";
  const absl::StatusOr<std::string> path = ResolveCheckpoint(checkpoint.from());
  if (!path.ok()) {
    if (flags.here) {
      problems->push_back({"checkpoint.from", std::string(path.status().message())});
      return "";
    }
    return absl::StrCat("the checkpoint is not visible from here (", path.status().message(),
                        "); the run continues from step ", checkpoint.from_step(),
                        ", as the run file states");
  }
  checkpoint.set_from(flags.here ? Absolute(*path) : *path);
  std::string note;
  CheckBeginning(*path, spec, problems, &note);
  return absl::StrCat("starting from ", checkpoint.from(),
                      absl::EndsWith(*path, ".safetensors")
                          ? ", weights only"
                          : absl::StrCat(", step ", checkpoint.from_step()),
                      note);
}

// Sets defaults for a run on this machine, which has no cluster that determines the number of
// workers.
void FillIn(v1::RunSpec& spec) {
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_groups(std::max(1u, cluster.groups()));
  cluster.set_ranks_per_group(std::max(1u, cluster.ranks_per_group()));
  const bool averages = spec.averaging().every_steps() > 0;
  if (averages) cluster.set_aggregators(std::max(1u, cluster.aggregators()));
}

}  // namespace

void ApplyPins(const SpecFlags& flags, v1::Cluster& cluster) {
  if (!flags.mesh.empty()) PinMesh(flags.mesh, cluster);
  for (const v1::LayerPin& pin : flags.layers) PinLayer(pin, cluster);
  if (flags.model_ranks) cluster.set_model_ranks(*flags.model_ranks);
  if (flags.space_ranks) cluster.set_space_ranks(*flags.space_ranks);
}

absl::StatusOr<LoadedSpec> LoadSpec(const std::string& path, const SpecFlags& flags) {
  CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpecOrZoo(path));
  Replace(flags, file.spec);
  if (flags.here) FillIn(file.spec);
  std::vector<Problem> beginning;
  LoadedSpec loaded{.begins = BeginFrom(flags, file.spec, &beginning)};
  std::vector<Problem> problems = FindProblems(file.spec);
  problems.insert(problems.end(), beginning.begin(), beginning.end());
  if (flags.aggregators == 0u && file.spec.averaging().every_steps() > 0) {
    problems.push_back(
        {"cluster.aggregators", "is set to 0 by --aggregators, but averaging.every_steps is " +
                                    std::to_string(file.spec.averaging().every_steps()) +
                                    ": averaging needs at least 1 aggregator"});
  }
  if (problems.empty() && flags.here) problems = FindDataProblems(file.spec);
  CADRE_RETURN_IF_ERROR(file.Refuse(problems));
  loaded.spec = std::move(file.spec);
  return loaded;
}

ExitCode FailSpec(const Console& console, const absl::Status& status) {
  const bool located = absl::IsInvalidArgument(status);
  console.err << (located ? "" : "cadre: ") << status.message() << std::endl;
  return kExitFailure;
}

}  // namespace cadre
