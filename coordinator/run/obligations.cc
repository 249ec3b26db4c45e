#include "coordinator/run/obligations.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {

std::string LateObligation::Text() const {
  return absl::StrCat(what.text, " for ", absl::FormatDuration(absl::Floor(age, absl::Seconds(1))),
                      what.error.empty() ? "" : absl::StrCat(": ", what.error));
}

std::vector<LateObligation> Obligations::Update(std::vector<Obligation> owed, absl::Time now) {
  std::map<Key, Entry> before = std::exchange(owed_, {});
  std::vector<LateObligation> late;
  for (Obligation& what : owed) {
    const Key key(what.kind, what.member, what.group, what.number);
    const auto known = before.find(key);
    Entry entry{.what = std::move(what), .since = now};
    if (known != before.end()) {
      entry.since = known->second.since;
      entry.reported = known->second.reported;
    }
    const bool is_late = entry.IsLateAt(now);
    if (is_late && !entry.reported) late.push_back({entry.what, entry.AgeAt(now)});
    entry.reported = is_late;
    owed_.insert_or_assign(key, std::move(entry));
  }
  return late;
}

std::vector<LateObligation> Obligations::Late(absl::Time now) const {
  std::vector<LateObligation> late;
  for (const auto& [key, entry] : owed_) {
    if (entry.IsLateAt(now)) late.push_back({entry.what, entry.AgeAt(now)});
  }
  std::stable_sort(late.begin(), late.end(),
                   [](const auto& a, const auto& b) { return a.age > b.age; });
  return late;
}

absl::Time Obligations::NextLate(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, entry] : owed_) {
    const absl::Duration left = entry.what.allowed - entry.AgeAt(now);
    if (left > absl::ZeroDuration()) next = std::min(next, now + left);
  }
  return next;
}

}  // namespace cadre
