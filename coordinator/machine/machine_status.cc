// The status, for users. Part of Machine. It is computed from the state for every request; only
// reports of the members are stored for it. All times are by the coordinator's clock. Values that a
// restart loses (progress, heartbeats, measured step times) are absent until the members have sent
// them again.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "coordinator/machine/machine.h"

namespace cadre {
namespace {

// Limits of one page of the status; the second one leaves room for the last item.
constexpr size_t kDefaultPageSize = 1000;
constexpr size_t kMaxPageBytes = 512 << 10;

// Where a page starts.
struct PageStart {
  uint32_t run = 0;
  uint32_t group = 0;
  // None: with a group.
  std::optional<std::string> member;
};

// The items of all pages are the groups, by run, and then the members, by age. A token names the
// first item of its page: "group <run number> <group>" or "member <id>", so that a page is correct
// even if items were added or removed since. An empty one names the first page.
std::optional<PageStart> ParseToken(const std::string& text) {
  PageStart start;
  if (text.empty()) return start;
  const std::vector<std::string> token = absl::StrSplit(text, ' ');
  if (token.size() == 3 && token[0] == "group" && absl::SimpleAtoi(token[1], &start.run) &&
      absl::SimpleAtoi(token[2], &start.group)) {
    return start;
  }
  if (token.size() != 2 || token[0] != "member") return std::nullopt;
  start.member = token[1];
  return start;
}

// A page, which is full once it has the number of items that was requested, or many bytes.
class StatusPage {
 public:
  explicit StatusPage(const v1::StatusRequest& request)
      : max_items_(request.page_size() == 0 ? kDefaultPageSize : request.page_size()) {}

  v1::StatusReply& reply() { return reply_; }
  bool full() const { return items_ == max_items_ || bytes_ > kMaxPageBytes; }
  template <typename Item>
  void Add(Item& item, Item value) {
    item = std::move(value);
    ++items_;
    bytes_ += item.ByteSizeLong();
  }
  // `next`: the token of the next page; empty if this is the last one.
  v1::StatusReply End(const std::string& next) {
    reply_.set_next_page_token(next);
    return std::move(reply_);
  }

 private:
  const size_t max_items_;
  v1::StatusReply reply_;
  size_t items_ = 0;
  size_t bytes_ = 0;
};

void FillRetention(const RetentionPolicy& policy, const Runs::Map& runs, v1::Retention& status) {
  status.set_keep_seconds(absl::ToDoubleSeconds(policy.keep_for));
  status.set_keep_bytes(policy.keep_bytes);
  status.set_keep_without_version(policy.keep_without_version);
  for (const auto& [number, run] : runs) {
    const EndedRun ended = run.live() ? EndedRun() : run.Ended();
    if (!ended.has_version) continue;
    status.set_runs(status.runs() + 1);
    status.set_stored_bytes(status.stored_bytes() + ended.bytes);
  }
}

void FillCluster(const CoordinatorOptions& options, const Cluster& cluster, const Runs::Map& runs,
                 absl::Time now, v1::StatusReply& reply) {
  v1::CoordinatorStatus& coordinator = *reply.mutable_coordinator();
  coordinator.set_version(options.version);
  coordinator.set_protocol(options.protocol);
  if (cluster.started() != absl::InfinitePast()) {
    coordinator.set_uptime_seconds(absl::ToDoubleSeconds(now - cluster.started()));
  }
  coordinator.set_starts(cluster.meta().starts());
  coordinator.set_insecure(options.insecure);
  coordinator.set_exhausted(cluster.limit_reached());
  FillRetention(options.retention, runs, *coordinator.mutable_retention());
  // Aggregators count what they refuse themselves and report the sums in their heartbeats.
  auto& counters = *reply.mutable_counters();
  counters = cluster.meta().counters();
  for (const auto& [id, member] : cluster.members().all()) {
    for (const auto& [name, value] : member.counters) {
      if (absl::StartsWith(name, "refused_")) counters[name] += value;
    }
  }
  for (const auto& [key, record] : cluster.standings().records()) {
    if (!key.second.empty()) continue;
    v1::HostStatus& host = *reply.add_hosts();
    host.set_host(key.first);
    *host.mutable_standing() = Standings::StatusOf(record, now);
    if (record.cordoned() && record.failed().failures() == 0) {
      host.mutable_standing()->set_reason("cordoned");
    }
  }
}

v1::MemberStatus MemberStatusOf(const Cluster& cluster, const Member& member, absl::Time now) {
  v1::MemberStatus status;
  status.set_member_id(member.id());
  status.set_name(member.record.name());
  status.set_host(member.record.host());
  status.set_address(member.record.address());
  status.set_device(member.record.device());
  status.set_heartbeat_age_seconds(std::max(0.0, absl::ToDoubleSeconds(now - member.last_heard)));
  status.set_connected(member.connected());
  if (member.place.has_value()) *status.mutable_place() = *member.place;
  for (const auto& [name, value] : member.counters) (*status.mutable_counters())[name] = value;
  if (!member.worker()) {
    status.set_cordoned(cluster.queue().IsCordoned(member.record.name()));
    return status;
  }
  const Standings::Worker worker = Cluster::WorkerOf(member);
  status.set_cordoned(cluster.standings().IsCordoned(worker));
  for (const Standings::Key& key :
       {Standings::Key(worker.host, worker.name), Standings::Key(worker.host, "")}) {
    const auto found = cluster.standings().records().find(key);
    if (found == cluster.standings().records().end()) continue;
    const v1::Standing standing = Standings::StatusOf(found->second, now);
    const bool own = !key.second.empty() && standing.failures() > 0;
    if (own || standing.wait_seconds() > status.standing().wait_seconds()) {
      *status.mutable_standing() = standing;
    }
  }
  return status;
}

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

v1::AggregatorStatus AggregatorStatusOf(const Member& member, bool draining,
                                        v1::MemberStatus status,
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
  aggregator.set_draining(draining);
  *aggregator.mutable_member() = std::move(status);
  return aggregator;
}

}  // namespace

absl::StatusOr<v1::StatusReply> Machine::Status(absl::Time now,
                                                const v1::StatusRequest& request) const {
  const std::optional<PageStart> start = ParseToken(request.page_token());
  if (!start.has_value()) {
    return absl::InvalidArgumentError("page_token: no reply contained this token");
  }
  // A name stands for the same run on the later pages as on the first one.
  const Runs::Map& runs = runs_.all();
  const auto paged = runs.find(start->run);
  const Run* const only = request.run().empty() ? nullptr
                          : paged != runs.end() ? &paged->second
                                                : runs_.Resolve(request.run());
  if (!request.run().empty() && only == nullptr) return NoSuchRun(request.run());
  StatusPage page(request);
  if (request.page_token().empty()) {
    FillCluster(options_, cluster_, runs, now, page.reply());
    for (const auto& [number, run] : runs) {
      if (only == nullptr || &run == only) *page.reply().add_runs() = run.Status(now);
    }
  }
  for (auto it = runs.lower_bound(start->run); it != runs.end() && !start->member.has_value();
       ++it) {
    const Run& run = it->second;
    if (!run.live() || (only != nullptr && &run != only)) continue;
    for (const Slot& slot : run.slots()) {
      if (it->first == start->run && slot.group() < start->group) continue;
      if (page.full()) return page.End(absl::StrCat("group ", it->first, " ", slot.group()));
      page.Add(*page.reply().add_groups(), run.StatusOf(slot, request.details()));
    }
  }
  const Membership::Map& members = cluster_.members().all();
  for (auto it = members.lower_bound(start->member.value_or("")); it != members.end(); ++it) {
    if (page.full()) return page.End(absl::StrCat("member ", it->first));
    const Member& member = it->second;
    v1::MemberStatus status = MemberStatusOf(cluster_, member, now);
    if (member.worker()) {
      page.Add(*page.reply().add_workers(), std::move(status));
    } else {
      page.Add(*page.reply().add_aggregators(),
               AggregatorStatusOf(member, cluster_.queue().IsDraining(member.record.name()),
                                  std::move(status), runs));
    }
  }
  return page.End("");
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
  for (const auto& [number, run] : runs_.all()) *reply.add_runs() = run.Status(now);
  return reply;
}

MemberCounts Machine::CountMembers() const {
  MemberCounts counts;
  counts.aggregators_away = std::ssize(MissingAggregators(runs_.all(), cluster_.members()));
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

Machine::RunGauges Machine::Gauges(const std::string& run_id) const {
  const Run* const run = runs_.Find(run_id);
  if (run == nullptr) return {};
  const bool open = run->record().state() == v1::RUN_STATE_RUNNING;
  return {.round_opened_ms = open ? run->record().round_opened_ms() : 0, .late = run->CountLate()};
}

absl::StatusOr<v1::HistoryReply> Machine::History(const v1::HistoryRequest& request) const {
  const Run* const run = runs_.Resolve(request.run());
  if (run == nullptr) return NoSuchRun(request.run());
  return run->history().Read(request);
}

absl::StatusOr<v1::LocateReply> Machine::Locate(const v1::LocateRequest& request) const {
  const Run* const run = runs_.Resolve(request.run());
  if (run == nullptr) return NoSuchRun(request.run());
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
  if (request.has_version() && request.version() != record.version()) {
    CADRE_RETURN_IF_ERROR(run->CheckKept(request.version()));
    const v1::CommitRecord& commit = *run->commits().Find(request.version());
    reply.set_version(commit.round());
    reply.set_step(commit.round() == 0 ? FirstStep(run->spec()) : commit.step());
    reply.set_digest(commit.digest());
  }
  for (const std::string& name : record.shards()) {
    v1::LocateReply::Shard& shard = *reply.add_shards();
    shard.set_aggregator(name);
    const Member* const member = cluster_.members().ConnectedAggregator(name);
    if (member != nullptr) shard.set_address(member->record.address());
  }
  return reply;
}

v1::EventsReply Machine::Events(v1::EventsRequest request) const {
  if (const Run* const run = runs_.Resolve(request.run())) request.set_run(run->id());
  return cluster_.event_log().Read(request);
}

std::map<std::string, uint64_t> Machine::Revisions(absl::string_view run_id) const {
  std::map<std::string, uint64_t> revisions;
  for (const auto& [number, run] : runs_.all()) {
    if (run_id.empty() || run.id() == run_id) revisions[run.id()] = run.revision();
  }
  return revisions;
}

v1::WatchUpdate Machine::Update(absl::string_view run_id, absl::Time now) const {
  const Run& run = *runs_.Find(run_id);
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
