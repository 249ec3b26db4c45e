#include "server/slices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// A rank's slice of a shard has a few ranges per tensor.
constexpr int kMaxRanges = 1 << 16;

}  // namespace

Decision<std::vector<FlatSpan>> Flatten(
    const std::vector<uint64_t>& tensor_begin, FlatSpan owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
  if (ranges.size() > kMaxRanges) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(ranges.size(), " ranges exceed the limit of ", kMaxRanges)};
  }
  std::vector<FlatSpan> spans;
  for (const v1::Range& range : ranges) {
    const std::string where =
        absl::StrCat("range [", range.begin(), ", ", range.end(), ") of tensor ", range.tensor());
    if (range.tensor() + uint64_t{1} >= tensor_begin.size()) {
      return Malformed(absl::StrCat(where, ": no such tensor"));
    }
    const uint64_t first = tensor_begin[range.tensor()];
    const uint64_t size = tensor_begin[range.tensor() + 1] - first;
    if (range.begin() > range.end() || range.end() > size) {
      return Malformed(absl::StrCat(where, " exceeds the tensor's ", size, " elements"));
    }
    if (range.begin() == range.end()) continue;
    const FlatSpan span{first + range.begin(), first + range.end()};
    if (span.begin < owned.begin || span.end > owned.end) {
      return Malformed(absl::StrCat(where, " is outside this shard's positions [", owned.begin,
                                    ", ", owned.end, ")"));
    }
    spans.push_back(span);
  }
  return spans;
}

uint64_t Elements(const std::vector<FlatSpan>& spans) {
  uint64_t sum = 0;
  for (const FlatSpan& span : spans) sum += span.size();
  return sum;
}

std::optional<uint64_t> Overlap(std::vector<FlatSpan> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const FlatSpan& a, const FlatSpan& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i - 1].end) return spans[i].begin;
  }
  return std::nullopt;
}

}  // namespace cadre
