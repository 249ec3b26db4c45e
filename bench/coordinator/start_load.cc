// Many groups of one model form, measure their steps, end and form again, all at the same time:
// what the plans of a large run cost the event loop.
//
// The loop (coordinator/service/loop.h) runs in this process, with the real planner and a store on
// disk. The members answer without delay, so that events arrive in bursts of one or more per group.
// Every message is timed from the call of Post until the state machine has handled it. That
// includes the wait behind all earlier events, as a heartbeat would wait.
//
//   first     The workers join; the groups form by the rules, because nothing is measured.
//   measured  Each group reports its step time and those of its layers. Each has another link, and
//             times that differ by a few percent, as equal machines have.
//   again     All workers restart while the planner still searches for better plans; the groups
//             form with plans from the measurements.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "bench/coordinator/fake_member.h"
#include "bench/coordinator/load.h"
#include "bench/harness.h"
#include "cli/work_folder.h"
#include "coordinator/measured_planning.h"
#include "coordinator/service/loop.h"
#include "coordinator/store/sqlite_store.h"
#include "model/zoo_file.h"

namespace cadre {
namespace {

// Equal machines measure times that differ by so much.
constexpr double kNoise = 0.03;
constexpr double kStepSeconds = 0.3;
constexpr double kHeartbeatSeconds = 2;

// What the loop sends, and the time that each message to it has waited. Thread-safe.
class Callbacks final : public Loop::Callbacks {
 public:
  void OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) override {
    absl::MutexLock lock(&mutex_);
    sent_.emplace_back(connection, message);
  }
  void OnDisconnect(ConnectionId, const absl::Status&) override {}
  void OnReplied(const Replied& replied) override {
    absl::MutexLock lock(&mutex_);
    replied_ = replied.status;
  }
  void OnHandled(ConnectionId) override {
    absl::MutexLock lock(&mutex_);
    latencies_.Add(MonotonicSeconds() - posted_.front());
    posted_.pop_front();
  }
  void OnBegunAgain() override {}
  absl::Time OnSettled(const Machine&, absl::Time) override { return absl::InfiniteFuture(); }

  // Must be called before each message is posted, in the order of the messages.
  void NotePosted() {
    absl::MutexLock lock(&mutex_);
    posted_.push_back(MonotonicSeconds());
  }
  using Sent = std::deque<std::pair<ConnectionId, v1::CoordinatorMessage>>;
  // Waits until something is sent, all messages are handled, or the limit.
  Sent Take(absl::Duration limit) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !sent_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&any), limit);
    return std::exchange(sent_, {});
  }
  bool idle() const {
    absl::MutexLock lock(&mutex_);
    return posted_.empty() && sent_.empty();
  }
  std::optional<absl::Status> replied() const {
    absl::MutexLock lock(&mutex_);
    return replied_;
  }
  nlohmann::ordered_json TakeLatencies() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(latencies_, {}).ToJson();
  }

 private:
  mutable absl::Mutex mutex_;
  Sent sent_ ABSL_GUARDED_BY(mutex_);
  std::deque<double> posted_ ABSL_GUARDED_BY(mutex_);
  Latencies latencies_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> replied_ ABSL_GUARDED_BY(mutex_);
};

class StartLoad {
 public:
  explicit StartLoad(const LoadOptions& options) : options_(options) {}
  ~StartLoad() {
    if (loop_ != nullptr) loop_->Stop();
  }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    CADRE_RETURN_IF_ERROR(SetUp());
    nlohmann::ordered_json result = {{"model", options_.model},
                                     {"groups", options_.groups()},
                                     {"ranks_per_group", options_.ranks_per_group}};
    CADRE_ASSIGN_OR_RETURN(result["first"], Phase([this] { JoinAll(); }));
    CADRE_ASSIGN_OR_RETURN(result["measured"], Phase([this] { SendMeasured(); }));
    CADRE_ASSIGN_OR_RETURN(result["again"], Phase([this] { RestartAll(); }));
    return result;
  }

 private:
  struct Joined {
    FakeMember member;
    ConnectionId connection = 0;
  };

  absl::Status SetUp() {
    CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpecOrZoo(options_.model));
    spec_ = file.spec;
    spec_.set_name("start");
    spec_.mutable_averaging()->set_every_steps(10);
    spec_.mutable_stop()->Clear();
    spec_.mutable_stop()->set_steps(1'000'000);
    spec_.mutable_cluster()->set_groups(options_.groups());
    spec_.mutable_cluster()->set_ranks_per_group(options_.ranks_per_group);
    layers_ = planning_.LayersOf(spec_.model());
    CADRE_ASSIGN_OR_RETURN(WorkFolder folder, WorkFolder::Make(""));
    folder_.emplace(std::move(folder));
    CADRE_ASSIGN_OR_RETURN(store_, SqliteStore::Open({.path = folder_->path() + "/store.db"}));
    Loop::Options loop;
    loop.machine = LoadMachineOptions(planning_);
    CADRE_ASSIGN_OR_RETURN(loop_, Loop::Start(std::move(loop), store_.get(), &callbacks_));
    for (int i = 0; i < kLoadAggregators; ++i) Add(v1::ROLE_AGGREGATOR, i);
    loop_->Post(SubmitRun{.request = 1, .spec = spec_, .lineage_seed = 7});
    const double end = MonotonicSeconds() + options_.setup_seconds;
    while (!callbacks_.replied().has_value() || !callbacks_.idle()) {
      if (MonotonicSeconds() > end) return absl::DeadlineExceededError("the run is not submitted");
      Deliver();
    }
    callbacks_.TakeLatencies();
    return *callbacks_.replied();
  }

  // Begins a phase, and waits until every group trains and every message is handled.
  absl::StatusOr<nlohmann::ordered_json> Phase(const std::function<void()>& begin) {
    const double start = MonotonicSeconds();
    begin();
    while (training_ < options_.groups() || !callbacks_.idle()) {
      Deliver();
      SendHeartbeats();
      if (MonotonicSeconds() > start + options_.setup_seconds) {
        return absl::DeadlineExceededError(absl::StrCat(training_, " of ", options_.groups(),
                                                        " groups have started after ",
                                                        options_.setup_seconds, " seconds"));
      }
    }
    nlohmann::ordered_json result = {{"seconds", Rounded(MonotonicSeconds() - start, 2)}};
    result.update({{"messages", callbacks_.TakeLatencies()}});
    return result;
  }

  void Add(v1::Role role, int number) {
    // A host for each worker, so that all links are measured.
    members_.push_back({.member = FakeMember(role, number, absl::StrCat("host-", number))});
    Join(members_.size() - 1);
  }
  void Join(size_t index) {
    Joined& joined = members_[index];
    joined.connection = ++last_connection_;
    owner_[joined.connection] = index;
    loop_->Post(StreamOpened{joined.connection});
    Post(joined.connection, joined.member.Hello());
  }
  void JoinAll() {
    for (int i = 0; i < options_.workers; ++i) Add(v1::ROLE_WORKER, i);
  }
  void RestartAll() {
    training_ = 0;
    for (size_t i = kLoadAggregators; i < members_.size(); ++i) {
      members_[i].member.Restart();
      Join(i);
    }
  }
  void Post(ConnectionId connection, v1::MemberMessage message) {
    callbacks_.NotePosted();
    loop_->Post(MessageReceived{connection, std::move(message)});
  }

  // At the interval that the members were told, so that no lease ends.
  void SendHeartbeats() {
    if (members_.empty() || MonotonicSeconds() < next_heartbeats_) return;
    next_heartbeats_ = MonotonicSeconds() + kHeartbeatSeconds;
    for (Joined& joined : members_) Post(joined.connection, joined.member.Heartbeat());
  }

  // Passes what was sent to the members, and posts their answers.
  void Deliver() {
    for (const auto& [connection, message] : callbacks_.Take(absl::Milliseconds(5))) {
      Joined& to = members_[owner_.at(connection)];
      if (to.connection != connection) continue;
      const bool led = to.member.leads();
      for (v1::MemberMessage& answer : to.member.Handle(message)) {
        if (answer.has_prepared() && answer.prepared().has_plan()) {
          SetLink(*answer.mutable_prepared()->mutable_plan()->mutable_link());
        }
        Post(connection, std::move(answer));
      }
      if (!led && to.member.leads()) ++training_;
    }
  }

  double Noisy(double value) {
    return value * std::uniform_real_distribution<double>(1 - kNoise, 1 + kNoise)(random_);
  }
  void SetLink(v1::LinkProfile& link) {
    link.set_kind(v1::LinkProfile::TCP);
    link.set_alpha(Noisy(100e-6));
    link.set_beta(Noisy(1e-9));
    link.set_gamma(Noisy(1e-10));
  }
  void SendMeasured() {
    for (Joined& joined : members_) {
      if (!joined.member.leads()) continue;
      v1::MemberMessage message;
      v1::Measured& measured = *message.mutable_measured();
      *measured.mutable_place() = joined.member.Progress().progress().place();
      measured.mutable_times()->set_step(Noisy(kStepSeconds));
      measured.set_update_seconds(Noisy(1e-10));
      for (const std::string& layer : layers_) {
        v1::LayerTime& time = *measured.mutable_layers()->add_time();
        time.set_layer(layer);
        time.set_samples(spec_.batch_per_group() / options_.ranks_per_group);
        time.set_forward(Noisy(1e-3));
        time.set_backward(Noisy(2e-3));
      }
      Post(joined.connection, std::move(message));
    }
  }

  const LoadOptions options_;
  const MeasuredPlanning planning_;
  v1::RunSpec spec_;
  std::vector<std::string> layers_;
  std::optional<WorkFolder> folder_;
  std::unique_ptr<SqliteStore> store_;
  Callbacks callbacks_;
  // The aggregators, then the workers.
  std::deque<Joined> members_;
  std::map<ConnectionId, size_t> owner_;
  ConnectionId last_connection_ = 0;
  double next_heartbeats_ = MonotonicSeconds() + kHeartbeatSeconds;
  // Groups that have started.
  int training_ = 0;
  std::mt19937_64 random_{1};
  std::unique_ptr<Loop> loop_;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureStart(const LoadOptions& options) {
  return StartLoad(options).Run();
}

}  // namespace cadre
