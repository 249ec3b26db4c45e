// Restoring the state from the store. Part of Machine.
//
// Counters, members, runs, groups and commits are durable. Streams, progress, open contributions,
// prepared ranks, measured step times and the answers of aggregators are not; they are rebuilt from
// messages of the members. Every transaction leaves a state from which the protocol can continue;
// machine_crash_test checks this for every transaction of two runs.
//
// Leases start again at the restore: the coordinator cannot know how long the members were silent.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"

namespace cadre {
namespace {

absl::Status Parse(const std::string& key, const std::string& bytes,
                   google::protobuf::MessageLite& record) {
  if (record.ParseFromString(bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("store record '", key, "' cannot be parsed"));
}

}  // namespace

absl::StatusOr<std::vector<Action>> Machine::Restore(
    const std::map<std::string, std::string>& records, absl::Time now) {
  now_ = now;
  started_ = now;
  CADRE_RETURN_IF_ERROR(LoadRecords(records));
  meta_.set_starts(meta_.starts() + 1);
  out_.Put(kMetaKey, meta_);
  for (auto& [number, run] : runs_) PlaceMembers(run);
  meta_changed_ = false;
  return out_.Take();
}

absl::Status Machine::LoadRecords(const std::map<std::string, std::string>& records) {
  for (const auto& [key, bytes] : records) {
    if (key == kMetaKey) {
      CADRE_RETURN_IF_ERROR(Parse(key, bytes, meta_));
    } else if (absl::StartsWith(key, kMemberPrefix)) {
      v1::MemberRecord record;
      CADRE_RETURN_IF_ERROR(Parse(key, bytes, record));
      members_.Add(record, now_);
    } else if (absl::StartsWith(key, kRunPrefix)) {
      v1::RunRecord record;
      CADRE_RETURN_IF_ERROR(Parse(key, bytes, record));
      runs_.try_emplace(RunNumber(record.run()), record, now_);
    } else if (absl::StartsWith(key, kProfilePrefix)) {
      v1::LayerTimesRecord record;
      CADRE_RETURN_IF_ERROR(Parse(key, bytes, record));
      measurements_.Load(key, record);
    }
  }
  for (auto& [number, run] : runs_) {
    CADRE_RETURN_IF_ERROR(LoadCommits(records, run));
    const std::string prefix = GroupsPrefix(run.id());
    for (auto it = records.lower_bound(prefix);
         it != records.end() && absl::StartsWith(it->first, prefix); ++it) {
      v1::GroupRecord record;
      CADRE_RETURN_IF_ERROR(Parse(it->first, it->second, record));
      if (record.group() < run.slots.size()) run.slots[record.group()] = Slot(record, now_);
    }
  }
  return absl::OkStatus();
}

// Only three commits are needed: that of the newest version, the one before it, because a
// generation may still be preparing from that version, and the one that is being applied.
absl::Status Machine::LoadCommits(const std::map<std::string, std::string>& records, Run& run) {
  const uint32_t version = run.record.version();
  for (uint32_t round = version - std::min(version, 1U); round <= version + 1; ++round) {
    const std::string key = CommitKey(run.id(), round);
    auto it = records.find(key);
    if (it == records.end()) continue;
    v1::CommitRecord commit;
    CADRE_RETURN_IF_ERROR(Parse(key, it->second, commit));
    if (round < version) {
      run.previous_known = true;
      run.previous_version = round;
      run.previous_digest = commit.digest();
    } else if (round == version) {
      run.last = commit;
    } else if (run.live()) {
      run.closing = commit;
    }
  }
  return absl::OkStatus();
}

// Members keep their ranks: all of them have new leases, so they can return.
void Machine::PlaceMembers(Run& run) {
  for (Slot& slot : run.slots) {
    if (slot.waiting()) continue;
    bool all = true;
    for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
      Member* const member = members_.Find(slot.record().members(rank));
      if (member == nullptr) {
        all = false;
      } else {
        member->place = slot.Place(rank);
      }
    }
    RecordLink(slot);
    if (!all) Fence(run, slot, "a member is no longer registered", Ending::kReleased);
  }
}

}  // namespace cadre
