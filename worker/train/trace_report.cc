#include "worker/train/trace_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "model/utf8.h"

namespace cadre {
namespace {

// Together with an event's numbers, at most ten bytes each, these stay below kMaxTraceEventBytes.
constexpr size_t kMaxNameBytes = 72;
constexpr size_t kMaxCategoryBytes = 16;

// The longest prefix of `text` of at most `most` bytes that does not split a UTF-8 character, which
// protobuf would reject.
std::string Cut(absl::string_view text, size_t most) {
  if (!IsUtf8(text)) return "?";
  size_t length = std::min(text.size(), most);
  while (!IsUtf8(text.substr(0, length))) --length;
  return std::string(text.substr(0, length));
}

void Fill(const TraceInterval& interval, v1::TraceEvent& event) {
  event.set_name(Cut(interval.name, kMaxNameBytes));
  event.set_category(Cut(interval.category, kMaxCategoryBytes));
  event.set_track(static_cast<uint32_t>(std::max(interval.track, 0)));
  event.set_begin_us(interval.begin_us);
  event.set_duration_us(interval.duration_us);
  if (interval.bytes >= 0) event.set_bytes(interval.bytes);
  event.set_step(static_cast<uint32_t>(std::max<int64_t>(interval.step, 0)));
}

}  // namespace

v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t max_events) {
  std::stable_sort(intervals.begin(), intervals.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_us, -a.duration_us) < std::pair(b.begin_us, -b.duration_us);
  });
  const size_t kept = std::min(intervals.size(), max_events);
  v1::Traced traced;
  traced.mutable_events()->Reserve(static_cast<int>(kept));
  for (size_t i = 0; i < kept; ++i) Fill(intervals[i], *traced.add_events());
  traced.set_dropped(dropped + (intervals.size() - kept));
  return traced;
}

}  // namespace cadre
