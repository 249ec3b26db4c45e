// All look-ups except by id and by connection are linear in the number of members. There are at
// most thousands of members, and these look-ups happen once per Hello or per message of an
// aggregator.
#include "coordinator/membership.h"

#include <algorithm>

namespace cadre {

void Membership::AddPending(ConnectionId connection, absl::Time now) {
  pending_[connection] = now + lease_;
}

Member& Membership::Add(const v1::MemberRecord& record, absl::Time now) {
  Member& member = members_[record.member_id()];
  member.record = record;
  Renew(member, now);
  return member;
}

void Membership::Remove(const std::string& member_id) {
  auto it = members_.find(member_id);
  if (it == members_.end()) return;
  connections_.erase(it->second.connection);
  members_.erase(it);
}

ConnectionId Membership::Attach(Member& member, ConnectionId connection, absl::Time now) {
  const ConnectionId before = member.connection;
  connections_.erase(before);
  pending_.erase(connection);
  connections_[connection] = member.id();
  member.connection = connection;
  Renew(member, now);
  return before;
}

// The member remains until its lease ends: it may connect again with the same incarnation.
Member* Membership::Detach(ConnectionId connection) {
  pending_.erase(connection);
  Member* const member = ByConnection(connection);
  if (member == nullptr) return nullptr;
  member->connection = 0;
  connections_.erase(connection);
  return member;
}

void Membership::Renew(Member& member, absl::Time now) {
  member.last_heard = now;
  member.lease_until = now + lease_;
}

Member* Membership::Find(absl::string_view member_id) {
  auto it = members_.find(std::string(member_id));
  return it == members_.end() ? nullptr : &it->second;
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
  for (auto& [id, member] : members_) {
    if (member.record.role() == role && member.record.incarnation() == incarnation) return &member;
  }
  return nullptr;
}

Member* Membership::Aggregator(absl::string_view name) {
  return const_cast<Member*>(std::as_const(*this).Aggregator(name));
}

const Member* Membership::Aggregator(absl::string_view name) const {
  for (const auto& [id, member] : members_) {
    if (!member.worker() && member.record.name() == name) return &member;
  }
  return nullptr;
}

std::vector<std::string> Membership::Predecessors(const v1::Hello& hello) const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    const v1::MemberRecord& record = member.record;
    if (member.worker() && !member.connected() && record.name() == hello.name() &&
        record.host() == hello.host() && record.incarnation() != hello.incarnation()) {
      ids.push_back(id);
    }
  }
  return ids;
}

std::vector<std::string> Membership::Expired(absl::Time now) const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    if (now >= member.lease_until) ids.push_back(id);
  }
  return ids;
}

std::vector<ConnectionId> Membership::WithoutHello(absl::Time now) const {
  std::vector<ConnectionId> connections;
  for (const auto& [connection, until] : pending_) {
    if (now >= until) connections.push_back(connection);
  }
  return connections;
}

absl::Time Membership::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, member] : members_) next = std::min(next, member.lease_until);
  for (const auto& [connection, until] : pending_) next = std::min(next, until);
  return next;
}

}  // namespace cadre
