#include "tests/simulation/simulated_runtime.h"

namespace cadre::simulation {
namespace {

class SimulatedCondition final : public WaitCondition {
 public:
  explicit SimulatedCondition(Threads& threads, const Timeline& timeline)
      : threads_(threads), timeline_(timeline) {}

  void NotifyAll() override { threads_.Wake(); }
  bool WaitFor(absl::Mutex& mutex, absl::Duration timeout,
               absl::FunctionRef<bool()> is_true) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const absl::Time deadline = timeline_.now() + timeout;
    while (!is_true() && timeline_.now() < deadline && !threads_.killed()) {
      mutex.Unlock();
      threads_.AwaitWake(deadline);
      mutex.Lock();
    }
    return is_true();
  }

 private:
  Threads& threads_;
  const Timeline& timeline_;
};

class SimulatedTask final : public BackgroundTask {
 public:
  SimulatedTask(Threads& threads, std::shared_ptr<Threads::Thread> thread)
      : threads_(threads), thread_(std::move(thread)) {}
  ~SimulatedTask() override { Wait(); }

  bool done() const override { return Threads::HasEnded(*thread_); }
  void Wait() override { threads_.AwaitEnd(*thread_); }

 private:
  Threads& threads_;
  const std::shared_ptr<Threads::Thread> thread_;
};

}  // namespace

std::unique_ptr<WaitCondition> SimulatedRuntime::MakeCondition() {
  return std::make_unique<SimulatedCondition>(threads_, bulk_.world.timeline);
}

std::unique_ptr<BackgroundTask> SimulatedRuntime::Start(std::function<void()> work) {
  const HostConditions& host = bulk_.world.hosts.at(host_);
  const Gate& gate = Threads::OnThread() ? host.training : host.process;
  return std::make_unique<SimulatedTask>(threads_, threads_.Start(gate, std::move(work)));
}

}  // namespace cadre::simulation
