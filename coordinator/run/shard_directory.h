// Where the aggregators of a run are, which of them are away, and what the ranks of its groups are
// told of that. An aggregator is away while it has no stream.
//
// Pure and thread-compatible.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/shards.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class ShardDirectory {
 public:
  // All are borrowed.
  ShardDirectory(const RunView& run, const v1::RunRecord& record, const Shards& shards,
                 const RunContext& context)
      : run_(run),
        record_(record),
        shards_(shards),
        cluster_(context.cluster),
        default_patience_(context.options.aggregator_patience),
        created_(cluster_.now()) {}

  // The addresses of all shards, since the number of shards decides what each of them stores. Empty
  // for aggregators that are away.
  std::vector<v1::ShardAddress> Addresses() const;
  void Send(absl::string_view member_id) const;
  void SendToGroups() const;

  // The aggregator has joined with a new stream.
  void OnJoined(const std::string& name);
  // A stream of the aggregator has ended, or its lease. It may have a newer stream.
  void OnLost(const std::string& name);

  // The aggregator that has been away for the longest time, at most since the coordinator started.
  struct Away {
    std::string name;
    absl::Time since;
  };
  std::optional<Away> FindAway() const;
  // For how long the groups wait for it, and what sets this limit.
  absl::Duration Patience() const;
  std::string NameOfPatience() const;
  // Until when the groups wait for it; InfiniteFuture: all aggregators are connected.
  absl::Time PatientUntil() const;

 private:
  bool Contains(absl::string_view name) const;

  const RunView& run_;
  const v1::RunRecord& record_;
  const Shards& shards_;
  Cluster& cluster_;
  const absl::Duration default_patience_;
  const absl::Time created_;
  // Since when aggregators are away that have been lost since `created_`.
  std::map<std::string, absl::Time> away_since_;
};

}  // namespace cadre
