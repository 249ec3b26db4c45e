// On a terminal one line is redrawn: "\r", the sequence that clears the line, then the text, cut to
// the current width so that it never wraps. On other streams, such as log files, a line is printed
// only if something important has changed (the state, a test result) or after some time.
#include "cli/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/peer_text.h"
#include "cli/table.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

constexpr int kBarWidth = 22;
// With fewer columns the bar would leave no room for figures.
constexpr int kMinWidthWithBar = 60;
constexpr char kClearLine[] = "\r\x1b[K";
constexpr char kGreen[] = "\x1b[32m";
constexpr char kPlain[] = "\x1b[0m";

}  // namespace

std::string ProgressBar(double fraction, int width) {
  const int inside = width - 2;
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * inside);
  return absl::StrCat("[", std::string(full, '#'), std::string(inside - full, '.'), "]");
}

// The fraction is by steps or epochs; a run that stops at an accuracy may end earlier.
double ProgressFraction(const v1::RunStatus& run) {
  if (run.total_steps() > 0) return std::min(1.0, double{1} * run.step() / run.total_steps());
  if (run.total_epochs() > 0) return std::clamp(run.epoch() / run.total_epochs(), 0.0, 1.0);
  return 0;
}

// A run that waits, has failed or is parked shows its reason first, because a terminal cuts the end
// of the line, and in place of figures that are zero.
std::string ProgressText(const v1::RunStatus& run) {
  std::vector<std::string> parts = {EnumText(run.state())};
  if (!run.reason().empty()) parts.push_back(Escaped(run.reason()));
  const bool started = run.state() == v1::RUN_STATE_RUNNING ||
                       run.state() == v1::RUN_STATE_FINISHING || run.state() == v1::RUN_STATE_DONE;
  if (!started && run.step() == 0) return absl::StrJoin(parts, "  ");
  parts.push_back(run.total_epochs() > 0
                      ? absl::StrFormat("epoch %.2f/%.2f", run.epoch(), run.total_epochs())
                      : absl::StrFormat("epoch %.2f", run.epoch()));
  parts.push_back(run.total_steps() > 0
                      ? absl::StrFormat("step %d/%d", run.step(), run.total_steps())
                      : absl::StrFormat("step %d", run.step()));
  if (run.has_loss()) parts.push_back(absl::StrFormat("loss %.4f", run.loss()));
  if (run.has_perplexity()) parts.push_back(absl::StrFormat("perplexity %.4g", run.perplexity()));
  if (run.samples_per_second() > 0) {
    const auto rate = static_cast<uint64_t>(std::llround(run.samples_per_second()));
    parts.push_back(absl::StrCat(FormatCount(rate), " samples/s"));
  }
  if (run.tokens_per_second() > 0) {
    const auto rate = static_cast<uint64_t>(std::llround(run.tokens_per_second()));
    parts.push_back(absl::StrCat(FormatCount(rate), " tokens/s"));
  }
  if (run.rounds_committed() > 0) parts.push_back(absl::StrCat("round ", run.rounds_committed()));
  if (run.has_discrepancy()) {
    parts.push_back(absl::StrFormat("discrepancy %.2g", run.discrepancy().smoothed()));
  }
  if (run.test().samples() > 0) {
    parts.push_back(absl::StrCat("test ", FormatFraction(run.test().accuracy())));
  }
  if (run.state() == v1::RUN_STATE_RUNNING && run.eta_seconds() > 0) {
    parts.push_back(absl::StrCat("ETA ", FormatAge(absl::Seconds(run.eta_seconds()))));
  }
  return absl::StrJoin(parts, "  ");
}

// A failure that training survives is a line of its own, because the next line replaces it on a
// terminal.
void Progress::NoteCheckpoint(const v1::RunStatus& run) {
  uint32_t& noted = checkpoint_failures_[run.run()];
  const v1::CheckpointStatus& checkpoint = run.checkpoint();
  if (checkpoint.failures() == std::exchange(noted, checkpoint.failures())) return;
  Note(absl::StrCat(run.run(), "  no checkpoint of step ", checkpoint.failed_step(), ": ",
                    Escaped(checkpoint.error())));
}

void Progress::NoteWarnings(const v1::RunStatus& run) {
  int& noted = warnings_[run.run()];
  for (; noted < run.warnings_size(); ++noted) {
    Note(absl::StrCat(run.run(), "  ", Escaped(run.warnings(noted))));
  }
}

void Progress::Update(const v1::RunStatus& run, absl::Time now) {
  if (options_.quiet) return;
  NoteCheckpoint(run);
  NoteWarnings(run);
  if (options_.terminal) {
    return Draw(ProgressFraction(run), absl::StrCat(run.run(), " ", ProgressText(run)));
  }
  Shown& shown = shown_[run.run()];
  if (!IsDue(run, shown, now)) return;
  shown = {now, run.state(), run.test().version(), run.test().samples() > 0};
  out_ << run.run() << "  " << ProgressText(run) << std::endl;
}

// Each test result is shown once, regardless of the interval.
bool Progress::IsDue(const v1::RunStatus& run, const Shown& shown, absl::Time now) const {
  const bool tested = run.test().samples() > 0;
  const bool new_test = tested && (!shown.tested || run.test().version() != shown.tested_version);
  return run.state() != shown.state || new_test || now - shown.at >= options_.plain_interval;
}

void Progress::Draw(double fraction, absl::string_view text) {
  if (options_.quiet || !options_.terminal) return;
  // The last column stays empty: some terminals wrap when it is written.
  const int width = std::max(10, options_.width() - 1);
  std::string bar;
  if (width >= kMinWidthWithBar) {
    bar = absl::StrCat(ProgressBar(fraction, kBarWidth),
                       absl::StrFormat("%4d%% ", static_cast<int>(fraction * 100)));
  }
  text = text.substr(0, static_cast<size_t>(width) - bar.size());
  if (options_.color && !bar.empty()) bar = absl::StrCat(kGreen, bar, kPlain);
  out_ << kClearLine << bar << text << std::flush;
  line_open_ = true;
}

void Progress::Note(absl::string_view line) {
  if (options_.quiet) return;
  if (line_open_) out_ << kClearLine;
  line_open_ = false;
  out_ << line << std::endl;
}

void Progress::Finish() {
  if (line_open_) out_ << std::endl;
  line_open_ = false;
}

}  // namespace cadre
