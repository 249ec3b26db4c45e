// What the loop of a rank needs of the process around it: time, waits, concurrent work and clients
// of the shards. A worker has threads and gRPC (member/thread_runtime.h); the simulation has
// virtual time and runs the same loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/secret_key.h"
#include "server/client/shard_client.h"
#include "server/client/shard_transfer.h"

namespace cadre {

// As SteadyCondVar.
class WaitCondition {
 public:
  virtual ~WaitCondition() = default;
  virtual void NotifyAll() = 0;
  virtual bool WaitFor(absl::Mutex& mutex, absl::Duration timeout,
                       absl::FunctionRef<bool()> is_true) = 0;
};

// Work that goes on beside its starter. The destructor waits for its end.
class BackgroundTask {
 public:
  virtual ~BackgroundTask() = default;
  virtual bool done() const = 0;
  // Must be called by one thread at a time.
  virtual void Wait() = 0;
};

struct ShardClientOptions {
  // As RoundsClient::LocationSource.
  std::function<ShardLocation()> location;
  // As RoundsClient::AwaySource.
  std::function<bool()> away;
  TransferOptions transfer;
  // Called for every new chunk that was sent or received.
  std::function<void()> on_progress;
  // Signs the requests.
  SecretKey key = {};
};

// Thread-safe.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const Clock& clock() const = 0;
  virtual std::unique_ptr<WaitCondition> MakeCondition() = 0;
  // `work` does not begin on the caller's thread, so the caller may hold locks that it takes.
  virtual std::unique_ptr<BackgroundTask> Start(std::function<void()> work) = 0;
  virtual std::unique_ptr<ShardClient> MakeShardClient(ShardClientOptions options) = 0;
  // The number of threads that may code, decode and copy values at the same time, the caller's
  // included. 1: none but the caller's.
  virtual int coding_threads() const { return 1; }
};

}  // namespace cadre
