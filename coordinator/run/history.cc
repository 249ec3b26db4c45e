#include "coordinator/run/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "base/status.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

constexpr uint64_t kThinning = 16;
// Evaluations are rare and worth keeping.
constexpr int kLevelsOfEvaluation = 2;
constexpr uint32_t kDefaultLimit = 1000;
// Leaves room for other fields in a message.
constexpr size_t kMaxReplyBytes = 4 << 20;

// An entry is erased when it is keep * 16^level numbers old.
int LevelOf(const v1::HistoryEntry& entry) {
  int level = entry.has_evaluation() ? kLevelsOfEvaluation : 0;
  for (uint64_t rest = entry.number(); rest % kThinning == 0; rest /= kThinning) ++level;
  return level;
}

}  // namespace

absl::Status History::Load(const std::map<std::string, std::string>& records) {
  const std::string prefix = HistoryPrefix(run_);
  for (auto it = records.lower_bound(prefix);
       it != records.end() && absl::StartsWith(it->first, prefix); ++it) {
    v1::HistoryEntry entry;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, entry));
    entries_[entry.number()] = std::move(entry);
  }
  return absl::OkStatus();
}

void History::Add(v1::CommitPoint commit, absl::Time now, Outbox& out) {
  v1::HistoryEntry entry;
  entry.set_time_ms(absl::ToUnixMillis(now));
  *entry.mutable_commit() = std::move(commit);
  Append(std::move(entry), out);
}

void History::Add(const v1::EvaluationResult& evaluation, absl::Time now, Outbox& out) {
  v1::HistoryEntry entry;
  entry.set_time_ms(absl::ToUnixMillis(now));
  *entry.mutable_evaluation() = evaluation;
  Append(std::move(entry), out);
}

void History::Append(v1::HistoryEntry entry, Outbox& out) {
  Flush(out);
  entry.set_number(newest() + 1);
  out.Put(HistoryKey(run_, entry.number()), entry);
  entries_.emplace_hint(entries_.end(), entry.number(), std::move(entry));
  Drop(out);
}

// The entry of each level that has just become too old, and the one that loses its participants.
void History::Drop(Outbox& out) {
  uint64_t age = keep_;
  for (int level = 0; age < newest(); ++level, age *= kThinning) {
    const auto found = entries_.find(newest() - age);
    if (found == entries_.end()) continue;
    if (LevelOf(found->second) == level) {
      out.EraseOne(HistoryKey(run_, found->first));
      entries_.erase(found);
    } else if (!found->second.commit().participants().empty()) {
      found->second.mutable_commit()->clear_participants();
      out.Put(HistoryKey(run_, found->first), found->second);
    }
  }
}

void History::NoteAdopted(uint32_t version, uint32_t group, float wait_seconds,
                          float pull_seconds) {
  // An evaluation or two, and the next version, may have been added since.
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (!it->second.has_commit() || it->second.commit().version() > version) continue;
    if (it->second.commit().version() != version) return;
    for (v1::ParticipantTimes& times : *it->second.mutable_commit()->mutable_participants()) {
      if (times.group() != group) continue;
      times.set_wait_seconds(SecondsOrZero(wait_seconds));
      times.set_pull_seconds(SecondsOrZero(pull_seconds));
      changed_ = std::max(changed_, it->first);
    }
    return;
  }
}

void History::Flush(Outbox& out) {
  const auto found = entries_.find(std::exchange(changed_, {}));
  if (found != entries_.end()) out.Put(HistoryKey(run_, found->first), found->second);
}

v1::HistoryReply History::Read(const v1::HistoryRequest& request) const {
  v1::HistoryReply reply;
  reply.set_newest(newest());
  const size_t limit = request.limit() == 0 ? kDefaultLimit : request.limit();
  size_t bytes = 0;
  for (auto it = entries_.upper_bound(request.after());
       it != entries_.end() && std::cmp_less(reply.entries_size(), limit) && bytes < kMaxReplyBytes;
       ++it) {
    *reply.add_entries() = it->second;
    bytes += it->second.ByteSizeLong();
  }
  return reply;
}

}  // namespace cadre
