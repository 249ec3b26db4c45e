// The command `cadre measure-epochs`: how many epochs a model takes to reach a target accuracy, by
// number of workers, measured on one machine by emulation (cli/emulation.h).
//
// Call on the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/console.h"
#include "cli/emulation.h"
#include "cli/options.h"

namespace cadre {

struct MeasureOptions {
  // The run file.
  std::string spec;
  // Test accuracy, in (0, 1].
  double target = 0;
  // Ascending, without duplicates.
  std::vector<uint32_t> workers;
  // Samples of one worker's step; nothing: the run file's batch_per_group.
  std::optional<uint32_t> batch;
  // Epochs after which a run stops without the target; nothing: the run file's stop.epochs.
  std::optional<uint32_t> max_epochs;
  RateRule rate = RateRule::kLinear;
  // File of the table; entries that it already has are not measured again. Empty: no file.
  std::string output;
  // Folder of the other programs.
  std::string programs;
  uint32_t threads = 1;
};

// "1,2,4,8", in any order; returns them sorted, without duplicates. Errors: InvalidArgument.
absl::StatusOr<std::vector<uint32_t>> ParseWorkers(absl::string_view text);

// Measures one number of workers after the other, writing each to the file before the next starts.
// Prints the table. Returns the exit code: 0 if every number of workers is in the table, whether or
// not it reached the target.
int MeasureEpochs(const GlobalOptions& global, const MeasureOptions& options,
                  const Console& console);

}  // namespace cadre
