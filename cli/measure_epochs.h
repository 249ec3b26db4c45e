// The command `cadre measure-epochs`: how many epochs a model takes to be good enough, by the
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
  // The run spec's file.
  std::string spec;
  // Test accuracy, in (0, 1].
  double target = 0;
  // Ascending, each once.
  std::vector<uint32_t> workers;
  // Samples of one worker's step; the spec's batch_per_group if it is not given.
  std::optional<uint32_t> batch;
  // Epochs after which a run is given up; the spec's stop.epochs if it is not given.
  std::optional<uint32_t> max_epochs;
  RateRule rate = RateRule::kLinear;
  // File of the table; what it holds already is not measured again. Empty: no file.
  std::string output;
  // Folder of the other programs.
  std::string programs;
  uint32_t threads = 1;
};

// "1,2,4,8": numbers of at least 1, in any order; sorted, each once. Errors: InvalidArgument.
absl::StatusOr<std::vector<uint32_t>> ParseWorkers(absl::string_view text);

// Runs one number of workers after the other; each that is measured is in the file before the next
// begins. The table goes to stdout. Returns the exit code: 0 if every number is in the table,
// whether or not it reached the target.
int MeasureEpochs(const GlobalOptions& global, const MeasureOptions& options,
                  const Console& console);

}  // namespace cadre
