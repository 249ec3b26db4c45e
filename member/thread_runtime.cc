#include "member/thread_runtime.h"

#include <chrono>
#include <future>

#include "base/steady_cond_var.h"
#include "server/client/rounds_client.h"

namespace cadre {
namespace {

class ThreadCondition final : public WaitCondition {
 public:
  void NotifyAll() override { changed_.NotifyAll(); }
  bool WaitFor(absl::Mutex& mutex, absl::Duration timeout,
               absl::FunctionRef<bool()> is_true) override {
    return changed_.WaitFor(mutex, timeout, is_true);
  }

 private:
  SteadyCondVar changed_;
};

class ThreadTask final : public BackgroundTask {
 public:
  explicit ThreadTask(std::function<void()> work)
      : running_(std::async(std::launch::async, std::move(work))) {}

  bool done() const override {
    return running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void Wait() override { running_.wait(); }

 private:
  // Its destructor waits.
  std::future<void> running_;
};

}  // namespace

ThreadRuntime& ThreadRuntime::Insecure() {
  static auto* const runtime = new ThreadRuntime(Credentials::Insecure());
  return *runtime;
}

std::unique_ptr<WaitCondition> ThreadRuntime::MakeCondition() {
  return std::make_unique<ThreadCondition>();
}

std::unique_ptr<BackgroundTask> ThreadRuntime::Start(std::function<void()> work) {
  return std::make_unique<ThreadTask>(std::move(work));
}

std::unique_ptr<ShardClient> ThreadRuntime::MakeShardClient(ShardClientOptions options) {
  return std::make_unique<RoundsClient>(std::move(options.location), options.transfer,
                                        std::move(options.on_progress), options.key, credentials_,
                                        std::move(options.away));
}

}  // namespace cadre
