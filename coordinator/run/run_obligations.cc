// Each obligation follows from a state in which the run waits:
//
//   a shard that is not open             its aggregator: open_run
//   a closing round, a shard without it  its aggregator: apply
//   a lost shard                         its aggregator: open_run, copy_shard or apply; or the
//                                        groups that were asked for their values: restage
//   a commit that waits for a copy       the holder of the copy: copy_shard
//   a move that has begun                its target: open_run, then copy_shard
//   a group with a version to load       the group: pull
//   a part of the test split             the group: evaluate
//   a group that waits for a plan        the planner: plan
//
// An aggregator without a stream owes nothing: the run waits for it, and gives that as its reason.
// A group that makes progress is not late, however large its version or its part is. A group that
// hangs is ended later (coordinator/events/deadlines.h).
#include "coordinator/run/run_obligations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_view.h"
#include "model/shard_copies.h"

namespace cadre {
namespace {

constexpr absl::Duration kUpdateInterval = absl::Seconds(1);
// An order reads or writes its shard on a disk that is at least this fast.
constexpr double kMinDiskBytesPerSecond = 50e6;
// A group makes progress at least as often as after so many of its steps.
constexpr double kMaxPauseSteps = 10;
// One thread searches the plans of all runs.
constexpr absl::Duration kMaxSearch = absl::Minutes(5);
constexpr absl::string_view kNotReported = "it does not report this order";

// Null if the member does not report the order as delayed.
const v1::DelayedOrder* FindReport(const Member& member, absl::string_view run,
                                   absl::string_view order) {
  const auto& all = member.delayed_orders;
  const auto found = std::find_if(all.begin(), all.end(), [&](const v1::DelayedOrder& delayed) {
    return delayed.run() == run && delayed.order() == order;
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

void RunObligations::Update() {
  const absl::Time now = cluster_.now();
  outdated_ = now < updated_ + kUpdateInterval;
  if (outdated_) return;
  updated_ = now;
  for (const LateObligation& late : obligations_.Update(Owed(), now)) {
    v1::ClusterEvent event;
    event.set_kind(v1::EVENT_KIND_ORDER_DELAYED);
    event.set_run(run_.id());
    if (late.what.group.has_value()) event.set_group(*late.what.group);
    event.set_member(late.what.member);
    event.set_text(late.Text());
    cluster_.Report(std::move(event));
  }
}

absl::Time RunObligations::NextDeadline() const {
  return outdated_ ? updated_ + kUpdateInterval : obligations_.NextLate(cluster_.now());
}

std::string RunObligations::Reason() const {
  const std::vector<LateObligation> late = obligations_.Late(cluster_.now());
  return late.empty() ? "" : late.front().Text();
}

std::set<std::string> RunObligations::LateAggregators() const {
  std::set<std::string> names;
  for (const LateObligation& late : obligations_.Late(cluster_.now())) {
    // An aggregator that reports no order of the run may still verify the copies that it holds.
    // Behind one that hangs, the others of the run wait, which are not reported.
    const Member* const member = cluster_.members().Aggregator(late.what.member);
    const bool reports =
        member != nullptr && absl::c_any_of(member->delayed_orders, [&](const auto& order) {
          return order.run() == run_.id();
        });
    const bool opens = late.what.kind == "open_run" && reports;
    if (opens || late.what.kind == "apply") names.insert(late.what.member);
  }
  return names;
}

void RunObligations::FillDelayed(const Member& aggregator, v1::AggregatorStatus& status) const {
  for (const LateObligation& late : obligations_.Late(cluster_.now())) {
    const Obligation& what = late.what;
    if (what.group.has_value() || what.member != aggregator.record.name() ||
        FindReport(aggregator, run_.id(), what.kind) != nullptr) {
      continue;
    }
    v1::DelayedOrder& delayed = *status.add_delayed_orders();
    delayed.set_run(run_.id());
    delayed.set_order(what.kind);
    delayed.set_reason(what.error);
    delayed.set_seconds(static_cast<float>(absl::ToDoubleSeconds(late.age)));
  }
}

std::vector<Obligation> RunObligations::Owed() const {
  std::vector<Obligation> owed;
  if (!run_.active()) return owed;
  if (run_.averages()) AddOrders(owed);
  AddWork(owed);
  if (!run_.slots().waiting().empty() && planner_.IsSearching(run_.id())) {
    owed.push_back({.kind = "plan",
                    .text = "no plan was found for the measured workers",
                    .allowed = kMaxSearch});
  }
  return owed;
}

void RunObligations::AddOrders(std::vector<Obligation>& owed) const {
  const Shards& shards = run_.shards();
  for (int shard = 0; shard < shards.size(); ++shard) {
    const auto lost = shards.lost().find(shard);
    if (lost != shards.lost().end()) {
      AddRestore(shard, lost->second, owed);
    } else if (!shards.IsOpen(shard)) {
      AddOrder(shard, "open_run", 0, absl::StrCat("opened shard ", shard), owed);
    } else if (run_.committing() && !run_.commits().closing()->digests(shard).applied()) {
      const uint32_t round = run_.commits().closing()->round();
      AddOrder(shard, "apply", round, absl::StrCat("applied round ", round, " to shard ", shard),
               owed);
    }
  }
  for (const auto& [shard, version] : parts_.aggregators.copies().Awaited()) {
    const uint32_t holder = CopyHolder(shard, shards.size());
    AddOrder(holder, "copy_shard", version.version,
             absl::StrCat("copied version ", version.version, " of shard ", shard), owed);
  }
  const ShardMoves& moves = parts_.aggregators.moves();
  if (const std::optional<ShardMoves::Order> order = moves.OwedByTarget()) {
    AddOrder(moves.target(), order->kind, order->version, order->Text(), owed);
  }
}

void RunObligations::AddRestore(uint32_t shard, const ShardRestore& restore,
                                std::vector<Obligation>& owed) const {
  if (!restore.attempt().has_value()) return;
  const ShardRestore::Attempt& attempt = *restore.attempt();
  const std::string what = absl::StrCat("restored version ", attempt.round(), " of shard ", shard);
  if (!restore.ready()) {
    AddOrder(shard, "open_run", attempt.hollow, absl::StrCat("opened lost shard ", shard), owed);
  } else if (attempt.source == ShardRestore::Source::kCopy) {
    AddOrder(shard, "copy_shard", attempt.round(), what, owed);
  } else if (!restore.asked.empty()) {
    for (const uint32_t group : run_.slots().started()) {
      const auto asked = restore.asked.lower_bound({group, 0});
      if (asked == restore.asked.end() || asked->first != group) continue;
      AddGroup(run_.slots()[group], "restage", attempt.round(),
               absl::StrCat("staged its values for lost shard ", shard), owed);
    }
  } else if (attempt.source != ShardRestore::Source::kOpenRound) {
    AddOrder(shard, "apply", attempt.round(), what, owed);
  }
}

void RunObligations::AddWork(std::vector<Obligation>& owed) const {
  // Versions cannot be loaded while a shard is away or lost.
  if (run_.averages() && !run_.shards().AllOpen()) return;
  const RunVersions& versions = parts_.rounds.versions();
  for (const auto& [group, version] : versions.loading()) {
    if (!run_.slots().started().contains(group)) continue;
    AddGroup(run_.slots()[group], "pull", version, absl::StrCat("loaded version ", version), owed);
  }
  if (!run_.record().has_evaluating()) return;
  const uint32_t version = run_.record().evaluating().version();
  for (const uint32_t group : run_.slots().started()) {
    // It loads the version first.
    if (versions.IsLoading(group)) continue;
    if (parts_.evaluation.PartOf(run_.slots()[group]) == nullptr) continue;
    AddGroup(run_.slots()[group], "evaluate", version,
             absl::StrCat("evaluated its part of version ", version), owed);
  }
}

void RunObligations::AddOrder(uint32_t shard, absl::string_view kind, uint32_t number,
                              absl::string_view what, std::vector<Obligation>& owed) const {
  AddOrder(run_.record().shards(static_cast<int>(shard)), kind, number, what, owed);
}

void RunObligations::AddOrder(const std::string& aggregator, absl::string_view kind,
                              uint32_t number, absl::string_view what,
                              std::vector<Obligation>& owed) const {
  const Member* const member = cluster_.members().Aggregator(aggregator);
  if (member == nullptr || !member->connected()) return;
  const v1::DelayedOrder* const report = FindReport(*member, run_.id(), kind);
  // A round reads the version before and what each participant has staged, and writes the version.
  const int reads =
      kind == "apply" && run_.committing() ? 2 + run_.commits().closing()->participants_size() : 1;
  const double bytes =
      reads * static_cast<double>(run_.Parameters()) / run_.shards().size() * sizeof(float);
  owed.push_back({.kind = std::string(kind),
                  .member = aggregator,
                  .number = number,
                  .text = absl::StrCat("aggregator ", aggregator, " has not ", what),
                  .error = report == nullptr ? std::string(kNotReported) : report->reason(),
                  .allowed = kMaxObligationAge + absl::Seconds(bytes / kMinDiskBytesPerSecond)});
}

void RunObligations::AddGroup(const Slot& slot, absl::string_view kind, uint32_t number,
                              absl::string_view what, std::vector<Obligation>& owed) const {
  const Member* const lead = cluster_.members().Find(slot.record().members(0));
  if (lead == nullptr) return;
  owed.push_back(
      {.kind = std::string(kind),
       .member = lead->record.name(),
       .group = slot.group(),
       .number = number,
       .text = absl::StrCat("group ", slot.group(), " (worker ", lead->record.name(),
                            ") has made no progress and not ", what),
       .progress = ProgressOf(slot),
       .allowed = std::max(kMaxObligationAge,
                           kMaxPauseSteps * absl::Seconds(slot.progress.step_seconds()))});
}

absl::Time RunObligations::ProgressOf(const Slot& slot) const {
  if (!slot.watch.has_value()) return absl::InfinitePast();
  // A program compiles, evaluates or saves by itself before it loads a version.
  if (slot.watch->program_pause() > absl::ZeroDuration()) return cluster_.now();
  return cluster_.now() - slot.watch->pause();
}

}  // namespace cadre
