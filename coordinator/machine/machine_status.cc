// The status, for users. Part of Machine. It is computed from the state for every request; only
// reports of the members are stored for it. All times are by the coordinator's clock. Values that a
// restart loses (progress, heartbeats, measured step times) are absent until the members have sent
// them again.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/machine/machine.h"

namespace cadre {
namespace {

// Limits of one page of the status; the second one leaves room for the last item.
constexpr size_t kDefaultPageSize = 1000;
constexpr size_t kMaxPageBytes = 512 << 10;

// The aggregators that hold shards of runs that live and are not registered: their leases have
// ended.
std::set<std::string> MissingAggregators(const std::map<uint32_t, Run>& runs,
                                         const Membership& members) {
  std::set<std::string> missing;
  for (const auto& [number, run] : runs) {
    if (!run.live()) continue;
    for (const std::string& name : run.record().shards()) {
      if (members.Aggregator(name) == nullptr) missing.insert(name);
    }
  }
  return missing;
}

v1::AggregatorStatus AggregatorStatusOf(const Member& member, v1::MemberStatus status,
                                        const std::map<uint32_t, Run>& runs) {
  v1::AggregatorStatus aggregator;
  const auto counter = [&](const char* name) -> uint64_t {
    const auto found = status.counters().find(name);
    return found == status.counters().end() ? 0 : found->second;
  };
  aggregator.set_free_bytes(counter("disk_free_bytes"));
  aggregator.set_reserved_bytes(counter("disk_reserved_bytes"));
  aggregator.mutable_delayed_orders()->Add(member.delayed_orders.begin(),
                                           member.delayed_orders.end());
  for (const auto& [number, run] : runs) run.FillShards(member, aggregator);
  *aggregator.mutable_member() = std::move(status);
  return aggregator;
}

}  // namespace

// The items of all pages are the groups, by run, and then the members, by age. A token names the
// first item of its page: "group <run number> <group>" or "member <id>", so that a page is correct
// even if items were added or removed since.
absl::StatusOr<v1::StatusReply> Machine::Status(absl::Time now,
                                                const v1::StatusRequest& request) const {
  const std::vector<std::string> token = absl::StrSplit(request.page_token(), ' ');
  const bool first = request.page_token().empty();
  uint32_t first_run = 0;
  uint32_t first_group = 0;
  const bool in_groups = token.size() == 3 && token[0] == "group" &&
                         absl::SimpleAtoi(token[1], &first_run) &&
                         absl::SimpleAtoi(token[2], &first_group);
  const bool in_members = token.size() == 2 && token[0] == "member";
  if (!first && !in_groups && !in_members) {
    return absl::InvalidArgumentError("page_token: no reply contained this token");
  }
  // A name stands for the same run on the later pages as on the first one.
  const auto paged = in_groups ? runs_.find(first_run) : runs_.end();
  const Run* const only = request.run().empty() ? nullptr
                          : paged != runs_.end() ? &paged->second
                                                 : Resolve(request.run());
  if (!request.run().empty() && only == nullptr) return NoSuchRun(request.run());
  v1::StatusReply reply;
  const size_t max_items = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  size_t items = 0;
  size_t bytes = 0;
  const auto full = [&] { return items == max_items || bytes > kMaxPageBytes; };
  const auto add = [&](auto& item, auto value) {
    item = std::move(value);
    ++items;
    bytes += item.ByteSizeLong();
  };
  if (first) {
    cluster_.FillStatus(now, reply);
    for (const auto& [number, run] : runs_) {
      if (only == nullptr || &run == only) *reply.add_runs() = run.Status(now);
    }
  }
  for (auto it = runs_.lower_bound(first_run); it != runs_.end() && !in_members; ++it) {
    const Run& run = it->second;
    if (!run.live() || (only != nullptr && &run != only)) continue;
    for (const Slot& slot : run.slots()) {
      if (it->first == first_run && slot.group() < first_group) continue;
      if (full()) {
        reply.set_next_page_token(absl::StrCat("group ", it->first, " ", slot.group()));
        return reply;
      }
      add(*reply.add_groups(), run.StatusOf(slot, request.details()));
    }
  }
  const Membership::Map& members = cluster_.members().all();
  for (auto it = in_members ? members.lower_bound(token[1]) : members.begin(); it != members.end();
       ++it) {
    if (full()) {
      reply.set_next_page_token(absl::StrCat("member ", it->first));
      return reply;
    }
    const Member& member = it->second;
    if (member.worker()) {
      add(*reply.add_workers(), cluster_.StatusOf(member, now));
    } else {
      add(*reply.add_aggregators(),
          AggregatorStatusOf(member, cluster_.StatusOf(member, now), runs_));
    }
  }
  return reply;
}

v1::StatusReply Machine::Status(absl::Time now, absl::string_view run_id) const {
  v1::StatusRequest request;
  request.set_run(std::string(run_id));
  request.set_details(true);
  v1::StatusReply all;
  do {
    const absl::StatusOr<v1::StatusReply> page = Status(now, request);
    if (!page.ok()) return {};
    all.MergeFrom(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

v1::ListReply Machine::List(absl::Time now) const {
  v1::ListReply reply;
  for (const auto& [number, run] : runs_) *reply.add_runs() = run.Status(now);
  return reply;
}

MemberCounts Machine::CountMembers() const {
  MemberCounts counts;
  counts.aggregators_away = std::ssize(MissingAggregators(runs_, cluster_.members()));
  for (const auto& [id, member] : cluster_.members().all()) {
    if (!member.worker()) {
      ++(member.connected() ? counts.aggregators : counts.aggregators_away);
    } else if (!member.connected()) {
      ++counts.workers_away;
    } else if (member.place.has_value()) {
      ++counts.busy;
    } else {
      ++(member.excluded ? counts.excluded : counts.idle);
    }
  }
  return counts;
}

int64_t Machine::RoundOpenedMs(const std::string& run_id) const {
  const Run* const run = FindRun(run_id);
  const bool open = run != nullptr && run->record().state() == v1::RUN_STATE_RUNNING;
  return open ? run->record().round_opened_ms() : 0;
}

absl::StatusOr<v1::HistoryReply> Machine::History(const v1::HistoryRequest& request) const {
  const Run* const run = Resolve(request.run());
  if (run == nullptr) return NoSuchRun(request.run());
  return run->history().Read(request);
}

absl::StatusOr<v1::LocateReply> Machine::Locate(const std::string& id_or_name) const {
  const Run* const run = Resolve(id_or_name);
  if (run == nullptr) return NoSuchRun(id_or_name);
  const v1::RunRecord& record = run->record();
  if (record.shards().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", run->id(), run->live() ? " has no version yet" : " has ended without a version"));
  }
  v1::LocateReply reply;
  *reply.mutable_spec() = run->spec();
  reply.set_lineage(record.lineage());
  reply.set_version(record.version());
  reply.set_step(record.step());
  reply.set_digest(record.digest());
  for (const std::string& name : record.shards()) {
    v1::LocateReply::Shard& shard = *reply.add_shards();
    shard.set_aggregator(name);
    const Member* const member = cluster_.members().Aggregator(name);
    if (member != nullptr && member->connected()) shard.set_address(member->record.address());
  }
  return reply;
}

v1::EventsReply Machine::Events(v1::EventsRequest request) const {
  if (const Run* const run = Resolve(request.run())) request.set_run(run->id());
  return cluster_.event_log().Read(request);
}

std::map<std::string, uint64_t> Machine::Revisions(absl::string_view run_id) const {
  std::map<std::string, uint64_t> revisions;
  for (const auto& [number, run] : runs_) {
    if (run_id.empty() || run.id() == run_id) revisions[run.id()] = run.revision();
  }
  return revisions;
}

v1::WatchUpdate Machine::Update(absl::string_view run_id, absl::Time now) const {
  const Run& run = *FindRun(run_id);
  v1::WatchUpdate update;
  update.set_time_ms(absl::ToUnixMillis(now));
  *update.mutable_run() = run.Status(now);
  if (!run.live()) return update;
  for (const Slot& slot : run.slots()) {
    *update.add_groups() = run.StatusOf(slot, /*details=*/false);
  }
  return update;
}

}  // namespace cadre
