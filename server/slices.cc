// The ends of a range are unsigned numbers from the network. They are compared with the size of
// their tensor as unsigned numbers; only ends within the tensor become positions, which are signed.
// Values from 2^63 on are therefore refused instead of becoming negative positions.
#include "server/slices.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// A rank's slice of a shard has a few ranges per tensor.
constexpr int kMaxRanges = 1 << 16;

}  // namespace

Decision<std::vector<Interval>> Flatten(
    const std::vector<int64_t>& tensor_begin, Interval owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
  if (ranges.size() > kMaxRanges) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(ranges.size(), " ranges exceed the limit of ", kMaxRanges)};
  }
  std::vector<Interval> spans;
  for (const v1::Range& range : ranges) {
    const std::string where =
        absl::StrCat("range [", range.begin(), ", ", range.end(), ") of tensor ", range.tensor());
    // tensor_begin has one entry more than there are tensors: the number of all elements.
    if (range.tensor() + uint64_t{1} >= tensor_begin.size()) {
      return Malformed(absl::StrCat(where, ": no such tensor"));
    }
    const int64_t first = tensor_begin[range.tensor()];
    const uint64_t size = tensor_begin[range.tensor() + 1] - first;
    if (range.begin() > range.end() || range.end() > size) {
      return Malformed(absl::StrCat(where, " exceeds the tensor's ", size, " elements"));
    }
    if (range.begin() == range.end()) continue;
    const int64_t begin = range.begin();
    const int64_t end = range.end();
    const Interval span{first + begin, first + end};
    if (!owned.contains(span)) {
      return Malformed(absl::StrCat(where, " is outside this shard's positions [", owned.begin,
                                    ", ", owned.end, ")"));
    }
    spans.push_back(span);
  }
  return spans;
}

int64_t Elements(const std::vector<Interval>& spans) {
  return std::accumulate(spans.begin(), spans.end(), int64_t{0},
                         [](int64_t sum, const Interval& span) { return sum + span.size(); });
}

// Sorts the spans by their beginnings: if any two overlap, two adjacent ones do.
std::optional<int64_t> Overlap(std::vector<Interval> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  const auto overlap =
      std::adjacent_find(spans.begin(), spans.end(),
                         [](const Interval& a, const Interval& b) { return b.begin < a.end; });
  if (overlap == spans.end()) return std::nullopt;
  return std::next(overlap)->begin;
}

}  // namespace cadre
