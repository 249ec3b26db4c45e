// OpenRun carries the lowest accepted generation of each group and its key, so an aggregator that
// was disconnected has the newest fences before it accepts data. While it is connected, Fence
// reports the changes, or OpenRun if many groups change in one event. An aggregator accepts data
// only from generations whose key it has received.
#include "coordinator/run/shard_orders.h"

#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"

namespace cadre {
namespace {

// Number of Fence messages to one shard that an event may cause.
constexpr size_t kMaxFences = 64;

}  // namespace

void ShardOrders::Send(const std::string& aggregator, const v1::CoordinatorMessage& message) const {
  const Member* const member = cluster_.members().Aggregator(aggregator);
  if (member != nullptr) cluster_.SendTo(member->id(), message);
}

// A slot without a generation accepts only future generations.
uint32_t ShardOrders::LowestGeneration(const Slot& slot) const {
  return slot.waiting() ? cluster_.meta().generation() + 1 : slot.record().generation();
}

void ShardOrders::Open(const std::string& aggregator, uint32_t shard,
                       std::optional<uint32_t> hollow) {
  v1::CoordinatorMessage message;
  v1::OpenRun& open = *message.mutable_open_run();
  open.set_run(run_.id());
  open.set_lineage(record_.lineage());
  *open.mutable_spec() = run_.spec();
  open.set_shard(shard);
  open.set_shards(record_.shards_size());
  open.set_version(record_.version());
  if (hollow.has_value()) open.set_hollow(*hollow);
  for (const Slot& slot : run_.slots()) {
    (*open.mutable_generations())[slot.group()] = LowestGeneration(slot);
    if (!slot.waiting()) (*open.mutable_keys())[slot.group()] = KeyOf(slot);
  }
  for (const auto& [group, generation] : fences_) {
    open.mutable_generations()->insert({group, generation});  // unless it still exists
  }
  Send(aggregator, message);
}

// A large change takes one OpenRun, so that it cannot fill the queue of a stream.
void ShardOrders::SendFences() {
  for (int shard = 0; shard < record_.shards_size() && run_.active(); ++shard) {
    // An OpenRun would replace the one that makes a lost shard hollow.
    if (fences_.size() > kMaxFences && run_.shards().Lost(shard) == nullptr) {
      Open(shard);
      continue;
    }
    for (const auto& [group, generation] : fences_) {
      v1::CoordinatorMessage message;
      v1::Fence& fence = *message.mutable_fence();
      fence.set_run(run_.id());
      fence.set_group(group);
      const Slot* const slot = group < run_.slots().size() ? &run_.slots()[group] : nullptr;
      fence.set_generation(slot == nullptr ? generation : LowestGeneration(*slot));
      if (slot != nullptr && !slot->waiting()) fence.set_key(KeyOf(*slot));
      Send(shard, message);
    }
  }
  fences_.clear();
}

void ShardOrders::Apply(uint32_t shard) const {
  const v1::CommitRecord& closing = *run_.commits().closing();
  if (run_.shards().IsOpen(shard) && closing.digests(shard).applied()) return;
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(run_.id());
  apply.set_shard(shard);
  apply.set_round(closing.round());
  *apply.mutable_participants() = closing.participants();
  apply.set_step(closing.step());
  apply.set_samples(closing.has_restores() ? closing.run_samples()
                                           : record_.samples() + closing.samples());
  *apply.mutable_division() = closing.division();
  if (closing.has_outer()) *apply.mutable_outer() = closing.outer();
  if (closing.has_up()) *apply.mutable_up() = closing.up();
  if (closing.has_down()) *apply.mutable_down() = closing.down();
  apply.set_fragment(closing.fragment());
  *apply.mutable_included() = closing.included();
  if (closing.has_restores()) apply.set_restores(closing.restores());
  *apply.mutable_keep() = closing.keep();
  apply.set_attempt(closing.attempt());
  apply.set_trim(closing.trim());
  apply.set_seed(run_.TakesFirstValues(apply.round()));
  Send(shard, message);
}

void ShardOrders::Publish() const {
  v1::CoordinatorMessage message;
  message.mutable_publish()->set_run(run_.id());
  message.mutable_publish()->set_round(record_.version());
  for (int shard = 0; shard < record_.shards_size(); ++shard) Send(shard, message);
}

void ShardOrders::RequestReport(const Member& aggregator) const {
  v1::CoordinatorMessage message;
  message.mutable_report_run()->set_run(run_.id());
  cluster_.SendTo(aggregator.id(), message);
}

void ShardOrders::Delete(const Member& aggregator) const {
  v1::CoordinatorMessage message;
  message.mutable_delete_run()->set_run(run_.id());
  message.mutable_delete_run()->set_lineage(record_.lineage());
  cluster_.SendTo(aggregator.id(), message);
}

}  // namespace cadre
