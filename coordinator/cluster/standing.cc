// The waits are short at first, because most failures are not repeated and a small cluster has no
// other workers, and long for a worker that fails again and again, since each attempt costs its
// peers a formation. Failures of one cause on one host at nearly the same time are one incident for
// the host: when a host is away, all of its workers are.
#include "coordinator/cluster/standing.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cadre {
namespace {

// Failures of a host within this time of the previous one are the same incident.
constexpr absl::Duration kIncident = absl::Seconds(15);
// Workers of a host that must have failed before the host is excluded.
constexpr int kWorkersOfBadHost = 2;
// Workers choose their names, so their number is limited.
constexpr int kMaxWorkersOfHost = 64;
// A worker that joins again after it was lost can be reached at least now.
constexpr absl::Duration kMaxLeaseWait = absl::Seconds(30);
// Time without a failure after which a worker is trusted again.
constexpr absl::Duration kProbation = absl::Minutes(1);
// Limits of what is kept.
constexpr size_t kMaxRecords = 10'000;
constexpr size_t kMaxStoredReason = 500;

bool MayBeOfHost(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_DATA || cause == v1::FAILURE_CAUSE_DATA_DIFFERS ||
         cause == v1::FAILURE_CAUSE_CHECKPOINT || cause == v1::FAILURE_CAUSE_LEASE;
}

// A lost lease never leads to a quarantine, so it does not count for other causes.
void Count(v1::FailureCause cause, absl::string_view reason, absl::Time now,
           v1::StandingRecord& record) {
  const bool leases = record.failed().cause() == v1::FAILURE_CAUSE_LEASE;
  if (leases && cause != v1::FAILURE_CAUSE_LEASE) {
    record.clear_failed();
    record.clear_workers();
  }
  AddFailure(cause, reason, now, *record.mutable_failed());
}

bool IsQuarantined(const v1::FailureRecord& record) {
  return record.failures() >= kQuarantineAfter && record.cause() != v1::FAILURE_CAUSE_LEASE;
}

}  // namespace

void AddFailure(v1::FailureCause cause, absl::string_view reason, absl::Time now,
                v1::FailureRecord& record) {
  record.set_failures(record.failures() + 1);
  record.set_cause(cause);
  record.set_reason(std::string(reason.substr(0, kMaxStoredReason)));
  record.set_last_ms(absl::ToUnixMillis(now));
}

absl::Duration WaitAfter(uint32_t failures) {
  if (failures == 0) return absl::ZeroDuration();
  return std::min(kMaxWait, kFirstWait * (int64_t{1} << std::min(failures - 1, 30U)));
}

bool IsOfSender(v1::FailureCause cause) {
  switch (cause) {
    case v1::FAILURE_CAUSE_DATA:
    case v1::FAILURE_CAUSE_DATA_DIFFERS:
    case v1::FAILURE_CAUSE_CHECKPOINT:
    case v1::FAILURE_CAUSE_MEMORY:
    case v1::FAILURE_CAUSE_DEVICE:
    case v1::FAILURE_CAUSE_PLAN:
    case v1::FAILURE_CAUSE_DIGEST:
    case v1::FAILURE_CAUSE_CLAIM:
      return true;
    default:
      return false;
  }
}

bool IsPermanent(v1::FailureCause cause) {
  return IsOfSender(cause) && cause != v1::FAILURE_CAUSE_DEVICE &&
         cause != v1::FAILURE_CAUSE_DIGEST && cause != v1::FAILURE_CAUSE_CLAIM;
}

void Standings::Load(const v1::StandingRecord& record) {
  records_[{record.host(), record.name()}] = record;
}

void Standings::Fail(const Worker& worker, v1::FailureCause cause, absl::string_view reason,
                     absl::Time now) {
  Count(cause, reason, now, Change({worker.host, worker.name}));
  if (MayBeOfHost(cause)) {
    v1::StandingRecord& host = Change({worker.host, ""});
    const bool known = std::find(host.workers().begin(), host.workers().end(), worker.name) !=
                       host.workers().end();
    const bool same_incident = host.failed().failures() > 0 && host.failed().cause() == cause &&
                               now < absl::FromUnixMillis(host.failed().last_ms()) + kIncident &&
                               (cause == v1::FAILURE_CAUSE_LEASE || known);
    if (!same_incident) Count(cause, reason, now, host);
    if (!known && host.workers_size() < kMaxWorkersOfHost) host.add_workers(worker.name);
  }
  if (records_.size() <= kMaxRecords) return;
  const auto oldest =
      std::min_element(records_.begin(), records_.end(), [](const auto& a, const auto& b) {
        // A cordon ends only with Clear.
        return std::pair(a.second.cordoned(), a.second.failed().last_ms()) <
               std::pair(b.second.cordoned(), b.second.failed().last_ms());
      });
  Erase(Key(oldest->first));
}

void Standings::Succeed(const Worker& worker) {
  doubts_.erase({worker.host, worker.name});
  ClearFailures({worker.host, worker.name});
  ClearFailures({worker.host, ""});
}

void Standings::Forgive(v1::FailureCause cause) {
  std::vector<Key> keys;
  for (const auto& [key, record] : records_) {
    if (record.failed().cause() == cause) keys.push_back(key);
  }
  for (const Key& key : keys) ClearFailures(key);
}

void Standings::ClearFailures(const Key& key) {
  const v1::StandingRecord* const record = Find(key);
  if (record == nullptr || record->failed().failures() == 0) return;
  if (!record->cordoned()) return Erase(key);
  Change(key).clear_failed();
  Change(key).clear_workers();
}

void Standings::Cordon(const Worker& worker) {
  Change({worker.host, worker.name}).set_cordoned(true);
}

void Standings::Drain(const Worker& worker, absl::string_view incarnation, absl::Time until) {
  Cordon(worker);
  v1::StandingRecord& record = Change({worker.host, worker.name});
  record.set_drained(std::string(incarnation));
  record.set_drained_until_ms(until == absl::InfiniteFuture() ? 0 : absl::ToUnixMillis(until));
}

std::optional<absl::Time> Standings::DrainedUntil(const Worker& worker,
                                                  absl::string_view incarnation) const {
  const v1::StandingRecord* const record = Find({worker.host, worker.name});
  if (record == nullptr || record->drained() != incarnation) return std::nullopt;
  const int64_t until = record->drained_until_ms();
  return until == 0 ? absl::InfiniteFuture() : absl::FromUnixMillis(until);
}

void Standings::Clear(const Worker& worker) {
  doubts_.erase({worker.host, worker.name});
  Erase({worker.host, worker.name});
}

void Standings::Doubt(const Worker& worker, absl::Time now, absl::Time until) {
  std::erase_if(doubts_, [&](const auto& one) { return one.second.until <= now; });
  Doubts& doubts = doubts_[{worker.host, worker.name}];
  ++doubts.count;
  doubts.until = std::max(doubts.until, until);
}

absl::Time Standings::AvailableAt(const Worker& worker) const {
  absl::Time at = absl::InfinitePast();
  for (const Key& key : {Key(worker.host, worker.name), Key(worker.host, "")}) {
    if (const v1::StandingRecord* const record = Find(key)) at = std::max(at, AvailableAt(*record));
  }
  return at;
}

uint32_t Standings::CountMarks(const Worker& worker, absl::Time now) const {
  uint32_t marks = 0;
  const auto doubts = doubts_.find({worker.host, worker.name});
  if (doubts != doubts_.end() && now < doubts->second.until) marks += doubts->second.count;
  for (const Key& key : {Key(worker.host, worker.name), Key(worker.host, "")}) {
    const v1::StandingRecord* const record = Find(key);
    if (record == nullptr || AvailableAt(*record) == absl::InfinitePast()) continue;
    marks += record->failed().failures();
  }
  return marks;
}

bool Standings::IsTrusted(const Worker& worker, absl::Time now) const {
  const v1::StandingRecord* const record = Find({worker.host, worker.name});
  const bool lease = record == nullptr || record->failed().cause() == v1::FAILURE_CAUSE_LEASE;
  return now >= AvailableAt(worker) + (lease ? absl::ZeroDuration() : kProbation);
}

bool Standings::IsCordoned(const Worker& worker) const {
  return AvailableAt(worker) == absl::InfiniteFuture();
}

v1::Standing Standings::StatusOf(const v1::StandingRecord& record, absl::Time now) {
  v1::Standing status;
  status.set_failures(record.failed().failures());
  status.set_cause(record.failed().cause());
  status.set_reason(record.failed().reason());
  v1::StandingRecord failed = record;
  failed.set_cordoned(false);
  const absl::Time at = AvailableAt(failed);
  if (at <= now) return status;
  status.set_wait_seconds(absl::ToDoubleSeconds(at - now));
  status.set_quarantined(IsQuarantined(record.failed()));
  return status;
}

absl::Time Standings::AvailableAt(const v1::StandingRecord& record) {
  if (record.cordoned()) return absl::InfiniteFuture();
  const v1::FailureRecord& failed = record.failed();
  const bool of_host = record.name().empty();
  if (failed.failures() == 0 || (of_host && record.workers_size() < kWorkersOfBadHost)) {
    return absl::InfinitePast();
  }
  absl::Duration wait = IsQuarantined(failed) ? kQuarantine : WaitAfter(failed.failures());
  if (failed.cause() == v1::FAILURE_CAUSE_LEASE) {
    wait =
        of_host ? absl::ZeroDuration() : std::min(kMaxLeaseWait, WaitAfter(failed.failures() - 1));
  }
  return absl::FromUnixMillis(failed.last_ms()) + wait;
}

const v1::StandingRecord* Standings::Find(const Key& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

v1::StandingRecord& Standings::Change(const Key& key) {
  v1::StandingRecord& record = records_[key];
  record.set_host(key.first);
  record.set_name(key.second);
  changed_.insert(key);
  return record;
}

void Standings::Erase(const Key& key) {
  if (records_.erase(key) != 0) changed_.insert(key);
}

}  // namespace cadre
