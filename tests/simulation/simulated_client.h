// A rank's calls to one shard in virtual time: drives server/client/shard_transfer. Each message of
// a call may be delayed, may fail, or may be executed although the caller receives an error. An
// attempt is broken off when the call is cancelled or stopped, or its transfer is silent.
//
// Thread-compatible; used by the simulated threads of one session.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "member/runtime.h"
#include "server/client/shard_client.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/simulated_thread.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

using Directory = std::vector<std::unique_ptr<SimulatedAggregator>>;

// What the calls of a process need of the simulation.
struct BulkNetwork {
  World& world;
  Network& network;
  const Directory& directory;
  Invariants& invariants;
};

class SimulatedShardClient final : public ShardClient {
 public:
  SimulatedShardClient(const BulkNetwork& bulk, std::string host, Threads& threads,
                       ShardClientOptions options)
      : bulk_(bulk),
        world_(bulk.world),
        host_(std::move(host)),
        threads_(threads),
        options_(std::move(options)) {}

  absl::Status Stage(const v1::ContributionHeader& header, std::span<const std::byte> bytes,
                     Traffic* traffic, std::stop_token stop) override;
  absl::Status Pull(const v1::PullRequest& request, std::span<float> out, Traffic* traffic,
                    std::stop_token stop) override;
  absl::Status PullFrame(const v1::PullRequest& request, uint64_t max_elements, PulledFrame* frame,
                         Traffic* traffic, std::stop_token stop) override;
  void Cancel() override {
    cancelled_ = true;
    threads_.Wake();
  }

 private:
  // A connection to one process of a shard. A message that arrives late may still use it.
  struct Attempt {
    SimulatedAggregator* at = nullptr;
    uint64_t process = 0;
    uint64_t call = 0;
    Staging staging;
    std::unique_ptr<VersionPull> pull;
    std::vector<std::byte> chunk;
  };
  struct Call {
    ShardTransfer transfer;
    std::stop_token stop;
  };
  // Carries out one action of the transfer.
  using Execute = std::function<ShardTransfer::Event(ShardTransfer::Action)>;

  absl::Status Run(Call& call, const Execute& execute);
  // The same for a version or a frame: `opened` receives the size of a frame.
  absl::Status RunPull(Call& call, const v1::PullRequest& request,
                       const std::function<std::span<std::byte>(const VersionPull& pull)>& opened);
  ShardTransfer MakeTransfer(ShardTransfer::Direction direction, uint64_t elements);
  // Connects to the shard's present address; null if nothing answers there.
  std::shared_ptr<Attempt> Connect();
  // The attempt is over. The shard learns of it, unless the connection is lost.
  void Drop(const std::shared_ptr<Attempt>& attempt);
  // Sends one message of the attempt; `execute` runs at the shard and returns what is received.
  ShardTransfer::Event Send(const Call& call, const std::shared_ptr<Attempt>& attempt,
                            std::function<ShardTransfer::Event()> execute);
  bool Stopped(const std::stop_token& stop) const {
    return cancelled_ || stop.stop_requested() || threads_.killed();
  }
  SimulatedAggregator* Find() const;

  const BulkNetwork bulk_;
  World& world_;
  const std::string host_;
  Threads& threads_;
  const ShardClientOptions options_;
  bool cancelled_ = false;
};

}  // namespace cadre::simulation
