#include "coordinator/run/shard_directory.h"

#include <algorithm>

#include "coordinator/run/run_view.h"

namespace cadre {

std::vector<v1::ShardAddress> ShardDirectory::Addresses() const {
  std::vector<v1::ShardAddress> addresses;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    v1::ShardAddress& address = addresses.emplace_back();
    address.set_shard(shard);
    address.set_name(record_.shards(shard));
    const Member* const member = cluster_.members().ConnectedAggregator(record_.shards(shard));
    if (member != nullptr) address.set_address(member->record.address());
  }
  return addresses;
}

void ShardDirectory::Send(absl::string_view member_id) const {
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run(run_.id());
  for (const v1::ShardAddress& address : Addresses()) {
    *message.mutable_shard_addresses()->add_shards() = address;
  }
  cluster_.SendTo(member_id, message);
}

void ShardDirectory::SendToGroups() const {
  for (const Slot& slot : run_.slots()) {
    for (const std::string& rank : slot.record().members()) Send(rank);
  }
}

bool ShardDirectory::Contains(absl::string_view name) const {
  return std::find(record_.shards().begin(), record_.shards().end(), name) !=
         record_.shards().end();
}

void ShardDirectory::OnJoined(const std::string& name) {
  away_since_.erase(name);
  if (Contains(name)) SendToGroups();
}

void ShardDirectory::OnLost(const std::string& name) {
  if (!Contains(name) || cluster_.members().ConnectedAggregator(name) != nullptr) return;
  if (away_since_.emplace(name, cluster_.now()).second) SendToGroups();
}

std::optional<ShardDirectory::Away> ShardDirectory::FindAway() const {
  if (shards_.AllOpen()) return std::nullopt;
  std::optional<Away> longest;
  for (const std::string& name : record_.shards()) {
    if (cluster_.members().ConnectedAggregator(name) != nullptr) continue;
    const auto lost = away_since_.find(name);
    const absl::Time since = lost == away_since_.end() ? created_ : lost->second;
    if (!longest || since < longest->since) longest = {name, since};
  }
  return longest;
}

absl::Duration ShardDirectory::Patience() const {
  const v1::Cluster& cluster = record_.spec().cluster();
  return cluster.has_aggregator_wait_ms() ? absl::Milliseconds(cluster.aggregator_wait_ms())
                                          : default_patience_;
}

std::string ShardDirectory::NameOfPatience() const {
  return record_.spec().cluster().has_aggregator_wait_ms()
             ? "cluster.aggregator_wait_ms"
             : "--aggregator-patience of the coordinator";
}

absl::Time ShardDirectory::PatientUntil() const {
  const std::optional<Away> away = FindAway();
  return away ? away->since + Patience() : absl::InfiniteFuture();
}

}  // namespace cadre
