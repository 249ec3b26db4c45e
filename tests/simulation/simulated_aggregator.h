// A simulated aggregator: the real ledger, a disk that outlives the process, and orders executed
// one at a time, as in server/shard_host and server/aggregator.
//
// Each function that ranks call represents one message of the service. A call states the process to
// which it is connected, so that a restart breaks it.
//
// Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/ledger.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/model.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedAggregator {
 public:
  struct Staging {
    StageGrant grant;
    // The process that has granted it.
    uint64_t process = 0;
  };

  SimulatedAggregator(World& world, Network& network, Invariants& invariants, std::string name,
                      uint64_t schema_hash)
      : world_(world),
        network_(network),
        invariants_(invariants),
        name_(std::move(name)),
        schema_hash_(schema_hash),
        life_(&world.hosts[name_].process) {}

  // Starts a process, at a new address if `move`.
  void Start(bool move);
  void Kill(bool host_lost);
  void OnClockJump(absl::Duration by) {
    if (up()) link_->OnClockJump(by);
  }
  bool up() const { return ledger_ != nullptr; }
  // Whether the process runs and has joined the coordinator.
  bool joined() const { return up() && link_->connected(); }
  uint64_t process() const { return process_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

  // ---- The Rounds service
  absl::StatusOr<Staging> Stage(const v1::ContributionHeader& header);
  // Stores one chunk, in the order of the header. Returns whether it was the last.
  absl::StatusOr<bool> Put(const Staging& staging, uint32_t index, const Words& words);
  absl::Status Finish(const Staging& staging);
  // The words of the version, by position.
  absl::StatusOr<Words> Pull(const v1::PullRequest& request);

  // State of the disk, for the checker: the newest version of the run, if any.
  std::optional<uint32_t> VersionOnDisk(const std::string& run) const;
  bool HasContribution(const ContributionKey& key) const;

 private:
  struct File {
    v1::ContributionHeader header;
    uint32_t stored_chunks = 0;
    uint32_t chunks = 0;
    bool synced = false;
    Words words;  // by position
  };
  struct RunFolder {
    v1::OpenRun open;
    bool closed = false;
    std::map<uint32_t, Words> versions;
    std::map<uint32_t, v1::Apply> orders;
    std::map<uint32_t, DiscrepancyTerms> discrepancies;  // of the versions after 0
    std::map<ContributionKey, File> contributions;
  };

  v1::Hello MakeHello() const;
  void RestoreLedger();
  // Contributions that are not synced lose chunks that the kernel has not written.
  void LoseUnsynced();
  void Remove(const std::vector<ContributionKey>& keys, absl::string_view why);
  absl::Status Refuse(const Refused& refused);
  Interval SpanOf(const v1::OpenRun& open) const;
  uint64_t ShardDigest(const v1::OpenRun& open, const Words& words) const;

  // ---- Orders, one at a time
  void OnMessage(const v1::CoordinatorMessage& message);
  void NextOrder();
  // Ends the current order.
  void Done();
  // Ends the current order and repeats it later.
  void RetryLater(const v1::CoordinatorMessage& order);
  // Continues after a random time, unless the process crashes first.
  void Then(Timeline::Work work);
  void OpenRun(const v1::CoordinatorMessage& order);
  void Fence(const v1::Fence& fence);
  void AnswerOpened(const v1::OpenRun& open);
  void Apply(const v1::CoordinatorMessage& order);
  void WriteMean(const v1::CoordinatorMessage& order, const ApplyPlan& plan);
  void AnswerApplied(const v1::Apply& apply, const VersionStats& stats, const std::string& error);
  void CloseRun(const std::string& run);

  World& world_;
  Network& network_;
  Invariants& invariants_;
  const std::string name_;
  const uint64_t schema_hash_;
  std::map<std::string, RunFolder> disk_;

  // State of the process.
  uint64_t process_ = 0;
  std::string incarnation_;
  std::string address_;
  Lifetime life_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<MembershipLink> link_;
  std::deque<v1::CoordinatorMessage> orders_;
  bool busy_ = false;
};

}  // namespace cadre::simulation
