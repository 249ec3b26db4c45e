#include "coordinator/events/retention.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Why the run is to be deleted, and from when on; an empty reason: it is kept.
struct Due {
  absl::Time at = absl::InfiniteFuture();
  std::string reason;
  absl::Duration notice;
};

Due DueByAge(const RetentionPolicy& policy, const EndedRun& run) {
  if (policy.keep_for <= absl::ZeroDuration()) return {};
  return {.at = run.ended + policy.keep_for,
          .reason = absl::StrCat("runs are kept for ", absl::FormatDuration(policy.keep_for),
                                 " after their end (--keep-runs-for)"),
          .notice = std::min(policy.notice, policy.keep_for)};
}

Due DueByBytes(const RetentionPolicy& policy, uint64_t stored, absl::Time now) {
  if (policy.keep_bytes == 0 || stored <= policy.keep_bytes) return {};
  return {.at = now,
          .reason = absl::StrCat("runs that have ended may take ", policy.keep_bytes,
                                 " bytes (--keep-runs-bytes), and take ", stored),
          .notice = policy.notice};
}

void Apply(const EndedRun& run, const Due& due, absl::Time now, RetentionChanges& changes) {
  const bool announced = run.removal < absl::InfiniteFuture();
  if (due.at - due.notice > now) {
    if (announced) changes.withdraw.push_back(run.number);
    changes.next = std::min(changes.next, due.at - due.notice);
  } else if (!announced || (run.removal < due.at && now < due.at)) {
    // A policy that has become more generous moves what it has announced.
    const absl::Time removal = announced ? due.at : std::max(due.at, now + due.notice);
    changes.announce.push_back({run.number, removal, due.reason});
    changes.next = std::min(changes.next, removal);
  } else if (run.removal <= now) {
    changes.remove.push_back({run.number, run.removal, due.reason});
  } else {
    changes.next = std::min(changes.next, run.removal);
  }
}

}  // namespace

RetentionChanges FindRetentionChanges(const RetentionPolicy& policy, std::vector<EndedRun> ended,
                                      absl::Time now) {
  std::sort(ended.begin(), ended.end(), [](const EndedRun& a, const EndedRun& b) {
    return std::tie(a.ended, a.number) < std::tie(b.ended, b.number);
  });
  RetentionChanges changes;
  uint64_t stored = 0;
  int without_version = 0;
  for (const EndedRun& run : ended) {
    stored += run.has_version ? run.bytes : 0;
    without_version += run.has_version ? 0 : 1;
  }
  for (const EndedRun& run : ended) {
    if (run.has_version) {
      const Due by_bytes = DueByBytes(policy, stored, now);
      const Due by_age = DueByAge(policy, run);
      Apply(run, by_bytes.at < by_age.at ? by_bytes : by_age, now, changes);
      if (!by_bytes.reason.empty()) stored -= run.bytes;
    } else if (without_version > policy.keep_without_version) {
      --without_version;
      changes.remove.push_back(
          {run.number, now,
           absl::StrCat("it has no version, and only the newest ", policy.keep_without_version,
                        " such runs are kept (--keep-runs-without-version)")});
    }
  }
  return changes;
}

}  // namespace cadre
