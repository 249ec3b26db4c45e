// Tells how runs are getting on: one redrawn line on a terminal, plain lines elsewhere.
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
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

struct ProgressOptions {
  // Redraw one line instead of adding lines.
  bool terminal = false;
  bool color = false;
  // Notes and updates are dropped.
  bool quiet = false;
  // Columns of the terminal now.
  std::function<int()> width = [] { return 80; };
  // Least time between plain lines of a run that has nothing new but its numbers.
  absl::Duration plain_interval = absl::Seconds(2);
};

class Progress {
 public:
  Progress(std::ostream& out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

  // On a terminal: always shown, cut to its width. Else: shown when the state changed, when a test
  // result is new, or when plain_interval is over.
  void Update(const v1::RunStatus& run, absl::Time now);
  // A line that stays.
  void Note(absl::string_view line);
  // Leaves the redrawn line as it is; the next output begins on a line of its own.
  void Finish();

 private:
  // What was last shown of a run.
  struct Shown {
    absl::Time at = absl::InfinitePast();
    v1::RunState state = v1::RUN_STATE_UNSPECIFIED;
    uint32_t tested_version = 0;
    bool tested = false;
  };

  bool IsDue(const v1::RunStatus& run, const Shown& shown, absl::Time now) const;
  void Redraw(const v1::RunStatus& run);

  std::ostream& out_;
  const ProgressOptions options_;
  std::map<std::string, Shown> shown_;
  // The cursor stands behind a redrawn line.
  bool line_open_ = false;
};

// "[######....]" of `width` columns, brackets included. Requires: width >= 3.
std::string ProgressBar(double fraction, int width);

// "running  epoch 1.52/6  step 712/2814  loss 0.3412  ..."; what is not known yet is left out.
std::string ProgressText(const v1::RunStatus& run);

// How much of the run is done, in [0, 1].
double ProgressFraction(const v1::RunStatus& run);

}  // namespace cadre
