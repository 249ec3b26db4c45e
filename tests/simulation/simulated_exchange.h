// A rank's simulated calls to all shards, as in member/shard_exchange: drives one
// server/client/shard_transfer per shard in virtual time. Each message of a call may be delayed,
// may fail, or may be executed although the caller receives an error.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/secret_key.h"
#include "member/held_values.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/client/shard_transfer.h"
#include "tests/simulation/model.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

using Directory = std::vector<std::unique_ptr<SimulatedAggregator>>;

class SimulatedExchange {
 public:
  using Finished = std::function<void(const absl::Status&)>;

  // `replica`: all values, by position; the exchange reads and writes the owned ones. `key`: that
  // of the generation. In coded rounds, the owned values are whole units in one interval.
  SimulatedExchange(World& world, Network& network, Directory& directory, Invariants& invariants,
                    std::string host, TrainerProgress& progress, const v1::RunSpec& spec,
                    std::vector<Interval> owned, Values& replica, const SecretKey& key);
  ~SimulatedExchange() { Cancel(); }

  void SetAddress(uint32_t shard, const std::string& address) { addresses_[shard] = address; }
  bool has_shards() const { return !addresses_.empty(); }
  uint32_t shards() const { return addresses_.size(); }

  // Stages the owned values at every shard; `finished` receives the first error, or OK.
  // `header` has no ranges. An error ends the calls to the other shards.
  void Stage(const v1::ContributionHeader& header, const Finished& finished);
  // Pulls the owned values, without changing the replica.
  void Pull(const v1::PullRequest& request, const Finished& finished);
  // The digest of the pulled values.
  uint64_t PulledDigest() const;
  // Copies the pulled values to the replica. `included`: whether the version includes the last
  // contribution. Requires: all ranks have pulled.
  void Adopt(bool included);
  // The replica is version 0, which is not pulled.
  void AdoptInitial();
  // Stages values again that the shard has lost; `seed` is the header of a seed.
  void StageAgain(const v1::Restage& restage, v1::ContributionHeader seed,
                  const Finished& finished);
  // No callback runs after it.
  void Cancel();

 private:
  using Transfer = ShardTransfer;
  // One shard's part of the owned values.
  struct Part {
    std::vector<Interval> spans;
    // In order; the buffers have the same elements.
    std::vector<int64_t> positions;
    Values staged;
    Values version;
    uint32_t version_number = 0;
    // Coded contributions: what earlier frames have left out, the change that was staged last, and
    // what its frame leaves out. Empty: zeros.
    Values carried;
    Values change;
    Values left_out;
    HeldValues held;
    v1::ContributionHeader contribution;
  };
  // A connection to one process of a shard.
  struct Attempt {
    SimulatedAggregator* at = nullptr;
    uint64_t process = 0;
    Staging staging;
    std::unique_ptr<VersionPull> pull;
    // What was read last.
    Values chunk;
  };
  struct Call {
    explicit Call(const Gate* gate) : life(gate) {}

    uint32_t shard = 0;
    v1::ContributionHeader header;
    v1::PullRequest request;
    std::vector<int64_t> positions;
    Values values;             // Stage: what is sent
    Values* buffer = nullptr;  // Pull: where it is received
    // The values of a pull of a frame, until there is none.
    std::optional<Values> frame;
    Finished finished;
    std::optional<Transfer> transfer;
    std::shared_ptr<Attempt> attempt;
    Lifetime life;
  };
  using CallPtr = std::shared_ptr<Call>;

  Part& PartOf(uint32_t shard);
  std::span<const ExchangeUnit> UnitsOf(const Part& part) const;
  // Replaces the values in part.staged by the frame of a contribution.
  void EncodeContribution(Part& part) const;
  // Adds the change in a frame to part.version.
  absl::Status AddFrame(const Values& frame, Part& part) const;
  CallPtr NewCall(uint32_t shard, const Gate& gate);
  // Begins the calls of the training thread; the first error ends all of them.
  void Begin(Transfer::Direction direction, const std::vector<CallPtr>& calls,
             const Finished& finished);
  void Begin(Transfer::Direction direction, const CallPtr& call);
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
  const std::vector<int64_t> begins_;
  // Null unless contributions or versions are coded.
  const std::shared_ptr<const ExchangeUnits> units_;
  const std::optional<v1::Coding> up_;
  const std::optional<v1::Coding> down_;
  const std::vector<Interval> owned_;
  Values& replica_;
  const SecretKey key_;
  std::map<uint32_t, std::string> addresses_;
  std::map<uint32_t, Part> parts_;
  std::vector<std::weak_ptr<Call>> calls_;
};

}  // namespace cadre::simulation
