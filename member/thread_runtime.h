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
  // `credentials`: for the channels to the shards.
  explicit ThreadRuntime(Credentials credentials, int coding_threads = 1)
      : credentials_(std::move(credentials)), coding_threads_(coding_threads) {}
  static ThreadRuntime& Insecure();

  const Clock& clock() const override { return clock_; }
  std::unique_ptr<WaitCondition> MakeCondition() override;
  std::unique_ptr<BackgroundTask> Start(std::function<void()> work) override;
  std::unique_ptr<ShardClient> MakeShardClient(ShardClientOptions options) override;
  int coding_threads() const override { return coding_threads_; }

 private:
  const Credentials credentials_;
  const int coding_threads_;
  const SteadyClock clock_;
};

}  // namespace cadre
