// The runtime of a simulated session: virtual time, simulated threads, and clients of the simulated
// shards.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "member/runtime.h"
#include "tests/simulation/simulated_client.h"
#include "tests/simulation/simulated_thread.h"

namespace cadre::simulation {

class SimulatedRuntime final : public Runtime {
 public:
  SimulatedRuntime(const BulkNetwork& bulk, std::string host, Threads& threads)
      : bulk_(bulk), host_(std::move(host)), threads_(threads), clock_(bulk.world.timeline) {}

  const Clock& clock() const override { return clock_; }
  std::unique_ptr<WaitCondition> MakeCondition() override;
  // What a training thread begins hangs with it; what the membership thread begins does not.
  std::unique_ptr<BackgroundTask> Start(std::function<void()> work) override;
  std::unique_ptr<ShardClient> MakeShardClient(ShardClientOptions options) override {
    return std::make_unique<SimulatedShardClient>(bulk_, host_, threads_, std::move(options));
  }

 private:
  class VirtualClock final : public Clock {
   public:
    explicit VirtualClock(const Timeline& timeline) : timeline_(timeline) {}
    absl::Time Now() const override { return timeline_.now(); }

   private:
    const Timeline& timeline_;
  };

  const BulkNetwork bulk_;
  const std::string host_;
  Threads& threads_;
  const VirtualClock clock_;
};

}  // namespace cadre::simulation
