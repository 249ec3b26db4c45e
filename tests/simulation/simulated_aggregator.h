// An aggregator: the ledger, a disk that survives the process, and orders taken one at a time, as
// server/shard_host and server/aggregator drive it.
//
// Calls of ranks come in as functions that stand for what the service does with one message; each
// names the process that it talks to, so that a restart in between breaks it.
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
    // Process that has granted it.
    uint64_t process = 0;
  };

  SimulatedAggregator(World& world, Network& network, Invariants& invariants, std::string name,
                      uint64_t schema_hash)
      : world_(world),
        network_(network),
        invariants_(invariants),
        name_(std::move(name)),
        schema_hash_(schema_hash) {}

  // A process begins, at a new address if `move`.
  void Start(bool move);
  void Kill(bool host_lost);
  bool up() const { return ledger_ != nullptr; }
  uint64_t process() const { return process_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

  // ---- The Rounds service
  absl::StatusOr<Staging> Stage(const v1::ContributionHeader& header);
  // One chunk, its words in the header's order. True: it was the last.
  absl::StatusOr<bool> Put(const Staging& staging, uint32_t index, const Words& words);
  absl::Status Finish(const Staging& staging);
  // The words of the version, at their positions.
  absl::StatusOr<Words> Pull(const v1::PullRequest& request);

  // What is on the disk, for the checker: the newest version of the run, or nothing.
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
    std::map<uint32_t, DiscrepancyTerms> discrepancies;  // by version, of those that were made here
    std::map<ContributionKey, File> contributions;
  };

  v1::Hello MakeHello() const;
  void RestoreLedger();
  // Contributions that were not synced lose what the kernel had not written.
  void LoseUnsynced();
  void Remove(const std::vector<ContributionKey>& keys, absl::string_view why);
  absl::Status Refuse(const Refused& refused);
  FlatSpan SpanOf(const v1::OpenRun& open) const;
  uint64_t ShardDigest(const v1::OpenRun& open, const Words& words) const;

  // ---- Orders, one at a time
  void OnMessage(const v1::CoordinatorMessage& message);
  void NextOrder();
  // The order under way is done; or is tried again later.
  void Done();
  void TryAgain(const v1::CoordinatorMessage& order);
  // Goes on after a while, unless the process dies first.
  void Then(Timeline::Work work);
  void OpenRun(const v1::CoordinatorMessage& order);
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

  // Of the process.
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
