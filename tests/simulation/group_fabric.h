// The simulated connections between the ranks of one generation of a group. They provide
// collectives, which all ranks enter in the same order and which fail for all when a rank leaves.
//
// A collective is complete when every rank has entered it; each rank then receives the inputs of
// all ranks, by rank.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class GroupFabric {
 public:
  // `left` is a rank that has left; then there are no inputs.
  using Entered =
      std::function<void(std::optional<uint32_t> left, const std::vector<std::string>& all)>;

  GroupFabric(World& world, size_t ranks) : world_(world), ranks_(ranks) {}

  // The host of a rank; while it is cut off, no collective completes.
  void SetHost(uint32_t rank, const HostConditions& host) { hosts_[rank] = &host; }
  // The ranks that are not in the current collective.
  std::vector<uint32_t> Missing() const;
  // Enters a collective. `kind` is its name; all ranks must enter the same one. The first
  // collective forms the connections.
  void Enter(uint32_t rank, const std::string& kind, std::string input, const Lifetime& life,
             Entered entered);
  // The rank's process or session has ended. If its host is lost, its peers do not notice.
  void Leave(uint32_t rank, bool host_lost);

 private:
  struct Waiting {
    std::string input;
    const Lifetime* life;
    Entered entered;
  };
  void MaybeComplete();
  void Fail(const Lifetime& life, Entered entered);

  World& world_;
  const size_t ranks_;
  std::map<uint32_t, const HostConditions*> hosts_;
  // The first rank that has left.
  std::optional<uint32_t> left_;
  std::string kind_;
  std::map<uint32_t, Waiting> waiting_;
  Lifetime alive_;
};

// The fabrics of all generations.
class Fabrics {
 public:
  explicit Fabrics(World& world) : world_(world) {}
  std::shared_ptr<GroupFabric> Of(const v1::RankSlot& place, size_t ranks);

 private:
  World& world_;
  std::map<std::tuple<std::string, uint32_t, uint32_t>, std::weak_ptr<GroupFabric>> fabrics_;
};

}  // namespace cadre::simulation
