#include "comm/transport/suspects.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cadre {
namespace {

constexpr char kPayload[] = "cadre/suspects";
constexpr char kReleased[] = "cadre/released";

}  // namespace

absl::Status WithSuspects(absl::Status status, const std::vector<int>& ranks) {
  status.SetPayload(kPayload, absl::Cord(absl::StrJoin(ranks, ",")));
  return status;
}

std::vector<int> SuspectsOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  std::vector<int> ranks;
  if (!payload.has_value()) return ranks;
  const std::string text(*payload);
  for (const auto part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int rank = 0;
    if (absl::SimpleAtoi(part, &rank)) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status WithRelease(absl::Status status) {
  status.SetPayload(kReleased, absl::Cord("1"));
  return status;
}

bool IsOfRelease(const absl::Status& status) { return status.GetPayload(kReleased).has_value(); }

}  // namespace cadre
