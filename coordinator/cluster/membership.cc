// Every event looks members up and renews a lease, so nothing here depends on the number of members
// by more than its logarithm. The indexes are derived from the members: Unindex and Index enclose
// every change of a field that an index depends on.
#include "coordinator/cluster/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Turns of the loop that alternate between short and long ones extend leases again and again. The
// messages of a live member are received within a few turns, so further extensions would only keep
// members that are lost.
constexpr int kMaxExtensions = 3;

std::string IncarnationKey(v1::Role role, absl::string_view incarnation) {
  return absl::StrCat("incarnation/", role, "/", incarnation);
}

std::string AggregatorKey(absl::string_view name) { return absl::StrCat("aggregator/", name); }

std::string WorkerKey(absl::string_view name, absl::string_view host) {
  return absl::StrCat("worker/", name.size(), "/", name, "/", host);
}

std::string ProgramKey(absl::string_view program) { return absl::StrCat("program/", program); }

std::vector<std::string> KeysOf(const v1::MemberRecord& record) {
  std::vector<std::string> keys = {IncarnationKey(record.role(), record.incarnation()),
                                   record.role() == v1::ROLE_WORKER
                                       ? WorkerKey(record.name(), record.host())
                                       : AggregatorKey(record.name())};
  if (record.has_reservation()) keys.push_back(ProgramKey(record.reservation().program()));
  return keys;
}

}  // namespace

void Membership::AddPending(ConnectionId connection, absl::Time now) {
  pending_[connection] = now + lease_;
  overdue_.emplace(now + lease_, connection);
}

Member& Membership::Add(const v1::MemberRecord& record, absl::Time now) {
  Member& member = members_[record.member_id()];
  member.record = record;
  Index(member);
  Renew(member, now);
  return member;
}

void Membership::Update(Member& member, const v1::MemberRecord& record) {
  Unindex(member);
  member.record = record;
  Index(member);
}

void Membership::Remove(const std::string& member_id) {
  auto it = members_.find(member_id);
  if (it == members_.end()) return;
  Unindex(it->second);
  leases_.erase({it->second.lease_until, member_id});
  connections_.erase(it->second.connection);
  members_.erase(it);
}

ConnectionId Membership::Attach(Member& member, ConnectionId connection, absl::Time now) {
  const ConnectionId before = member.connection;
  connections_.erase(before);
  Detach(connection);
  connections_[connection] = member.id();
  Unindex(member);
  member.connection = connection;
  Index(member);
  first_contact_ = std::min(first_contact_, now);
  if (std::exchange(awaits_contact_, false)) BeginLeases(now);
  Renew(member, now);
  return before;
}

void Membership::BeginLeases(absl::Time now) {
  last_heard_ = now;
  leases_.clear();
  for (auto& [id, member] : members_) {
    member.lease_until = now + lease_;
    leases_.emplace(member.lease_until, id);
  }
}

// The member remains until its lease ends: it may connect again with the same incarnation.
Member* Membership::Detach(ConnectionId connection) {
  if (auto it = pending_.find(connection); it != pending_.end()) {
    overdue_.erase({it->second, connection});
    pending_.erase(it);
  }
  Member* const member = ByConnection(connection);
  if (member == nullptr) return nullptr;
  Unindex(*member);
  member->connection = 0;
  Index(*member);
  connections_.erase(connection);
  return member;
}

// A single member is lost like any other, and so are members whose streams have all ended: their
// ends were received.
bool Membership::IsCutOff(absl::Time now) const {
  if (awaits_contact_) return true;
  return members_.size() > 1 && !connections_.empty() && now - last_heard_ > lease_ / 2;
}

void Membership::Renew(Member& member, absl::Time now) {
  if (!awaits_contact_ && IsCutOff(now)) Extend(now - last_heard_);
  last_heard_ = std::max(last_heard_, now);
  leases_.erase({member.lease_until, member.id()});
  member.last_heard = now;
  member.extensions = 0;
  member.lease_until = now + lease_;
  leases_.emplace(member.lease_until, member.id());
}

void Membership::Extend(absl::Duration length) {
  // This time does not count as a silence as well.
  last_heard_ += length;
  leases_.clear();
  for (auto& [id, member] : members_) {
    if (member.extensions < kMaxExtensions) {
      ++member.extensions;
      member.lease_until += length;
    }
    leases_.emplace(member.lease_until, id);
  }
  overdue_.clear();
  for (auto& [connection, until] : pending_) {
    until += length;
    overdue_.emplace(until, connection);
  }
}

void Membership::Place(Member& member, std::optional<v1::RankSlot> place) {
  Unindex(member);
  member.place = std::move(place);
  member.awaited.clear();
  Index(member);
}

void Membership::Exclude(Member& member, bool excluded, bool withdrawn) {
  if (member.excluded == excluded && member.withdrawn == withdrawn) return;
  Unindex(member);
  member.excluded = excluded;
  member.withdrawn = withdrawn;
  Index(member);
}

void Membership::Index(const Member& member) {
  for (const std::string& key : KeysOf(member.record)) by_key_[key].insert(member.id());
  if (!member.worker()) aggregators_.insert(member.id());
  counts_.Add(member);
  NoteChange(member);
  if (!member.idle()) return;
  idle_.insert(member.id());
  ++idle_changes_;
}

void Membership::Unindex(const Member& member) {
  for (const std::string& key : KeysOf(member.record)) {
    const auto it = by_key_.find(key);
    it->second.erase(member.id());
    if (it->second.empty()) by_key_.erase(it);
  }
  aggregators_.erase(member.id());
  counts_.Remove(member);
  NoteChange(member);
  if (idle_.erase(member.id()) > 0) ++idle_changes_;
}

void Membership::NoteChange(const Member& member) {
  if (!member.record.has_reservation()) return;
  changed_programs_.insert(member.record.reservation().program());
}

const Membership::Ids& Membership::RanksOf(const std::string& program) const {
  static const auto* const kNone = new Ids();
  const auto it = by_key_.find(ProgramKey(program));
  return it == by_key_.end() ? *kNone : it->second;
}

Member* Membership::Find(absl::string_view member_id) {
  return const_cast<Member*>(std::as_const(*this).Find(member_id));
}

const Member* Membership::Find(absl::string_view member_id) const {
  auto it = members_.find(std::string(member_id));
  return it == members_.end() ? nullptr : &it->second;
}

Member* Membership::ByConnection(ConnectionId connection) {
  auto it = connections_.find(connection);
  return it == connections_.end() ? nullptr : Find(it->second);
}

Member* Membership::ByIncarnation(v1::Role role, absl::string_view incarnation) {
  return const_cast<Member*>(FirstOf(IncarnationKey(role, incarnation)));
}

Member* Membership::Aggregator(absl::string_view name) {
  return const_cast<Member*>(std::as_const(*this).Aggregator(name));
}

const Member* Membership::Aggregator(absl::string_view name) const {
  return FirstOf(AggregatorKey(name));
}

const Member* Membership::ConnectedAggregator(absl::string_view name) const {
  const Member* const member = Aggregator(name);
  return member != nullptr && member->connected() ? member : nullptr;
}

const Member* Membership::FirstOf(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : Find(*it->second.begin());
}

std::vector<std::string> Membership::Predecessors(const v1::Hello& hello) const {
  std::vector<std::string> ids;
  const auto it = by_key_.find(WorkerKey(hello.name(), hello.host()));
  if (it == by_key_.end()) return ids;
  for (const std::string& id : it->second) {
    const Member& member = *Find(id);
    if (!member.connected() && member.record.incarnation() != hello.incarnation()) {
      ids.push_back(id);
    }
  }
  return ids;
}

std::vector<std::string> Membership::Expired(absl::Time now) const {
  std::vector<std::string> ids;
  if (IsCutOff(now)) return ids;
  for (const auto& [until, id] : leases_) {
    if (until > now) break;
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), MemberIdLess());
  return ids;
}

std::vector<ConnectionId> Membership::WithoutHello(absl::Time now) const {
  std::vector<ConnectionId> connections;
  for (const auto& [until, connection] : overdue_) {
    if (until > now) break;
    connections.push_back(connection);
  }
  std::sort(connections.begin(), connections.end());
  return connections;
}

absl::Time Membership::NextExpiry() const {
  const bool none = leases_.empty() || IsCutOff(leases_.begin()->first);
  return std::min(none ? absl::InfiniteFuture() : leases_.begin()->first,
                  overdue_.empty() ? absl::InfiniteFuture() : overdue_.begin()->first);
}

}  // namespace cadre
