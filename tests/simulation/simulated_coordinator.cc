#include "tests/simulation/simulated_coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kMinDowntime = absl::Milliseconds(100);
constexpr absl::Duration kMaxDowntime = absl::Seconds(14);
// Longest search of plans.
constexpr absl::Duration kMaxSearch = absl::Seconds(3);

bool Writes(const std::vector<Action>& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<Store::Op>(action);
  });
}

}  // namespace

void SimulatedCoordinator::Start() {
  world_.Count("coordinator_starts");
  world_.Log("c", endpoint_, "    starts");
  if (world_.plant == Plant::kReuseGeneration && store_.count(kMetaKey) != 0) {
    v1::MetaRecord meta = this->meta();
    meta.set_generation(0);
    store_[kMetaKey] = meta.SerializeAsString();
  }
  std::map<std::string, std::string> records = store_;
  if (world_.plant == Plant::kForgetStore) records.clear();
  if (world_.plant == Plant::kForgetMeta) records.erase(kMetaKey);
  machine_ = std::make_unique<Machine>(options_);
  inbox_.clear();
  busy_until_ = absl::InfinitePast();
  expire_from_ = absl::InfinitePast();
  network_.Listen(endpoint_, {
                                 .opened = [this](ConnectionId c) { Take(StreamOpened{c}); },
                                 .message =
                                     [this](ConnectionId c, const v1::MemberMessage& m) {
                                       Take(MessageReceived{c, m});
                                     },
                                 .closed = [this](ConnectionId c) { Take(StreamClosed{c}); },
                             });
  const absl::StatusOr<std::vector<Action>> actions =
      machine_->Restore(records, world_.timeline.now());
  if (!actions.ok()) {
    world_.Violate("the store cannot be restored: ", actions.status().ToString());
    return;
  }
  if (Perform({*actions})) ArmTick();
}

void SimulatedCoordinator::Crash(std::optional<absl::Duration> downtime) {
  if (!up()) return;
  world_.Count("coordinator_kills");
  world_.Log("c", endpoint_, "    ends");
  life_.End();
  tick_life_.End();
  machine_.reset();
  inbox_.clear();
  waiting_.clear();
  orders_.clear();
  traces_.clear();
  network_.Unlisten(endpoint_);
  world_.timeline.After(downtime.value_or(world_.dice.Between(kMinDowntime, kMaxDowntime)), life_,
                        [this] { Start(); });
}

void SimulatedCoordinator::Stop() {
  Crash();
  life_.End();
}

v1::MetaRecord SimulatedCoordinator::meta() const {
  v1::MetaRecord meta;
  if (const auto found = store_.find(kMetaKey); found != store_.end()) {
    meta.ParseFromString(found->second);
  }
  return meta;
}

void SimulatedCoordinator::Submit(const v1::RunSpec& spec,
                                  std::function<void(const std::string&)> done) {
  if (!up()) return;
  const RequestId request = ++last_request_;
  waiting_[request] = std::move(done);
  Take(SubmitRun{.request = request, .spec = spec, .lineage_seed = world_.dice.Bits()});
}

void SimulatedCoordinator::StopRun(const std::string& run) {
  if (!up()) return;
  world_.Log("user  stops ", run);
  Take(cadre::StopRun{.request = ++last_request_, .run = run, .reason = "enough"});
}

void SimulatedCoordinator::TraceGroup(const std::string& run, uint32_t group, uint32_t steps,
                                      absl::Duration patience) {
  if (!up()) return;
  const RequestId request = ++last_request_;
  world_.Count("traces");
  world_.Log("user  requests a trace of group ", group, " of ", run);
  traces_[request] = {.steps = steps};
  Take(cadre::TraceGroup{.request = request, .run = run, .group = group, .steps = steps});
  if (patience == absl::InfiniteDuration()) return;
  world_.timeline.After(patience, life_, [this, request] {
    const auto it = traces_.find(request);
    if (it == traces_.end() || it->second.answered) return;
    it->second.cancelled = true;
    world_.Count("traces_cancelled");
    Take(CancelTrace{request});
  });
}

int64_t SimulatedCoordinator::traces_waiting() const {
  const auto queued = [this](RequestId request) {
    return std::any_of(inbox_.begin(), inbox_.end(), [request](const Event& event) {
      const auto* trace = std::get_if<cadre::TraceGroup>(&event);
      return trace != nullptr && trace->request == request;
    });
  };
  return std::count_if(traces_.begin(), traces_.end(), [&](const auto& entry) {
    return !entry.second.cancelled && !entry.second.answered && !queued(entry.first);
  });
}

void SimulatedCoordinator::Take(Event event) {
  const absl::Time now = world_.timeline.now();
  inbox_.push_back(std::move(event));
  if (inbox_.size() > 1) return;  // All waiting events are handled together.
  if (now >= busy_until_ && world_.dice.Chance(world_.faults.stall)) {
    world_.Count("coordinator_stalls");
    busy_until_ = now + world_.dice.Between(absl::Milliseconds(500), absl::Seconds(15));
    expire_from_ = busy_until_ + 2 * options_.heartbeat;
  }
  world_.timeline.At(std::max(now, busy_until_), life_, [this] { HandleInbox(); });
}

void SimulatedCoordinator::HandleInbox() {
  std::vector<Event> events;
  events.swap(inbox_);
  const absl::Time now = world_.timeline.now();
  Batch batch;
  const auto handle = [&](const Event& event) {
    world_.Count("coordinator_events");
    batch.push_back(machine_->Handle(event, now));
  };
  for (const Event& event : events) handle(event);
  const bool due = now >= machine_->NextDeadline() && now >= expire_from_;
  if (due && world_.plant != Plant::kNoTicks) handle(Tick{});
  if (Perform(batch)) ArmTick();
}

void SimulatedCoordinator::ArmTick() {
  if (world_.plant == Plant::kNoTicks) return;
  tick_life_.End();
  const absl::Time due = std::max({machine_->NextDeadline(), expire_from_, busy_until_});
  if (due == absl::InfiniteFuture()) return;
  // Otherwise, a deadline that a Tick does not resolve would be scheduled again without end.
  const absl::Time soonest = world_.timeline.now() + absl::Milliseconds(1);
  world_.timeline.At(std::max(due, soonest), tick_life_, [this] {
    if (inbox_.empty()) HandleInbox();
  });
}

bool SimulatedCoordinator::Perform(const Batch& batch) {
  if (world_.plant == Plant::kSendBeforeCommit &&
      world_.dice.Chance(world_.faults.crash_before_commit * 20)) {
    SendBatch(batch);
    Crash();
    return false;
  }
  if (!Commit(batch)) return false;
  SendBatch(batch);
  return up();
}

bool SimulatedCoordinator::Commit(const Batch& batch) {
  const auto send = [this](const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* sent = std::get_if<Send>(&action)) invariants_.OnSent(store_, sent->message);
    }
  };
  if (std::none_of(batch.begin(), batch.end(), Writes)) {
    std::for_each(batch.begin(), batch.end(), send);
    return true;
  }
  if (world_.dice.Chance(world_.faults.crash_before_commit)) {
    world_.Count("crashes_before_commit");
    Crash();
    return false;
  }
  world_.Count("transactions");
  for (const std::vector<Action>& actions : batch) {
    if (Writes(actions)) {
      std::map<std::string, std::string> after = store_;
      std::vector<Store::Op> ops;
      for (const Action& action : actions) {
        if (const auto* op = std::get_if<Store::Op>(&action)) ops.push_back(*op);
      }
      if (world_.plant == Plant::kLoseOneWrite && ops.size() > 1) ops.pop_back();
      for (const Store::Op& op : ops) testing::ApplyTo(after, op);
      if (world_.plant == Plant::kDropGroupRecords) {
        testing::ApplyTo(after, {Store::Op::Kind::kErasePrefix, kGroupPrefix, ""});
      }
      invariants_.OnTransaction(endpoint_, store_, after);
      store_ = std::move(after);
    }
    send(actions);
  }
  if (world_.dice.Chance(world_.faults.crash_after_commit)) {
    world_.Count("crashes_after_commit");
    Crash();
    return false;
  }
  return true;
}

void SimulatedCoordinator::SendBatch(const Batch& batch) {
  for (const std::vector<Action>& actions : batch) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) {
        network_.Down(send->connection, send->message);
      } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
        network_.EndByServer(disconnect->connection);
      } else if (const auto* replied = std::get_if<Replied>(&action)) {
        Reply(*replied);
      } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
        Search(*search);
      }
    }
  }
}

void SimulatedCoordinator::Search(const SearchPlans& search) {
  PlansFound found{search.run, search.key, options_.planning->PlansFor(search.query)};
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), kMaxSearch), life_,
                        [this, found = std::move(found)] { Take(found); });
}

void SimulatedCoordinator::Reply(const Replied& replied) {
  if (traces_.contains(replied.request)) return Answer(replied);
  if (const auto order = orders_.extract(replied.request)) return order.mapped()(replied);
  auto it = waiting_.find(replied.request);
  if (it == waiting_.end()) return;
  const auto done = std::move(it->second);
  waiting_.erase(it);
  if (!replied.status.ok()) {
    world_.Violate("a valid run is refused: ", replied.status.ToString());
    return;
  }
  invariants_.OnSubmitted(store_, replied.run);
  done(replied.run);
}

void SimulatedCoordinator::Answer(const Replied& answered) {
  WaitingTrace& trace = traces_[answered.request];
  const uint32_t steps = trace.steps;
  if (std::exchange(trace.answered, true)) world_.Violate("a trace is answered twice");
  if (absl::IsAborted(answered.status)) return world_.Count("traces_aborted");
  // The run was scaled or deleted.
  if (absl::IsNotFound(answered.status)) return world_.Count("traces_of_no_group");
  if (absl::IsFailedPrecondition(answered.status)) return world_.Count("traces_too_early_or_late");
  if (absl::IsResourceExhausted(answered.status)) return world_.Count("traces_refused_as_second");
  if (!answered.status.ok()) {
    world_.Violate("a trace is answered with ", answered.status.ToString());
    return;
  }
  world_.Count("traces_complete");
  for (int i = 0; i < answered.trace.ranks_size(); ++i) {
    const v1::RankTrace& rank = answered.trace.ranks(i);
    const bool complete = rank.rank() == int64_t{i} && rank.events_size() == int64_t{steps};
    if (!complete) world_.Violate("a trace of ", steps, " steps is ", rank.ShortDebugString());
  }
  if (answered.trace.ranks().empty()) world_.Violate("a trace without ranks");
}

}  // namespace cadre::simulation
