// The runtime of a process: the steady clock, threads, clients over gRPC.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/rpc/credentials.h"
#include "member/runtime.h"

namespace cadre {

class ThreadRuntime final : public Runtime {
 public:
  // For the channels to the shards.
  explicit ThreadRuntime(Credentials credentials) : credentials_(std::move(credentials)) {}
  static ThreadRuntime& Insecure();

  const Clock& clock() const override { return clock_; }
  std::unique_ptr<WaitCondition> MakeCondition() override;
  std::unique_ptr<BackgroundTask> Start(std::function<void()> work) override;
  std::unique_ptr<ShardClient> MakeShardClient(ShardClientOptions options) override;

 private:
  const Credentials credentials_;
  const SteadyClock clock_;
};

}  // namespace cadre
