// Numbers of workers by kind of device, precision, host and run. Ranks of programs count for hosts
// only, because they train in no other run.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "coordinator/cluster/member.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class WorkerCounts {
 public:
  // Adds a member, or removes it. Requires: what is counted of it does not change in between.
  void Add(const Member& member) { Change(member, 1); }
  void Remove(const Member& member) { Change(member, -1); }

  // Idle workers of this kind.
  size_t Idle(v1::Cluster::Device kind) const { return Get(idle_, kind); }
  // Workers of this kind that support the precision and are not withdrawn, with a rank or without.
  size_t Usable(v1::Cluster::Device kind, v1::RunSpec::Precision precision) const;
  // Those of them that hold a rank of the run.
  size_t PlacedIn(absl::string_view run, v1::Cluster::Device kind) const {
    return Get(placed_in_, {std::string(run), kind});
  }
  // Workers on the host that hold a rank, and idle ones.
  int PlacedOn(const std::string& host) const { return Get(placed_on_, host); }
  int IdleOn(const std::string& host) const { return Get(idle_on_, host); }

 private:
  template <typename Key>
  static int Get(const std::map<Key, int>& counts, const Key& key) {
    const auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  }
  void Change(const Member& member, int by);

  std::map<v1::Cluster::Device, int> idle_;
  std::map<std::pair<v1::Cluster::Device, v1::RunSpec::Precision>, int> usable_;
  std::map<std::pair<std::string, v1::Cluster::Device>, int> placed_in_;
  std::map<std::string, int> placed_on_;
  std::map<std::string, int> idle_on_;
};

}  // namespace cadre
