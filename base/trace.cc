// The format is that of the Trace Event Profiling Tool of Chrome: complete events (phase "X") for
// intervals and metadata events (phase "M") for the names and the order of processes and tracks.
// Viewers nest intervals of one track by their order in the file, so an enclosing interval must
// come before those that it encloses.
#include "base/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

using Json = nlohmann::ordered_json;

std::string TrackName(int track) {
  if (track == 0) return "compute";
  if (track == 1) return "communication";
  return absl::StrCat("track ", track);
}

// A metadata event: `what` is "process_name", "thread_sort_index" and the like.
template <typename Value>
Json Metadata(const char* what, size_t pid, int track, const char* key, const Value& value) {
  return {{"ph", "M"}, {"pid", pid}, {"tid", track}, {"name", what}, {"args", {{key, value}}}};
}

Json Event(size_t pid, const TraceInterval& interval) {
  Json args = {{"step", interval.step}};
  if (interval.bytes >= 0) args["bytes"] = interval.bytes;
  return {{"ph", "X"},
          {"pid", pid},
          {"tid", interval.track},
          {"ts", interval.begin_us},
          {"dur", interval.duration_us},
          {"name", interval.name},
          {"cat", interval.category},
          {"args", std::move(args)}};
}

// Sorted by begin. Of intervals that begin at the same time the longest comes first, because it
// encloses the others.
std::vector<const TraceInterval*> InOrder(const std::vector<TraceInterval>& intervals) {
  std::vector<const TraceInterval*> order;
  order.reserve(intervals.size());
  for (const TraceInterval& interval : intervals) order.push_back(&interval);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin_us, -a->duration_us) < std::pair(b->begin_us, -b->duration_us);
  });
  return order;
}

std::vector<int> Tracks(const std::vector<TraceInterval>& intervals) {
  std::vector<int> tracks;
  for (const TraceInterval& interval : intervals) tracks.push_back(interval.track);
  std::sort(tracks.begin(), tracks.end());
  tracks.erase(std::unique(tracks.begin(), tracks.end()), tracks.end());
  return tracks;
}

}  // namespace

void Trace::Start() {
  absl::MutexLock lock(&mutex_);
  intervals_.clear();
  dropped_ = 0;
  on_.store(true, std::memory_order_relaxed);
}

std::vector<TraceInterval> Trace::Stop() {
  absl::MutexLock lock(&mutex_);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(intervals_, {});
}

void Trace::Add(TraceInterval interval) {
  if (!on()) return;
  absl::MutexLock lock(&mutex_);
  // Another thread may have called Stop: the next Start would discard the interval.
  if (!on()) return;
  if (intervals_.size() >= kMaxIntervals) {
    ++dropped_;
    return;
  }
  intervals_.push_back(std::move(interval));
}

uint64_t Trace::dropped() const {
  absl::MutexLock lock(&mutex_);
  return dropped_;
}

int64_t Trace::Now() { return absl::GetCurrentTimeNanos() / 1000; }

std::string ChromeTraceJson(const std::vector<TraceProcess>& processes) {
  std::string lines;
  const auto add = [&](const Json& event) {
    // Viewers reject a whole file because of one string that is not UTF-8.
    absl::StrAppend(&lines, lines.empty() ? "" : ",\n",
                    event.dump(-1, ' ', false, Json::error_handler_t::replace));
  };
  for (size_t pid = 0; pid < processes.size(); ++pid) {
    const TraceProcess& process = processes[pid];
    add(Metadata("process_name", pid, 0, "name", process.name));
    // Without an index, viewers sort by name and show rank 10 before rank 2.
    add(Metadata("process_sort_index", pid, 0, "sort_index", pid));
    for (const int track : Tracks(process.intervals)) {
      add(Metadata("thread_name", pid, track, "name", TrackName(track)));
      add(Metadata("thread_sort_index", pid, track, "sort_index", std::max(track, 0)));
    }
    for (const TraceInterval* interval : InOrder(process.intervals)) add(Event(pid, *interval));
  }
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", lines, "\n]}\n");
}

}  // namespace cadre
