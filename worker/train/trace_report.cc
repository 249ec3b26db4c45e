#include "worker/train/trace_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "spec/utf8.h"

namespace cadre {
namespace {

// With these the numbers of an event, ten bytes each at most, stay below kMostTraceEventBytes.
constexpr size_t kMostNameBytes = 72;
constexpr size_t kMostCategoryBytes = 16;

// The longest beginning of `text` that is text too and no longer than `most`; protobuf would not
// send a character that is cut in two.
std::string Cut(absl::string_view text, size_t most) {
  if (!IsUtf8(text)) return "?";
  size_t length = std::min(text.size(), most);
  while (!IsUtf8(text.substr(0, length))) --length;
  return std::string(text.substr(0, length));
}

void Fill(const TraceInterval& interval, v1::TraceEvent& event) {
  event.set_name(Cut(interval.name, kMostNameBytes));
  event.set_category(Cut(interval.category, kMostCategoryBytes));
  event.set_lane(static_cast<uint32_t>(std::max(interval.lane, 0)));
  event.set_begin_us(interval.begin_us);
  event.set_duration_us(interval.duration_us);
  if (interval.bytes >= 0) event.set_bytes(static_cast<uint64_t>(interval.bytes));
  event.set_step(static_cast<uint32_t>(std::max<int64_t>(interval.step, 0)));
}

}  // namespace

v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t most_events) {
  std::stable_sort(intervals.begin(), intervals.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_us, -a.duration_us) < std::pair(b.begin_us, -b.duration_us);
  });
  const size_t kept = std::min(intervals.size(), most_events);
  v1::Traced traced;
  traced.mutable_events()->Reserve(static_cast<int>(kept));
  for (size_t i = 0; i < kept; ++i) Fill(intervals[i], *traced.add_events());
  traced.set_dropped(dropped + (intervals.size() - kept));
  return traced;
}

}  // namespace cadre
