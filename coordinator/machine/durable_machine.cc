#include "coordinator/machine/durable_machine.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "base/status.h"
#include "coordinator/run/screen.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// How often a limit of the process is looked for, and how long there must be room again:
// connections that come and go at the limit are one event.
constexpr absl::Duration kProbeEvery = absl::Seconds(1);
constexpr absl::Duration kRoomTime = absl::Minutes(1);

// All records that the machine is restored from. A run may have many commits; only that which may
// be closing, the newest ones, whose changes the screen remembers, and those of the versions that
// are kept are needed.
absl::StatusOr<std::map<std::string, std::string>> ReadRecords(Store& store) {
  std::map<std::string, std::string> records;
  for (const absl::string_view prefix :
       {kMetaKey, kMemberPrefix, kRunPrefix, kSpecPrefix, kDeletedPrefix, kGroupPrefix,
        kProfilePrefix, kStandingPrefix, kLostRankPrefix, kCordonedAggregatorPrefix, kHistoryPrefix,
        kEventPrefix}) {
    CADRE_ASSIGN_OR_RETURN(auto found, store.Scan(prefix));
    records.merge(found);
  }
  std::map<std::string, std::string> commits;
  for (const auto& [key, bytes] : records) {
    v1::RunRecord run;
    if (!absl::StartsWith(key, kRunPrefix) || !run.ParseFromString(bytes)) continue;
    std::set<uint32_t> rounds(run.kept().begin(), run.kept().end());
    const uint32_t oldest = run.version() - std::min(run.version(), PastChanges::kRemembered);
    for (uint32_t round = oldest; round <= run.version() + 1; ++round) rounds.insert(round);
    for (const uint32_t round : rounds) {
      const std::string commit = CommitKey(run.run(), round);
      CADRE_ASSIGN_OR_RETURN(auto value, store.Get(commit));
      if (value.has_value()) commits[commit] = *std::move(value);
    }
  }
  records.merge(commits);
  return records;
}

}  // namespace

// The epoch begins before the records are read: another coordinator on the same store, which it
// replaces, may change them until then.
absl::StatusOr<DurableMachine::Turn> DurableMachine::Restore(Store& store, absl::Time now,
                                                             uint64_t above) {
  CADRE_ASSIGN_OR_RETURN(const std::optional<std::string> meta, store.Get(kMetaKey));
  v1::MetaRecord last;
  if (meta.has_value()) CADRE_RETURN_IF_ERROR(ParseRecord(kMetaKey, *meta, last));
  CADRE_ASSIGN_OR_RETURN(const uint64_t epoch,
                         store.BeginEpoch(std::max(above, last.epoch()), now));
  CADRE_ASSIGN_OR_RETURN(const auto records, ReadRecords(store));
  CADRE_ASSIGN_OR_RETURN(auto actions, machine_.Restore(records, now, epoch));
  Turn turn;
  CADRE_ASSIGN_OR_RETURN(turn.actions, Commit(std::move(actions)));
  return turn;
}

absl::Time DurableMachine::BeginWait(absl::Time now, absl::Time until) {
  wait_begin_ = now;
  wait_until_ = std::min(machine_.NextDeadline(), until);
  if (options_.find_limit) wait_until_ = std::min(wait_until_, next_probe_);
  return wait_until_;
}

absl::Duration DurableMachine::TakeUnread(absl::Time now) {
  const absl::Time begin = std::min(wait_begin_, now);
  const absl::Duration late = now - std::max(wait_until_, begin);
  return begin - std::exchange(last_read_, now) + std::max(late, absl::ZeroDuration());
}

absl::StatusOr<DurableMachine::Turn> DurableMachine::Handle(const std::vector<Event>& events,
                                                            absl::Time now) {
  Turn turn;
  std::vector<Action> actions;
  bool handled = false;
  const bool due = now >= machine_.NextDeadline();
  const auto add = [&](const Event* event, std::vector<Action> added) {
    handled = true;
    if (options_.on_handled) options_.on_handled(event, added);
    std::move(added.begin(), added.end(), std::back_inserter(actions));
  };
  const auto handle = [&](const Event& event) { add(&event, machine_.Handle(event, now)); };
  turn.stall = stall_monitor_.OnRead(TakeUnread(now));
  if (turn.stall > absl::ZeroDuration()) handle(Stalled{turn.stall});
  if (const auto limit = ProbeLimit(now)) {
    turn.limit = limit->limit;
    handle(*limit);
  }
  for (const Event& event : events) handle(event);
  if (due) handle(Tick{});
  if (handled) add(nullptr, machine_.Settle(now));
  CADRE_ASSIGN_OR_RETURN(turn.actions, Commit(std::move(actions)));
  return turn;
}

std::optional<LimitReached> DurableMachine::ProbeLimit(absl::Time now) {
  if (!options_.find_limit || now < next_probe_) return std::nullopt;
  next_probe_ = now + kProbeEvery;
  const std::string limit = options_.find_limit();
  if (!limit.empty()) limit_at_ = now;
  if (limit == limit_ || (limit.empty() && now < limit_at_ + kRoomTime)) return std::nullopt;
  limit_ = limit;
  return LimitReached{limit};
}

absl::StatusOr<std::vector<Action>> DurableMachine::Commit(std::vector<Action> actions) {
  std::vector<Store::Op> ops;
  std::vector<Action> others;
  for (Action& action : actions) {
    if (auto* const op = std::get_if<Store::Op>(&action)) {
      ops.push_back(std::move(*op));
    } else {
      others.push_back(std::move(action));
    }
  }
  if (!ops.empty()) CADRE_RETURN_IF_ERROR(options_.commit(ops));
  return others;
}

}  // namespace cadre
