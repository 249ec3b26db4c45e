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
#include "coordinator/cluster.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "coordinator/keys.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using google::protobuf::util::MessageDifferencer;

// Maximum number of counters of one member.
constexpr int kMaxCounters = 256;

std::string MissingField(const v1::Hello& hello) {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_AGGREGATOR) return "role";
  if (hello.name().empty()) return "name";
  if (hello.incarnation().empty()) return "incarnation";
  if (hello.address().empty()) return "address";
  return "";
}

}  // namespace

void Cluster::Restore(const v1::MetaRecord& meta) {
  meta_ = meta;
  meta_.set_starts(meta_.starts() + 1);
  meta_.set_epoch(std::max(meta_.epoch() + 1, static_cast<uint64_t>(absl::ToUnixMillis(now_))));
  if (meta_.key_seed().empty()) meta_.set_key_seed(options_.key_seed);
  out_.SetEpoch(meta_.epoch());
  meta_changed_ = true;
}

void Cluster::Begin(absl::Time now) {
  now_ = std::max(now_, now);
  if (started_ == absl::InfinitePast()) started_ = now_;
}

std::vector<Action> Cluster::Take() {
  if (std::exchange(meta_changed_, false)) out_.Put(kMetaKey, meta_);
  return out_.Take();
}

uint32_t Cluster::NewGeneration() {
  meta_changed_ = true;
  meta_.set_generation(meta_.generation() + 1);
  return meta_.generation();
}

// The seed has two words; each gives eight bytes of the key.
std::string Cluster::KeyOf(uint32_t generation) const {
  std::string key;
  for (size_t begin = 0; begin + sizeof(uint64_t) <= meta_.key_seed().size();
       begin += sizeof(uint64_t)) {
    uint64_t seed = 0;
    std::memcpy(&seed, meta_.key_seed().data() + begin, sizeof(seed));
    const uint64_t bits = RandomBits(seed, RandomStream::kIdentity, begin, generation);
    key.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return key;
}

uint32_t Cluster::NewRun() {
  meta_changed_ = true;
  meta_.set_run(meta_.run() + 1);
  return meta_.run();
}

std::optional<Cluster::Joined> Cluster::OnHello(ConnectionId connection, const v1::Hello& hello) {
  const auto refuse = [&](v1::Refusal refusal, absl::string_view reason) {
    Refuse(connection, refusal, reason);
    return std::nullopt;
  };
  if (hello.schema_hash() != options_.schema_hash) {
    return refuse(
        v1::REFUSAL_SCHEMA,
        absl::StrFormat("the member has schema %016x, the coordinator %016x; run the same build "
                        "of Cadre everywhere (coordinator: %s, member: %s)",
                        hello.schema_hash(), options_.schema_hash, options_.version,
                        hello.version()));
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
  joined.address_changed = !joined.known || member->record.address() != hello.address();
  if (!joined.known) member = &AddMember(hello);
  Update(*member, hello);
  joined.member = member;
  return joined;
}

Member& Cluster::AddMember(const v1::Hello& hello) {
  meta_.set_member(meta_.member() + 1);
  meta_changed_ = true;
  v1::MemberRecord record;
  record.set_member_id(absl::StrCat(hello.role() == v1::ROLE_WORKER ? "w" : "a", meta_.member()));
  record.set_role(hello.role());
  record.set_name(hello.name());
  return members_.Add(record, now_);
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
  // A reconnect usually leaves the record unchanged; it is then not written again.
  if (MessageDifferencer::Equals(record, member.record)) return;
  members_.Update(member, record);
  out_.Put(MemberKey(member.id()), record);
}

void Cluster::Welcome(Member& member, ConnectionId connection) {
  // A half-open stream of the same process may still exist.
  const ConnectionId before = members_.Attach(member, connection, now_);
  if (before != 0) out_.End(before, absl::AbortedError("the member opened another stream"));
  v1::CoordinatorMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_member_id(member.id());
  welcome.set_lease_ms(absl::ToInt64Milliseconds(options_.lease));
  welcome.set_heartbeat_ms(absl::ToInt64Milliseconds(options_.heartbeat));
  out_.SendTo(connection, std::move(message));
}

// Counters are totals since the start of the member's process, so those of the newest heartbeat
// replace earlier ones.
void Cluster::OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat) {
  member.counters.clear();
  for (const auto& [name, value] : heartbeat.counters()) {
    if (member.counters.size() >= kMaxCounters) break;
    member.counters[name] = value;
  }
}

void Cluster::Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason) {
  Member* const member = members_.ByConnection(connection);
  if (member == nullptr && !members_.IsPending(connection)) return;
  CountRefusal(refusal);
  v1::CoordinatorMessage message;
  message.mutable_refused()->set_refusal(refusal);
  message.mutable_refused()->set_reason(std::string(reason));
  out_.SendTo(connection, std::move(message));
  out_.End(connection, absl::FailedPreconditionError(reason));
  Close(connection);
}

void Cluster::Close(ConnectionId connection) {
  const Member* const member = members_.Detach(connection);
  if (member != nullptr) closed_.push_back(member->id());
}

void Cluster::Count(absl::string_view name, uint64_t amount) {
  (*meta_.mutable_counters())[std::string(name)] += amount;
  meta_changed_ = true;
}

void Cluster::CountRefusal(v1::Refusal refusal) {
  Count(absl::StrCat("refused_", EnumText(refusal)));
}

std::optional<Member> Cluster::Remove(const std::string& member_id, absl::string_view reason) {
  Member* const found = members_.Find(member_id);
  if (found == nullptr) return std::nullopt;
  KeepCounters(*found);
  Member member = *found;
  if (member.connected()) {
    out_.End(member.connection, absl::AbortedError(absl::StrCat(member_id, " ", reason)));
  }
  members_.Remove(member_id);
  out_.EraseOne(MemberKey(member_id));
  return member;
}

void Cluster::KeepCounters(Member& member) {
  for (const auto& [name, value] : member.counters) {
    if (absl::StartsWith(name, "refused_")) Count(name, value);
  }
  member.counters.clear();
}

void Cluster::SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message) {
  const Member* const member = members_.Find(member_id);
  if (member != nullptr && member->connected()) out_.SendTo(member->connection, message);
}

void Cluster::SendRelease(absl::string_view member_id, const v1::RankSlot& place,
                          absl::string_view reason) {
  v1::CoordinatorMessage message;
  *message.mutable_release()->mutable_place() = place;
  message.mutable_release()->set_reason(std::string(reason));
  SendTo(member_id, message);
}

// Groups are filled host by host, so that as many ranks as possible share a host.
std::vector<std::string> Cluster::IdleByHost() const {
  std::vector<absl::string_view> hosts;
  std::map<absl::string_view, std::vector<std::string>> on;
  for (const std::string& id : members_.idle()) {
    const std::string& host = members_.Find(id)->record.host();
    std::vector<std::string>& workers = on[host];
    if (workers.empty()) hosts.push_back(host);
    workers.push_back(id);
  }
  std::vector<std::string> sorted;
  for (const absl::string_view host : hosts) {
    sorted.insert(sorted.end(), on[host].begin(), on[host].end());
  }
  return sorted;
}

void Cluster::SetDemand(uint32_t run, const Demand& demand) {
  if (demand.slots == 0) {
    demands_.erase(run);
  } else {
    demands_[run] = demand;
  }
}

size_t Cluster::DemandUpTo(uint32_t run, v1::Cluster::Device kind) const {
  size_t workers = 0;
  for (auto it = demands_.begin(); it != demands_.upper_bound(run); ++it) {
    const Demand& demand = it->second;
    // Slots with another device kind need none of these workers.
    if (demand.device != v1::Cluster::DEVICE_UNSPECIFIED && demand.device != kind) continue;
    workers += demand.slots * demand.ranks;
  }
  return workers;
}

void Cluster::FillStatus(absl::Time now, v1::StatusReply& reply) const {
  v1::CoordinatorStatus& coordinator = *reply.mutable_coordinator();
  coordinator.set_version(options_.version);
  coordinator.set_schema_hash(options_.schema_hash);
  if (started_ != absl::InfinitePast()) {
    coordinator.set_uptime_seconds(absl::ToDoubleSeconds(now - started_));
  }
  coordinator.set_starts(meta_.starts());
  // Aggregators count what they refuse themselves and report the sums in their heartbeats.
  auto& counters = *reply.mutable_counters();
  counters = meta_.counters();
  for (const auto& [id, member] : members_.all()) {
    for (const auto& [name, value] : member.counters) {
      if (absl::StartsWith(name, "refused_")) counters[name] += value;
    }
  }
}

v1::MemberStatus Cluster::StatusOf(const Member& member, absl::Time now) {
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
  return status;
}

}  // namespace cadre
