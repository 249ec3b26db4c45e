// A rank's simulated calls to all shards, with retries, as in worker/train/shard_exchange and
// server/client/rounds_client. Each message of a call may be delayed, may fail, or may be executed
// although the caller receives an error.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "tests/simulation/model.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

using Directory = std::vector<std::unique_ptr<SimulatedAggregator>>;

class SimulatedExchange {
 public:
  using Finished = std::function<void(const absl::Status&)>;

  SimulatedExchange(World& world, Network& network, Directory& directory, Invariants& invariants,
                    std::string host)
      : world_(world),
        network_(network),
        directory_(directory),
        invariants_(invariants),
        host_(std::move(host)) {}

  void SetAddress(uint32_t shard, const std::string& address) { addresses_[shard] = address; }
  bool has_shards() const { return !addresses_.empty(); }
  uint32_t shards() const { return addresses_.size(); }

  // Stages the owned words at every shard; `finished` receives the first error, or OK.
  // `header` has no ranges. The words must stay valid until then.
  void Stage(const v1::ContributionHeader& header, const std::vector<int64_t>& begins,
             const std::vector<Interval>& owned, const Words& words, Finished finished);
  // Pulls the owned words into `words`.
  void Pull(const v1::PullRequest& request, const std::vector<int64_t>& begins,
            const std::vector<Interval>& owned, Words* words, Finished finished);
  // No callback runs after it.
  void Cancel() { life_.End(); }

 private:
  // One shard's part of an exchange.
  struct Call {
    uint32_t shard = 0;
    absl::Time deadline;
    v1::ContributionHeader header;
    v1::PullRequest request;
    std::vector<Interval> spans;
    Words values;  // to stage, in order
    Words* out = nullptr;
    SimulatedAggregator* at = nullptr;
    SimulatedAggregator::Staging staging;
    uint32_t next_chunk = 0;
    Finished finished;
  };
  using CallPtr = std::shared_ptr<Call>;

  void All(std::vector<CallPtr> calls, const Finished& finished,
           const std::function<void(const CallPtr&)>& begin);
  void BeginStage(const CallPtr& call);
  void SendChunk(const CallPtr& call);
  void FinishStage(const CallPtr& call);
  void BeginPull(const CallPtr& call);
  // Executes the next message of the call at the shard; if it breaks, `again` repeats the call.
  void Deliver(const CallPtr& call, const std::function<void(const CallPtr&)>& again,
               std::function<void()> work);
  void RetryLater(const CallPtr& call, const std::function<void(const CallPtr&)>& again);
  SimulatedAggregator* Find(uint32_t shard);

  World& world_;
  Network& network_;
  Directory& directory_;
  Invariants& invariants_;
  const std::string host_;
  Lifetime life_;
  std::map<uint32_t, std::string> addresses_;
};

}  // namespace cadre::simulation
