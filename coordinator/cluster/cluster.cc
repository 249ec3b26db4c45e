// A member is identified by its id and a process by its incarnation, a random number that the
// process chooses at its start. A Hello is one of four cases:
//
//   known id or incarnation, same process  a reconnect: the member keeps its lease and its rank
//   aggregator with a known name           the same member, also as a new process: its data is on
//                                          its disk
//   unknown worker id                      refused, since its lease has expired; it joins as a new
//                                          member
//   anything else                          a new member
//
// A reconnect without an id but with a known incarnation means that Welcome was lost.
#include "coordinator/cluster/cluster.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/peer_text.h"
#include "base/protocol.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/store/keys.h"
#include "model/validate.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using google::protobuf::util::MessageDifferencer;

// Maximum number of counters of one member.
constexpr int kMaxCounters = 256;
// Maximum number of kinds of fallbacks of one member.
constexpr int kMaxFallbacks = 16;
// Maximum number of delayed orders of one aggregator.
constexpr size_t kMaxDelayedOrders = 64;
// Highest epoch that a member may report: numbers above it are not used up by starts.
constexpr uint64_t kMaxEpoch = uint64_t{1} << 62;
// How long a rank of a stalled group may take to leave its generation.
constexpr absl::Duration kReleaseTime = absl::Seconds(10);

// Counters of refusals are added to durable ones, so only those of known refusals count.
bool IsCounter(const std::string& name) {
  absl::string_view refusal = name;
  if (!absl::ConsumePrefix(&refusal, "refused_")) return CheckName("counter", name).ok();
  const auto& values = *v1::Refusal_descriptor();
  for (int i = 0; i < values.value_count(); ++i) {
    if (refusal == EnumText(static_cast<v1::Refusal>(values.value(i)->number()))) return true;
  }
  return false;
}

// What identifies a member (see above).
std::pair<v1::Role, std::string> IdentityOf(const v1::Hello& hello) {
  return {hello.role(), hello.role() == v1::ROLE_AGGREGATOR ? hello.name() : hello.incarnation()};
}

std::string MissingField(const v1::Hello& hello) {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_AGGREGATOR) return "role";
  if (hello.name().empty()) return "name";
  if (hello.incarnation().empty()) return "incarnation";
  if (hello.address().empty()) return "address";
  if (!hello.has_reservation()) return "";
  const v1::Reservation& reservation = hello.reservation();
  if (reservation.run().empty()) return "reservation.run";
  if (reservation.program().empty()) return "reservation.program";
  if (reservation.ranks() == 0 || reservation.ranks() > kMaxRanksPerGroup ||
      reservation.rank() >= reservation.ranks()) {
    return "reservation.ranks";
  }
  return "";
}

// Whether an aggregator that could store shards of this one is connected.
bool HasOtherAggregator(const Membership& members, const RunQueue& queue, absl::string_view name) {
  return absl::c_any_of(members.aggregators(), [&](const std::string& id) {
    const Member& member = *members.Find(id);
    const std::string& other = member.record.name();
    return member.connected() && other != name && !queue.IsCordoned(other);
  });
}

}  // namespace

void Cluster::ReportMember(v1::EventKind kind, const Member& member, absl::string_view text) {
  v1::ClusterEvent event;
  event.set_kind(kind);
  if (member.place.has_value()) {
    event.set_run(member.place->run());
    event.set_group(member.place->group());
  }
  event.set_member(member.record.name());
  event.set_text(std::string(text));
  Report(std::move(event));
}

// A coordinator that starts does not know the epochs of earlier ones if their store was lost, or is
// older, and its clock is behind theirs. One that was replaced while it ran must not take over
// again: members that it has welcomed itself have left it for another coordinator. A new start
// takes over, as an operator decides.
bool Cluster::HasEpochOf(ConnectionId connection, const v1::Hello& hello) {
  const uint64_t epoch = hello.highest_epoch();
  if (epoch <= meta().epoch()) return true;
  if (epoch > kMaxEpoch) {
    Refuse(connection, v1::REFUSAL_MALFORMED,
           absl::StrCat("highest_epoch is ", epoch, ", more than ", kMaxEpoch));
    return false;
  }
  std::string reason =
      absl::StrCat("the coordinator begins again above epoch ", epoch, " of ", hello.name());
  if (!welcomed_.contains(IdentityOf(hello))) {
    out().Add(BeginAgain{epoch});
  } else {
    reason = absl::StrCat("a coordinator of epoch ", epoch, " has replaced this one, of epoch ",
                          meta().epoch(), ", which takes over only when it is started again");
    if (std::exchange(replaced_by_, std::max(replaced_by_, epoch)) < epoch) SetLimitReached(reason);
  }
  out().End(connection, absl::FailedPreconditionError(reason));
  Close(connection);
  return false;
}

std::optional<Cluster::Joined> Cluster::OnHello(ConnectionId connection, const v1::Hello& hello) {
  const auto refuse = [&](v1::Refusal refusal, absl::string_view reason) {
    Refuse(connection, refusal, reason);
    return std::nullopt;
  };
  if (!AreCompatible(hello.protocol(), options_.protocol)) {
    return refuse(
        v1::REFUSAL_PROTOCOL,
        absl::StrFormat("the member (version %s) has protocol %d, the coordinator "
                        "(version %s) %d; only adjacent protocols work together",
                        hello.version(), hello.protocol(), options_.version, options_.protocol));
  }
  if (const std::string missing = MissingField(hello); !missing.empty()) {
    return refuse(v1::REFUSAL_MALFORMED, absl::StrCat("Hello lacks the field ", missing));
  }
  const bool worker = hello.role() == v1::ROLE_WORKER;
  Joined joined;
  // An aggregator is identified by its name: its data is on its disk, not in its process.
  Member* member = !worker ? members_.Aggregator(hello.name())
                   : hello.member_id().empty()
                       ? members_.ByIncarnation(v1::ROLE_WORKER, hello.incarnation())
                       : members_.Find(hello.member_id());
  joined.known =
      member != nullptr &&
      (!worker || (member->worker() && member->record.incarnation() == hello.incarnation()));
  if (worker && !joined.known) {
    if (!hello.member_id().empty()) {
      return refuse(v1::REFUSAL_UNKNOWN_MEMBER,
                    absl::StrCat("worker ", hello.member_id(),
                                 " is not registered: its lease has expired; join without an id"));
    }
    joined.replaced = members_.Predecessors(hello);
  }
  if (!joined.known) member = &AddMember(hello);
  const bool restarted = joined.known && member->record.incarnation() != hello.incarnation();
  Update(*member, hello);
  welcomed_.insert(IdentityOf(hello));
  if (!joined.known || restarted) {
    ReportMember(v1::EVENT_KIND_MEMBER_JOINED, *member,
                 absl::StrCat(worker ? "worker " : "aggregator ", hello.name(), " on ",
                              hello.host(), restarted ? " has joined again" : " has joined"));
  }
  if (worker) UpdateIdle(*member);
  joined.member = member;
  return joined;
}

Member& Cluster::AddMember(const v1::Hello& hello) {
  v1::MemberRecord record;
  record.set_member_id(absl::StrCat(hello.role() == v1::ROLE_WORKER ? "w" : "a", NewMember()));
  record.set_role(hello.role());
  record.set_name(hello.name());
  return members_.Add(record, now());
}

void Cluster::Update(Member& member, const v1::Hello& hello) {
  member.cores = hello.cores();
  member.memory_bytes = hello.memory_bytes();
  if (member.record.incarnation() != hello.incarnation()) KeepCounters(member);
  v1::MemberRecord record = member.record;
  record.set_incarnation(hello.incarnation());
  record.set_address(hello.address());
  record.set_host(hello.host());
  record.set_device(hello.device());
  record.set_device_kind(hello.device_kind());
  *record.mutable_precisions() = hello.precisions();
  record.clear_reservation();
  if (hello.has_reservation()) *record.mutable_reservation() = hello.reservation();
  // A reconnect usually leaves the record unchanged; it is then not written again.
  if (MessageDifferencer::Equals(record, member.record)) return;
  members_.Update(member, record);
  out().Put(MemberKey(member.id()), record);
}

void Cluster::SetProgramEnded(Member& member, const std::string& reason) {
  if (member.record.program_ended() == reason) return;
  v1::MemberRecord record = member.record;
  record.set_program_ended(reason);
  members_.Update(member, record);
  out().Put(MemberKey(member.id()), record);
}

void Cluster::Welcome(Member& member, ConnectionId connection) {
  member.awaited.clear();
  // A half-open stream of the same process may still exist.
  const ConnectionId before = members_.Attach(member, connection, now());
  if (before != 0) out().End(before, absl::AbortedError("the member opened another stream"));
  v1::CoordinatorMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_member_id(member.id());
  welcome.set_lease_ms(absl::ToInt64Milliseconds(options_.lease));
  welcome.set_heartbeat_ms(absl::ToInt64Milliseconds(options_.heartbeat));
  out().SendTo(connection, std::move(message));
  SendDrain(member);
}

void Cluster::SendDrain(const Member& member) {
  if (!member.worker()) return;
  const std::optional<absl::Time> until =
      standings_.DrainedUntil(WorkerOf(member), member.record.incarnation());
  if (!until.has_value()) return;
  v1::CoordinatorMessage message;
  v1::Drain& drain = *message.mutable_drain();
  // 0 would leave the limit to the process.
  constexpr absl::Duration kShortest = absl::Milliseconds(1);
  if (*until != absl::InfiniteFuture()) {
    drain.set_seconds(absl::ToDoubleSeconds(std::max(*until - now(), kShortest)));
  }
  SendTo(member.id(), message);
}

// Counters are totals since the start of the member's process, so those of the newest heartbeat
// replace earlier ones.
void Cluster::OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat) {
  member.counters.clear();
  for (const auto& [name, value] : heartbeat.counters()) {
    if (member.counters.size() >= kMaxCounters) break;
    if (IsCounter(name)) member.counters[name] = value;
  }
  member.progress = heartbeat.progress();
  if (heartbeat.step_seconds() > 0 && std::isfinite(heartbeat.step_seconds()) &&
      heartbeat.wait_seconds() >= 0 && std::isfinite(heartbeat.wait_seconds())) {
    member.step_seconds = heartbeat.step_seconds();
    member.wait_seconds = std::min(heartbeat.wait_seconds(), heartbeat.step_seconds());
  }
  const int fallbacks = std::min(heartbeat.fallbacks_size(), kMaxFallbacks);
  member.fallbacks.assign(heartbeat.fallbacks().begin(), heartbeat.fallbacks().begin() + fallbacks);
  RecordDelayedOrders(member, heartbeat);
  if (!member.hung.has_value()) return;
  Member::Hung& hung = *member.hung;
  if (heartbeat.activity() == v1::ACTIVITY_UNSPECIFIED || heartbeat.progress() != hung.progress) {
    member.hung.reset();
    UpdateIdle(member);
  } else if (!hung.recorded && now() >= hung.since + kReleaseTime) {
    hung.recorded = true;
    standings_.Fail(WorkerOf(member), v1::FAILURE_CAUSE_STALLED,
                    "its training thread does not react", now());
  }
}

// An order is reported as an event when it is delayed for the first time; the status has the newest
// reason.
void Cluster::RecordDelayedOrders(Member& member, const v1::Heartbeat& heartbeat) {
  std::vector<v1::DelayedOrder> delayed;
  for (const v1::DelayedOrder& order : heartbeat.delayed_orders()) {
    if (member.worker() || delayed.size() == kMaxDelayedOrders) break;
    const bool known = std::any_of(
        member.delayed_orders.begin(), member.delayed_orders.end(), [&](const auto& before) {
          return before.run() == order.run() && before.order() == order.order();
        });
    if (!known) {
      v1::ClusterEvent event;
      event.set_kind(v1::EVENT_KIND_ORDER_DELAYED);
      event.set_run(order.run());
      event.set_member(member.record.name());
      event.set_text(DelayText(member, order));
      Report(std::move(event));
    }
    delayed.push_back(order);
  }
  member.delayed_orders = std::move(delayed);
}

std::string Cluster::DelayText(const Member& aggregator, const v1::DelayedOrder& delayed) {
  const std::string& order = delayed.order();
  const std::string what = order == "open_run"     ? "open its shard"
                           : order == "apply"      ? "apply the round"
                           : order == "close_run"  ? "close the run"
                           : order == "delete_run" ? "remove the files of the run"
                                                   : absl::StrCat("carry out ", order);
  const double seconds = std::isfinite(delayed.seconds()) ? std::floor(delayed.seconds()) : 0;
  const std::string time = absl::FormatDuration(absl::Seconds(seconds));
  if (delayed.reason().empty()) {
    return absl::StrCat("aggregator ", aggregator.record.name(), " has taken ", time, " to ", what,
                        ", and has not finished: its disk is slow or does not answer");
  }
  return absl::StrCat("aggregator ", aggregator.record.name(), " cannot ", what, ", for ", time,
                      ": ", delayed.reason(), "; it tries again");
}

void Cluster::Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason) {
  Member* const member = members_.ByConnection(connection);
  if (member == nullptr && !members_.IsPending(connection)) return;
  CountRefusal(refusal);
  if (member != nullptr) {
    // A member that repeats the message is reported once.
    if (std::exchange(member->refused, std::string(reason)) != reason) {
      ReportMember(v1::EVENT_KIND_MESSAGE_REFUSED, *member,
                   absl::StrCat("a message of ", member->record.name(), " on ",
                                member->record.host(), " was refused: ", reason));
    }
    refused_.push_back({member->id(), std::string(reason)});
  }
  v1::CoordinatorMessage message;
  message.mutable_refused()->set_refusal(refusal);
  message.mutable_refused()->set_reason(std::string(reason));
  out().SendTo(connection, std::move(message));
  out().End(connection, absl::FailedPreconditionError(reason));
  Close(connection);
}

void Cluster::Close(ConnectionId connection) {
  const Member* const member = members_.Detach(connection);
  if (member != nullptr) closed_.push_back(member->id());
}

std::optional<Member> Cluster::Remove(const std::string& member_id, absl::string_view reason) {
  Member* const found = members_.Find(member_id);
  if (found == nullptr) return std::nullopt;
  KeepCounters(*found);
  Member member = *found;
  ReportMember(
      v1::EVENT_KIND_MEMBER_LEFT, member,
      absl::StrCat(member.worker() ? "worker " : "aggregator ", member.record.name(), " ", reason));
  if (member.connected()) {
    out().End(member.connection, absl::AbortedError(absl::StrCat(member_id, " ", reason)));
  }
  // The argument may be the id of the member that is removed.
  members_.Remove(member.id());
  out().EraseOne(MemberKey(member.id()));
  return member;
}

void Cluster::NoteLost(const std::string& host) {
  std::erase_if(lost_hosts_, [&](const auto& lost) { return now() - lost.second >= kReturn; });
  lost_hosts_[host] = now();
}

void Cluster::KeepCounters(Member& member) {
  for (const auto& [name, value] : member.counters) {
    if (absl::StartsWith(name, "refused_")) Count(name, value);
  }
  member.counters.clear();
}

void Cluster::SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message) {
  const Member* const member = members_.Find(member_id);
  if (member != nullptr && member->connected()) out().SendTo(member->connection, message);
}

void Cluster::SendRelease(absl::string_view member_id, const v1::RankSlot& place,
                          absl::string_view reason, v1::RunState state) {
  v1::CoordinatorMessage message;
  v1::Release& release = *message.mutable_release();
  *release.mutable_place() = place;
  release.set_reason(std::string(reason));
  release.set_run_done(state == v1::RUN_STATE_DONE);
  release.set_run_ended(state == v1::RUN_STATE_DONE || state == v1::RUN_STATE_FAILED ||
                        state == v1::RUN_STATE_STOPPED);
  SendTo(member_id, message);
}

// Groups are filled host by host, so that as many ranks as possible share a host.
std::vector<std::string> Cluster::IdleByHost() const {
  struct Level {
    std::vector<absl::string_view> hosts;
    std::map<absl::string_view, std::vector<std::string>> on;
  };
  std::map<uint32_t, Level> by_marks;
  for (const std::string& id : members_.idle()) {
    const Member& member = *members_.Find(id);
    Level& level = by_marks[standings_.CountMarks(WorkerOf(member), now())];
    std::vector<std::string>& workers = level.on[member.record.host()];
    if (workers.empty()) level.hosts.push_back(member.record.host());
    workers.push_back(id);
  }
  std::vector<std::string> sorted;
  for (auto& [marks, level] : by_marks) {
    for (const absl::string_view host : level.hosts) {
      std::move(level.on[host].begin(), level.on[host].end(), std::back_inserter(sorted));
    }
  }
  return sorted;
}

// Workers and hosts of the name come first; an aggregator that shares it is named by its id. It may
// be away, since the cordon outlives its lease, and live runs may wait for it.
Replied Cluster::CordonAggregator(const CordonMembers& cordon, const Member* member) {
  const std::string name = member == nullptr ? cordon.member : member->record.name();
  Replied reply{.request = cordon.request};
  if (member == nullptr && !queue_.IsCordoned(name) && queue_.CountShards(name) == 0) {
    reply.status = absl::NotFoundError(
        absl::StrCat("no such worker, host or aggregator: '", cordon.member, "'"));
    return reply;
  }
  if (cordon.drain && cordon.drain_seconds > 0) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("'", cordon.member, "' is an aggregator: it moves its shards as its runs ",
                     "complete their rounds, and has no time in which to end"));
    return reply;
  }
  if (cordon.drain && queue_.CountShards(name) > 0 && !HasOtherAggregator(members_, queue_, name)) {
    reply.status = absl::FailedPreconditionError(
        absl::StrCat("no other aggregator can take the shards of live runs that '", cordon.member,
                     "' stores: start one that is not cordoned; 'cadre cordon ", cordon.member,
                     "' keeps new runs away"));
    return reply;
  }
  const std::string key = CordonedAggregatorKey(name);
  // A cordon does not end a drain.
  const bool draining = !cordon.undo && (cordon.drain || queue_.IsDraining(name));
  queue_.SetCordoned(name, !cordon.undo);
  queue_.SetDraining(name, draining);
  if (cordon.undo) {
    out().EraseOne(key);
  } else {
    v1::CordonedAggregatorRecord record;
    record.set_name(name);
    record.set_draining(draining);
    out().Put(key, record);
  }
  Report(v1::EVENT_KIND_OPERATOR,
         absl::StrCat("aggregator ", name,
                      cordon.undo    ? " receives new runs again"
                      : cordon.drain ? " is drained: its shards move to others"
                                     : " receives no new runs"));
  if (member != nullptr) reply.members.push_back(member->id());
  return reply;
}

// The name of a host may also be the name of its worker; the host then includes the worker. Ids are
// looked up last, since a member may have the id of another one as its name.
Replied Cluster::OnCordonMembers(const CordonMembers& cordon) {
  std::set<Standings::Key> keys;
  std::vector<std::string> ids;
  const auto match = [&](const Member& member) {
    const Standings::Key key(member.record.host(), member.record.name());
    ids.push_back(member.id());
    if (key.first == cordon.member) keys.insert({key.first, ""});
    if (key.first != cordon.member || cordon.undo) keys.insert(key);
  };
  const auto matches = [&](const std::string& host, const std::string& name) {
    return !cordon.member.empty() && (host == cordon.member || name == cordon.member);
  };
  for (const auto& [id, member] : members_.all()) {
    if (member.worker() && matches(member.record.host(), member.record.name())) match(member);
  }
  // Workers that are away.
  for (const auto& [key, record] : standings_.records()) {
    if (matches(key.first, key.second)) keys.insert(key);
  }
  const Member* other = members_.Aggregator(cordon.member);
  if (other == nullptr && !queue_.IsCordoned(cordon.member)) other = members_.Find(cordon.member);
  if (keys.empty() && other != nullptr && other->worker()) match(*other);
  if (keys.empty()) return CordonAggregator(cordon, other);
  Report(v1::EVENT_KIND_OPERATOR,
         absl::StrCat(cordon.member, cordon.undo    ? " receives new work again"
                                     : cordon.drain ? " is drained"
                                                    : " receives no new work"));
  for (const Standings::Key& key : keys) {
    if (cordon.undo) {
      standings_.Clear({key.first, key.second});
    } else {
      standings_.Cordon({key.first, key.second});
    }
  }
  // NaN is no limit either.
  const absl::Time until = cordon.drain_seconds > 0 ? now() + absl::Seconds(cordon.drain_seconds)
                                                    : absl::InfiniteFuture();
  for (const std::string& id : ids) {
    if (!cordon.drain) break;
    const Member& member = *members_.Find(id);
    standings_.Drain(WorkerOf(member), member.record.incarnation(), until);
    SendDrain(member);
  }
  return {.request = cordon.request, .members = std::move(ids)};
}

// Failures and cordons are rare, so all members are visited when a record has changed.
void Cluster::UpdateIdle() {
  const std::set<Standings::Key> changed = standings_.TakeChanged();
  for (const Standings::Key& key : changed) {
    const std::string record_key = StandingKey(key.first, key.second);
    const auto found = standings_.records().find(key);
    if (found == standings_.records().end()) {
      out().EraseOne(record_key);
    } else {
      out().Put(record_key, found->second);
    }
  }
  if (changed.empty() && now() < available_at_) return;
  available_at_ = absl::InfiniteFuture();
  for (const auto& [id, member] : members_.all()) UpdateIdle(*members_.Find(id));
}

void Cluster::UpdateIdle(Member& member) {
  const absl::Time at = standings_.AvailableAt(WorkerOf(member));
  if (at > now()) available_at_ = std::min(available_at_, at);
  const bool hung = member.hung.has_value();
  members_.Exclude(member, at > now() || hung, at > now() + kMaxWait || hung);
}

std::string Cluster::ExcludedWorkers() const {
  int excluded = 0;
  for (const auto& [id, member] : members_.all()) {
    excluded += member.connected() && !member.place.has_value() && member.excluded ? 1 : 0;
  }
  if (excluded == 0) return "";
  return absl::StrCat(", ", excluded, excluded == 1 ? " is" : " are",
                      " excluded (see 'cadre members')");
}

size_t Cluster::CountTrusted(v1::Cluster::Device kind, v1::RunSpec::Precision precision) const {
  const Membership::Ids& idle = members_.idle();
  return std::count_if(idle.begin(), idle.end(), [&](const std::string& id) {
    const Member& member = *members_.Find(id);
    return !member.record.has_reservation() && member.record.device_kind() == kind &&
           Supports(member.record, precision) && standings_.IsTrusted(WorkerOf(member), now());
  });
}

}  // namespace cadre
