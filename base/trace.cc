#include "base/trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

// U+FFFD, which stands for bytes that are no UTF-8: a JSON reader refuses the whole file for one.
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the UTF-8 character that `text` begins with; 0 if it is none. Overlong forms, surrogates
// and what lies beyond U+10FFFF are none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

// `text` as a JSON string, with its quotes.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const unsigned char first = text[0];
    if (length == 0) {
      absl::StrAppend(&quoted, kReplacement);
    } else if (first == '"' || first == '\\') {
      quoted += {'\\', text[0]};
    } else if (first < 0x20 || first == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\u%04x", first);
    } else {
      absl::StrAppend(&quoted, text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  quoted += '"';
  return quoted;
}

std::string LaneName(int lane) {
  if (lane == 0) return "compute";
  if (lane == 1) return "communication";
  return absl::StrCat("lane ", lane);
}

// Events of the format, one on each line.
class Writer {
 public:
  // `what` is "process" or "thread". `tid` is ignored by viewers for the name of a process.
  void Name(absl::string_view what, size_t pid, int tid, absl::string_view name) {
    Line(absl::StrCat("{\"ph\":\"M\",\"pid\":", pid, ",\"tid\":", tid, ",\"name\":\"", what,
                      "_name\",\"args\":{\"name\":", Quoted(name), "}}"));
  }
  // Viewers sort processes by name otherwise, so that rank 10 would stand before rank 2.
  void SortIndex(absl::string_view what, size_t pid, int tid, size_t index) {
    Line(absl::StrCat("{\"ph\":\"M\",\"pid\":", pid, ",\"tid\":", tid, ",\"name\":\"", what,
                      "_sort_index\",\"args\":{\"sort_index\":", index, "}}"));
  }
  void Interval(size_t pid, const TraceInterval& interval) {
    std::string args = absl::StrCat("\"step\":", interval.step);
    if (interval.bytes >= 0) absl::StrAppend(&args, ",\"bytes\":", interval.bytes);
    Line(absl::StrCat("{\"ph\":\"X\",\"pid\":", pid, ",\"tid\":", interval.lane,
                      ",\"ts\":", interval.begin_us, ",\"dur\":", interval.duration_us,
                      ",\"name\":", Quoted(interval.name), ",\"cat\":", Quoted(interval.category),
                      ",\"args\":{", args, "}}"));
  }
  std::string Document() && {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", lines_, "\n]}\n");
  }

 private:
  void Line(absl::string_view event) {
    absl::StrAppend(&lines_, lines_.empty() ? "" : ",\n", event);
  }

  std::string lines_;
};

// By begin; of those that begin together the longer first, which encloses the others.
std::vector<const TraceInterval*> InOrder(const std::vector<TraceInterval>& intervals) {
  std::vector<const TraceInterval*> order;
  order.reserve(intervals.size());
  for (const TraceInterval& interval : intervals) order.push_back(&interval);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin_us, -a->duration_us) < std::pair(b->begin_us, -b->duration_us);
  });
  return order;
}

std::vector<int> Lanes(const std::vector<TraceInterval>& intervals) {
  std::vector<int> lanes;
  for (const TraceInterval& interval : intervals) lanes.push_back(interval.lane);
  std::sort(lanes.begin(), lanes.end());
  lanes.erase(std::unique(lanes.begin(), lanes.end()), lanes.end());
  return lanes;
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
  // Stopped meanwhile: nobody would ever hand it out.
  if (!on()) return;
  if (intervals_.size() >= kMostIntervals) {
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
  Writer writer;
  for (size_t pid = 0; pid < processes.size(); ++pid) {
    const TraceProcess& process = processes[pid];
    writer.Name("process", pid, 0, process.name);
    writer.SortIndex("process", pid, 0, pid);
    for (const int lane : Lanes(process.intervals)) {
      writer.Name("thread", pid, lane, LaneName(lane));
      writer.SortIndex("thread", pid, lane, static_cast<size_t>(std::max(lane, 0)));
    }
    for (const TraceInterval* interval : InOrder(process.intervals)) {
      writer.Interval(pid, *interval);
    }
  }
  return std::move(writer).Document();
}

}  // namespace cadre
