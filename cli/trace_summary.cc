// Intervals of one category may overlap: a collective runs in the background while another is on
// the main thread, and an interval may contain others. The time of a category is therefore the
// length of the union of its intervals, computed by sorting them by their beginnings.
//
// Only waits of the main thread count as exposed communication: the background thread waits for
// work most of the time.
#include "cli/trace_summary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/trace.h"
#include "cli/table.h"

namespace cadre {
namespace {

// The rank's own thread (base/trace.h).
constexpr uint32_t kMainTrack = 0;
constexpr double kMicrosecond = 1e-6;

// The length of the union of intervals, which may contain each other or overlap.
class Cover {
 public:
  void Add(const v1::TraceEvent& event) {
    if (event.duration_us() <= 0) return;
    spans_.emplace_back(event.begin_us(), event.begin_us() + event.duration_us());
  }
  double Seconds() && {
    std::sort(spans_.begin(), spans_.end());
    int64_t covered = 0;
    int64_t until = spans_.empty() ? 0 : spans_.front().first;
    for (const auto& [begin, end] : spans_) {
      covered += std::max<int64_t>(0, end - std::max(begin, until));
      until = std::max(until, end);
    }
    return static_cast<double>(covered) * kMicrosecond;
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> spans_;
};

// Means per step; a trace without a complete step has zeros.
RankTimes TimesOfRank(const v1::RankTrace& trace) {
  Cover step, compute, moves, collectives, wait;
  RankTimes times;
  for (const v1::TraceEvent& event : trace.events()) {
    const std::string& category = event.category();
    if (category == "step") {
      step.Add(event);
      ++times.steps;
    } else if (category == "compute") {
      compute.Add(event);
    } else if (category == "move") {
      moves.Add(event);
    } else if (category == "collective") {
      collectives.Add(event);
    } else if (category == "wait" && event.track() == kMainTrack) {
      wait.Add(event);
    }
  }
  const double per_step = 1.0 / std::max(times.steps, 1U);
  times.rank = trace.rank();
  times.worker = trace.worker();
  times.host = trace.host();
  times.step = std::move(step).Seconds() * per_step;
  times.compute = std::move(compute).Seconds() * per_step;
  times.moves = std::move(moves).Seconds() * per_step;
  times.collectives = std::move(collectives).Seconds() * per_step;
  times.wait = std::move(wait).Seconds() * per_step;
  times.events = trace.events_size();
  times.dropped = trace.dropped();
  return times;
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.2f ms", seconds * 1e3); }

TraceInterval IntervalOf(const v1::TraceEvent& event) {
  return {.name = event.name(),
          .category = event.category(),
          .track = static_cast<int>(event.track()),
          .begin_us = event.begin_us(),
          .duration_us = event.duration_us(),
          .bytes = event.has_bytes() ? static_cast<int64_t>(event.bytes()) : -1,
          .step = event.step()};
}

}  // namespace

std::vector<RankTimes> TimesOf(const v1::TraceReply& trace) {
  std::vector<RankTimes> times;
  for (const v1::RankTrace& rank : trace.ranks()) times.push_back(TimesOfRank(rank));
  return times;
}

std::string TimesTable(const std::vector<RankTimes>& times) {
  Table table({"RANK", "WORKER", "STEPS", "STEP", "COMPUTE", "MOVES", "COLLECTIVES", "EXPOSED WAIT",
               "OF STEP"});
  for (const RankTimes& rank : times) {
    table.AddRow({absl::StrCat(rank.rank), rank.worker, absl::StrCat(rank.steps),
                  Milliseconds(rank.step), Milliseconds(rank.compute), Milliseconds(rank.moves),
                  Milliseconds(rank.collectives), Milliseconds(rank.wait),
                  absl::StrFormat("%.1f %%", 100 * rank.exposed())});
  }
  return table.Text();
}

Json ToJson(const RankTimes& rank) {
  return {{"rank", rank.rank},
          {"worker", rank.worker},
          {"host", rank.host},
          {"steps", rank.steps},
          {"step_seconds", rank.step},
          {"compute_seconds", rank.compute},
          {"move_seconds", rank.moves},
          {"collective_seconds", rank.collectives},
          {"exposed_wait_seconds", rank.wait},
          {"exposed_share", rank.exposed()},
          {"events", rank.events},
          {"dropped", rank.dropped}};
}

// One process per rank, as the viewers group threads by process.
std::string TraceFile(const v1::TraceReply& trace, uint32_t group) {
  std::vector<TraceProcess> processes;
  for (const v1::RankTrace& rank : trace.ranks()) {
    TraceProcess& process = processes.emplace_back();
    process.name = absl::StrCat("group ", group, " rank ", rank.rank(), " (", rank.worker(),
                                rank.host().empty() ? "" : " on ", rank.host(), ")");
    for (const v1::TraceEvent& event : rank.events())
      process.intervals.push_back(IntervalOf(event));
  }
  return ChromeTraceJson(processes);
}

}  // namespace cadre
