// Reports the progress of runs: one redrawn line on a terminal, plain lines elsewhere.
//
// Borrows the stream. Thread-compatible.
//
//   Progress progress(std::cerr, {.terminal = true, .width = [] { return 100; }});
//   progress.Update(update.run(), absl::Now());
//   progress.Note("worker-1 was restarted");
//   progress.Finish();
#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

struct ProgressOptions {
  // Whether one line is redrawn, instead of adding lines.
  bool terminal = false;
  bool color = false;
  // Whether notes and updates are dropped.
  bool quiet = false;
  // Current columns of the terminal.
  std::function<int()> width = [] { return 80; };
  // Minimum time between plain lines of a run if only numbers such as the loss have changed.
  absl::Duration plain_interval = absl::Seconds(2);
};

class Progress {
 public:
  Progress(std::ostream& out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

  // Shows the status of a run. On a terminal it is always shown, truncated to the width; otherwise
  // only if the state or the test result has changed, or after plain_interval.
  void Update(const v1::RunStatus& run, absl::Time now);
  // Redraws the line on a terminal: a bar, then the text, truncated to the width.
  void Draw(double fraction, absl::string_view text);
  // Prints a line that is not overwritten.
  void Note(absl::string_view line);
  // Ends the redrawn line; further output begins on a new line.
  void Finish();

 private:
  // The last update shown of a run.
  struct Shown {
    absl::Time at = absl::InfinitePast();
    v1::RunState state = v1::RUN_STATE_UNSPECIFIED;
    uint32_t tested_version = 0;
    bool tested = false;
  };

  bool IsDue(const v1::RunStatus& run, const Shown& shown, absl::Time now) const;
  // Notes a checkpoint that could not be written since the last update.
  void NoteCheckpoint(const v1::RunStatus& run);
  // Notes once what of the run's data set is not used.
  void NoteData(const v1::RunStatus& run);

  std::ostream& out_;
  const ProgressOptions options_;
  std::map<std::string, Shown> shown_;
  // Number of failed checkpoints that were noted, by run.
  std::map<std::string, uint32_t> checkpoint_failures_;
  // Runs whose data set was noted.
  std::set<std::string> data_noted_;
  // Whether the cursor is at the end of a redrawn line.
  bool line_open_ = false;
};

// "[######....]" of `width` columns, brackets included. Requires: width >= 3.
std::string ProgressBar(double fraction, int width);

// "running  epoch 1.52/6  step 712/2814  loss 0.3412  ..."; unknown values are left out.
std::string ProgressText(const v1::RunStatus& run);

// The completed fraction of the run, in [0, 1].
double ProgressFraction(const v1::RunStatus& run);

}  // namespace cadre
