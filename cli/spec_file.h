// A run spec as a file: read, changed by flags, checked; refused with file, line, column and field.
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
  // Each replaces what the file says when it is given.
  std::optional<uint32_t> groups;
  std::optional<uint32_t> ranks;
  std::optional<uint32_t> aggregators;
  std::optional<uint32_t> model_ranks;
  std::optional<uint32_t> space_ranks;
  // Pins (cli/pin_flags.h reads them). A mesh takes the place of the file's mesh, model_ranks and
  // space_ranks, and, unless `ranks` is given, of ranks_per_group; a layer's pin that of its layer.
  // Empty: as the file says.
  std::vector<v1::MeshAxis> mesh;
  std::vector<v1::LayerPin> layers;
  std::optional<v1::CollectivePolicy> collectives;
  std::optional<v1::Overlap> overlap;
  std::optional<v1::ComputeDevice> device;
  std::optional<v1::Precision> precision;
  // Samples of a group's step.
  std::optional<uint32_t> batch;
  // Checkpoint to begin from, and folder for those of the run.
  std::optional<std::string> from;
  std::optional<std::string> checkpoint;
  // The workers will be on this machine: the data files are checked too, and what the spec leaves
  // to the cluster (how many groups, ranks, aggregators) is filled in.
  bool here = true;
};

struct LoadedSpec {
  v1::RunSpec spec;
  // What people should know about the checkpoint that it begins from; empty: it begins from none.
  std::string begins;
};

// `path` is a file, or the name of a model of the zoo (cli/zoo.h).
//
// Where checkpoint.from names a directory of checkpoints, the newest that is seen from here is put
// in its place, its step in checkpoint.from_step and its cursor in checkpoint.from_position.
// Errors: NotFound for a missing file; InvalidArgument with one "FILE:LINE:COLUMN: field: message"
// per line of the status's message.
absl::StatusOr<LoadedSpec> LoadSpec(const std::string& path, const SpecFlags& flags);

// Prints the refusals of LoadSpec, each on its line as it is; returns the exit code.
ExitCode FailSpec(const Console& console, const absl::Status& status);

}  // namespace cadre
