#include "tests/simulation/group_fabric.h"

#include <utility>

namespace cadre::simulation {

void GroupFabric::Enter(uint32_t rank, const std::string& kind, std::string input,
                        const Lifetime& life, Entered entered) {
  if (world_.dice.Chance(world_.faults.break_group)) {
    world_.Count("groups_broken");
    world_.Log("net   the connections of a group break");
    Leave(rank, /*host_lost=*/false);
  }
  if (left_) return Fail(life, std::move(entered));
  if (!waiting_.empty() && kind != kind_) {
    world_.Violate("ranks of one group enter different collectives: one enters ", kind, ", others ",
                   kind_);
    return;
  }
  kind_ = kind;
  waiting_[rank] = {std::move(input), &life, std::move(entered)};
  MaybeComplete();
}

void GroupFabric::MaybeComplete() {
  if (waiting_.size() < ranks_) return;
  for (const auto& [rank, host] : hosts_) {
    if (ranks_ == 1 || host->cut_bulk <= world_.timeline.now()) continue;
    world_.timeline.After(absl::Seconds(1), alive_, [this] { MaybeComplete(); });
    return;
  }
  std::vector<std::string> inputs;
  for (auto& [r, one] : waiting_) inputs.push_back(one.input);
  const std::map<uint32_t, Waiting> all = std::exchange(waiting_, {});
  for (const auto& [r, one] : all) {
    world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), absl::Milliseconds(5)),
                          *one.life,
                          [entered = one.entered, inputs] { entered(std::nullopt, inputs); });
  }
}

void GroupFabric::Leave(uint32_t rank, bool host_lost) {
  waiting_.erase(rank);
  if (host_lost) return;
  if (!left_) left_ = rank;
  for (auto& [r, one] : std::exchange(waiting_, {})) Fail(*one.life, one.entered);
}

void GroupFabric::Fail(const Lifetime& life, Entered entered) {
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), absl::Milliseconds(50)), life,
                        [entered = std::move(entered), left = left_] { entered(left, {}); });
}

std::vector<uint32_t> GroupFabric::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (waiting_.count(rank) == 0) missing.push_back(rank);
  }
  return missing;
}

std::shared_ptr<GroupFabric> Fabrics::Of(const v1::RankSlot& place, size_t ranks) {
  std::weak_ptr<GroupFabric>& found = fabrics_[{place.run(), place.group(), place.generation()}];
  std::shared_ptr<GroupFabric> fabric = found.lock();
  if (fabric == nullptr) {
    fabric = std::make_shared<GroupFabric>(world_, ranks);
    found = fabric;
  }
  return fabric;
}

}  // namespace cadre::simulation
