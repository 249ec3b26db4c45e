// A simulated aggregator: the real shard host, on a disk in memory that outlives the process, and
// the real queue of orders. Only threads and streams are replaced: each order and each message of a
// call takes effect at one moment. An order may take time before and after it, while the orders of
// other runs are carried out.
//
// Each function that ranks call represents one message of the service. A call states the process to
// which it is connected, so that a restart breaks it.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/counters.h"
#include "base/silent_peers.h"
#include "base/stream_slots.h"
#include "server/order_execution.h"
#include "server/order_queue.h"
#include "server/shard_host.h"
#include "tests/base/memory_file_system.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/model.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedAggregator {
 public:
  using Peers = std::vector<std::unique_ptr<SimulatedAggregator>>;

  // `peers`: all aggregators. Borrowed.
  SimulatedAggregator(World& world, Network& network, Invariants& invariants, const Peers& peers,
                      std::string name);

  // Starts a process, at a new address if `move`.
  void Start(bool move);
  // With its host, data that is not durable is lost.
  void Kill(bool host_lost);
  // After `time`, the host restarts with its disk as it is now: a restored backup.
  void RollBackAfter(absl::Duration time);
  // A process that is started with the disk of another aggregator ends at once. Requires: the
  // processes of both have ended.
  void CheckThatDiskIsRefused(SimulatedAggregator& other);
  // The folder is removed; the process notices it.
  void LoseFolder();
  // One bit of a file changes, or the file cannot be read; the process notices it when it reads it.
  void DamageFile();
  void OnClockJump(absl::Duration by) {
    if (up()) link_->OnClockJump(by);
  }
  bool up() const { return host_ != nullptr; }
  // Whether the process runs and has joined the coordinator.
  bool joined() const { return up() && link_->connected(); }
  uint64_t process() const { return process_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

  // Since when an Apply has failed for a transient reason and was not tried again, although no
  // other order of its run took time; InfiniteFuture if there is none.
  absl::Time oldest_failure() const;

  // What its host stores of the run; empty if it stores none. Requires: up().
  v1::ShardState StateOf(const std::string& run) const { return host_->ReportRun(run).state(); }

  // ---- The Rounds service: a call begins with Stage or Pull, unless that fails, and ends with
  // EndCall, or because its peer is silent.
  struct Call {
    uint64_t id = 0;
    std::string peer;
  };
  absl::StatusOr<Staging> Stage(const Call& call, const v1::ContributionHeader& header);
  absl::StatusOr<std::unique_ptr<VersionPull>> Pull(const Call& call, v1::PullRequest request);
  // The next message of the call has arrived. Returns false if the call has ended.
  bool Continue(uint64_t call);
  void EndCall(uint64_t call);
  // Stores one chunk, in the order of the header. Returns whether it was the last.
  absl::StatusOr<bool> Put(Staging& staging, uint32_t index, std::span<const float> values);
  absl::Status Finish(Staging& staging);

  // Adds the counters of the host to those of the simulation.
  void CountRefusals();
  // For the checker: the newest version of the run, if any.
  std::optional<uint32_t> VersionOf(const std::string& run) const;

 private:
  // The disk. It reports versions that appear.
  class Disk : public MemoryFileSystem {
   public:
    absl::Status Rename(const std::string& from, const std::string& to) override;
    absl::Status RemoveFile(const std::string& path) override;

    // Files that have appeared by a rename, and whether one was removed.
    std::vector<std::string> renamed;
    bool removed = false;
  };

  v1::Hello MakeHello() const;
  v1::Heartbeat MakeHeartbeat();
  // Ends the process and starts it again after `time`.
  void Restart(absl::Duration time, bool host_lost);
  // The process ends by itself, and is started again.
  void EndSoon(const std::string& reason);
  // Verifies the files of one run after the other, and joins then.
  void VerifyNext();
  // Adds an order.
  bool OnMessage(const v1::CoordinatorMessage& message);
  // Schedules the next order.
  void Wake();
  void ExecuteNext();
  void Execute(const v1::CoordinatorMessage& order, absl::Duration rest);
  void Finish(const v1::CoordinatorMessage& order, const OrderResult& result);
  // One attempt to fetch a file from another aggregator.
  absl::Status Fetch(const v1::CopyShard& order, const v1::CopyRequest& request,
                     const std::function<absl::Status(const v1::CopyReply&)>& on_reply);
  // The order was carried out; `repeat`: it has failed.
  void NoteFailure(const v1::CoordinatorMessage& order, bool repeat);
  v1::CoordinatorMessage Plant(v1::CoordinatorMessage order);
  // The call has a slot, or is refused.
  absl::Status Begin(const Call& call, StreamSlots& slots, const absl::Status& authenticated);
  void CancelSilent();
  // Reports to the checker what has changed on the disk.
  void CheckVersion(const std::string& path);
  void CheckContributions();

  World& world_;
  Network& network_;
  Invariants& invariants_;
  const Peers& peers_;
  const std::string name_;
  Disk disk_;
  std::set<std::string> damaged_;
  Counters counters_;
  // The part of `counters_` that the simulation has.
  std::map<std::string, uint64_t> counted_;

  // State of the process.
  uint64_t process_ = 0;
  std::string incarnation_;
  std::string address_;
  Lifetime life_;
  // Lifetime of the next execution of an order.
  Lifetime wake_;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<MembershipLink> link_;
  std::optional<OrderQueue> orders_;
  // The calls of the service, by id; destroyed before their slots.
  std::optional<StreamSlots> stages_;
  std::optional<StreamSlots> pulls_;
  std::map<uint64_t, StreamSlots::Slot> calls_;
  std::optional<SilentPeers<uint64_t>> silent_;
  // The coordinator's, since the process has started.
  uint64_t epoch_ = 0;
  // Applies that have failed for a transient reason, by run.
  struct FailedApply {
    v1::CoordinatorMessage order;
    absl::Time when;
  };
  std::map<std::string, FailedApply> failed_applies_;
};

}  // namespace cadre::simulation
