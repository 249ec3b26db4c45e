// A rank's simulated calls to all shards, as in worker/train/shard_exchange: drives one
// server/client/shard_transfer per shard in virtual time. Each message of a call may be delayed,
// may fail, or may be executed although the caller receives an error.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/client/shard_transfer.h"
#include "tests/simulation/model.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/world.h"
#include "worker/train/trainer_progress.h"

namespace cadre::simulation {

using Directory = std::vector<std::unique_ptr<SimulatedAggregator>>;

class SimulatedExchange {
 public:
  using Finished = std::function<void(const absl::Status&)>;

  SimulatedExchange(World& world, Network& network, Directory& directory, Invariants& invariants,
                    std::string host, TrainerProgress& progress)
      : world_(world),
        network_(network),
        directory_(directory),
        invariants_(invariants),
        host_(std::move(host)),
        progress_(progress),
        life_(&world.hosts[host_].training) {}

  void SetAddress(uint32_t shard, const std::string& address) { addresses_[shard] = address; }
  bool has_shards() const { return !addresses_.empty(); }
  uint32_t shards() const { return addresses_.size(); }

  // Stages the owned words at every shard; `finished` receives the first error, or OK.
  // `header` has no ranges. An error ends the calls to the other shards.
  void Stage(const v1::ContributionHeader& header, const std::vector<int64_t>& begins,
             const std::vector<Interval>& owned, const Words& words, Finished finished);
  // Pulls the owned words into `words`.
  void Pull(const v1::PullRequest& request, const std::vector<int64_t>& begins,
            const std::vector<Interval>& owned, Words* words, Finished finished);
  // No callback runs after it.
  void Cancel() { life_.End(); }

 private:
  using Transfer = ShardTransfer;
  // A connection to one process of a shard.
  struct Attempt {
    SimulatedAggregator* at = nullptr;
    uint64_t process = 0;
    SimulatedAggregator::Staging staging;
    Words pulled;  // by position
  };
  // One shard's part of an exchange.
  struct Call {
    uint32_t shard = 0;
    v1::ContributionHeader header;
    v1::PullRequest request;
    // Of the words to transfer, in order.
    std::vector<int64_t> positions;
    Words values;          // Stage: the words
    Words* out = nullptr;  // Pull: all words, by position
    Finished finished;
    std::optional<Transfer> transfer;
    std::shared_ptr<Attempt> attempt;
  };
  using CallPtr = std::shared_ptr<Call>;

  // Begins a transfer from or to every shard that has some of the owned words.
  void All(Transfer::Direction direction, const std::vector<int64_t>& begins,
           const std::vector<Interval>& owned, const Finished& finished,
           const std::function<void(Call&, const std::vector<Interval>& parts)>& prepare);
  // Carries out the action for this event.
  void Handle(const CallPtr& call, const Transfer::Event& event);
  void Do(const CallPtr& call, const Transfer::Open& open);
  void Do(const CallPtr& call, const Transfer::Send& send);
  void Do(const CallPtr& call, const Transfer::Confirm& confirm);
  void Do(const CallPtr& call, const Transfer::Receive& receive);
  void Do(const CallPtr& call, const Transfer::Wait& wait);
  void Do(const CallPtr& call, const Transfer::End& end);
  // Sends one message of the attempt; `execute` runs at the shard and returns what is received. It
  // may run later than a new attempt, and must not change the call.
  void Deliver(const CallPtr& call, std::function<Transfer::Event()> execute);
  SimulatedAggregator* Find(uint32_t shard);

  World& world_;
  Network& network_;
  Directory& directory_;
  Invariants& invariants_;
  const std::string host_;
  TrainerProgress& progress_;
  Lifetime life_;
  std::map<uint32_t, std::string> addresses_;
};

}  // namespace cadre::simulation
