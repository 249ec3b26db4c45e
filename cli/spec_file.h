// Reads a run file, applies flags and validates it; errors have file, line, column and field.
//
// Thread-safe (pure functions over files).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct SpecFlags {
  // Values that replace those of the file, if given.
  std::optional<uint32_t> groups;
  std::optional<uint32_t> ranks;
  std::optional<uint32_t> aggregators;
  std::optional<uint32_t> model_ranks;
  std::optional<uint32_t> space_ranks;
  // Pins (--mesh, --layer). A mesh replaces the file's mesh, model_ranks and space_ranks, and,
  // unless `ranks` is given, ranks_per_group; a layer's pin replaces that of its layer.
  std::vector<v1::MeshAxis> mesh;
  std::vector<v1::LayerPin> layers;
  std::optional<v1::Cluster::CollectivePolicy> collectives;
  std::optional<v1::Cluster::Overlap> overlap;
  std::optional<v1::Cluster::Device> device;
  std::optional<v1::RunSpec::Precision> precision;
  // Samples of a group's step.
  std::optional<uint32_t> batch;
  // Checkpoint to start from, and folder of the run's checkpoints.
  std::optional<std::string> from;
  std::optional<std::string> checkpoint;
  // Whether the workers will run on this machine. Data files are then checked, too, and groups,
  // ranks and aggregators that the file does not set get defaults.
  bool here = true;
};

// Sets the pins of the flags: mesh, layers, model_ranks and space_ranks.
void ApplyPins(const SpecFlags& flags, v1::Cluster& cluster);

struct LoadedSpec {
  v1::RunSpec spec;
  // A note for the user about the checkpoint from which the run starts; empty: none.
  std::string begins;
};

// `path` is a file, or the name of a model of the zoo (model/zoo_file.h).
//
// If checkpoint.from is a directory of checkpoints, the newest one that this machine can read
// replaces it; its step becomes checkpoint.from_step and its cursor checkpoint.from_position.
// Errors: NotFound for a missing file; InvalidArgument with one "FILE:LINE:COLUMN: field: message"
// per line of the status's message.
absl::StatusOr<LoadedSpec> LoadSpec(const std::string& path, const SpecFlags& flags);

// Prints the errors of LoadSpec, one per line; returns the exit code.
ExitCode FailSpec(const Console& console, const absl::Status& status);

}  // namespace cadre
