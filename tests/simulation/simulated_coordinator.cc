#include "tests/simulation/simulated_coordinator.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"
#include "tests/coordinator/store/memory_store.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kMinDowntime = absl::Milliseconds(100);
constexpr absl::Duration kMaxDowntime = absl::Seconds(14);
// Longest search of plans.
constexpr absl::Duration kMaxSearch = absl::Seconds(3);
constexpr absl::Duration kPrediction = absl::Milliseconds(30);
constexpr absl::Duration kMinStallTime = absl::Milliseconds(500);
constexpr absl::Duration kMaxStallTime = absl::Seconds(15);

int64_t CountWrites(const std::vector<Action>& actions) {
  return std::count_if(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<Store::Op>(action);
  });
}

// Whether the first message assigns a rank of a generation that a later one of them releases: the
// group was formed and ended by the same events, so the store never names the generation.
bool IsReleasedAgain(std::span<const Action> actions) {
  const auto* first = std::get_if<Send>(&actions.front());
  if (first == nullptr || !first->message.has_assignment()) return false;
  const std::string place = Describe(first->message.assignment().place());
  return absl::c_any_of(actions, [&](const Action& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && send->message.has_release() &&
           Describe(send->message.release().place()) == place;
  });
}

// The method of the coordinator's services that posts the event; null: it is no user's.
const char* MethodOf(const Event& event) {
  if (std::holds_alternative<SubmitRun>(event)) return "Submit";
  if (std::holds_alternative<StopRun>(event)) return "Stop";
  if (std::holds_alternative<ResumeRun>(event)) return "Resume";
  if (std::holds_alternative<RollBackRun>(event)) return "Rollback";
  if (std::holds_alternative<AdoptRuns>(event)) return "Adopt";
  if (std::holds_alternative<ScaleRun>(event)) return "Scale";
  if (std::holds_alternative<DeleteRun>(event)) return "Delete";
  if (std::holds_alternative<TraceGroup>(event)) return "Trace";
  if (std::holds_alternative<CordonMembers>(event)) return "Cordon";
  return nullptr;
}

// 0: the event is not a member's.
ConnectionId ConnectionOf(const Event& event) {
  if (const auto* opened = std::get_if<StreamOpened>(&event)) return opened->connection;
  if (const auto* received = std::get_if<MessageReceived>(&event)) return received->connection;
  if (const auto* closed = std::get_if<StreamClosed>(&event)) return closed->connection;
  return 0;
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
  started_ = world_.timeline.now();
  machine_ = std::make_unique<DurableMachine>(
      DurableMachine::Options{
          .machine = options_,
          .commit = [this](const std::vector<Store::Op>& ops) { return Commit(ops); },
          .on_handled =
              [this](const Event* event, const std::vector<Action>& actions) {
                handled_.push_back(actions);
                const char* const method = event != nullptr ? MethodOf(*event) : nullptr;
                if (method != nullptr) world_.Count(absl::StrCat("method_", method));
              },
          .find_limit = [] { return std::string(); }},
      Now());
  network_.Listen(endpoint_, {
                                 .opened = [this](ConnectionId c) { Take(StreamOpened{c}); },
                                 .message =
                                     [this](ConnectionId c, const v1::MemberMessage& m) {
                                       Take(MessageReceived{c, m});
                                     },
                                 .closed = [this](ConnectionId c) { Take(StreamClosed{c}); },
                             });
  testing::MemoryStore store(std::move(records));
  const absl::StatusOr<DurableMachine::Turn> turn =
      machine_->Restore(store, Now(), std::exchange(above_, 0));
  if (!turn.ok() && !crashes_) {
    world_.Violate("the store cannot be restored: ", turn.status().ToString());
    return;
  }
  EndTurn(turn);
}

void SimulatedCoordinator::Crash(std::optional<absl::Duration> downtime) {
  if (!up()) return;
  world_.Count("coordinator_kills");
  world_.Log("c", endpoint_, "    ends");
  End();
  world_.timeline.After(downtime.value_or(world_.dice.Between(kMinDowntime, kMaxDowntime)), life_,
                        [this] { Start(); });
}

void SimulatedCoordinator::BeginAgain(uint64_t above) {
  world_.Count("coordinator_epochs_raised");
  world_.Log("c", endpoint_, "    begins again above epoch ", above);
  End();
  above_ = above;
  world_.timeline.After(absl::ZeroDuration(), life_, [this] { Start(); });
}

void SimulatedCoordinator::End() {
  life_.End();
  turn_life_.End();
  machine_.reset();
  inbox_.clear();
  on_network_.clear();
  handled_.clear();
  in_turn_ = crashes_ = false;
  busy_until_ = stopped_until_ = absl::InfinitePast();
  waiting_.clear();
  orders_.clear();
  traces_.clear();
  network_.Unlisten(endpoint_);
}

void SimulatedCoordinator::JumpClock(absl::Duration by) {
  if (by == absl::ZeroDuration() || up()) return;
  world_.Count("coordinator_clock_jumps");
  ahead_ += by;
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
  // The answers may be among the actions of the present turn.
  if (in_turn_) return 0;
  const auto queued = [this](RequestId request) {
    const auto is_request = [request](const Event& event) {
      const auto* trace = std::get_if<cadre::TraceGroup>(&event);
      return trace != nullptr && trace->request == request;
    };
    const auto users = on_network_.find(0);
    return std::any_of(inbox_.begin(), inbox_.end(), is_request) ||
           (users != on_network_.end() &&
            std::any_of(users->second.begin(), users->second.end(), is_request));
  };
  return std::count_if(traces_.begin(), traces_.end(), [&](const auto& entry) {
    return !entry.second.cancelled && !entry.second.answered && !queued(entry.first);
  });
}

// ---- The loop

absl::Time SimulatedCoordinator::Now() const {
  return ahead_ + (world_.plant == Plant::kNoTicks ? started_ : world_.timeline.now());
}

absl::Duration SimulatedCoordinator::BeginStall() {
  world_.Count("coordinator_stalls");
  const absl::Duration length = world_.dice.Between(kMinStallTime, kMaxStallTime);
  busy_until_ = world_.timeline.now() + length;
  return length;
}

void SimulatedCoordinator::Take(Event event) {
  const absl::Time now = world_.timeline.now();
  if (!stalled() && world_.dice.Chance(world_.faults.stall)) {
    world_.Log("c", endpoint_, "    is stopped for ", absl::FormatDuration(BeginStall()));
    stopped_until_ = busy_until_;
  }
  const ConnectionId connection = ConnectionOf(event);
  if (now < stopped_until_ || on_network_.contains(connection)) {
    const auto [waiting, is_first] = on_network_.try_emplace(connection);
    waiting->second.push_back(std::move(event));
    if (!is_first) return;
    const absl::Duration later = world_.dice.Between(absl::ZeroDuration(), kReceiveTime);
    return world_.timeline.At(stopped_until_ + later, life_,
                              [this, connection] { Receive(connection); });
  }
  inbox_.push_back(std::move(event));
  if (inbox_.size() == 1) ScheduleTurn(now);  // All waiting events are handled together.
}

void SimulatedCoordinator::Receive(ConnectionId connection) {
  std::vector<Event> waiting = std::move(on_network_.extract(connection).mapped());
  std::move(waiting.begin(), waiting.end(), std::back_inserter(inbox_));
  ScheduleTurn(world_.timeline.now());
}

void SimulatedCoordinator::ScheduleTurn(absl::Time when) {
  if (in_turn_) return;
  turn_life_.End();
  world_.timeline.At(std::max(when, busy_until_), turn_life_, [this] { RunTurn(); });
}

void SimulatedCoordinator::RunTurn() {
  if (stalled()) return ScheduleTurn(busy_until_);
  const std::vector<Event> events = std::exchange(inbox_, {});
  in_turn_ = true;
  handled_.clear();
  const absl::StatusOr<DurableMachine::Turn> turn = machine_->Handle(events, Now());
  world_.Count("coordinator_events", events.size());
  if (!turn.ok() && !crashes_) world_.Violate("a turn fails: ", turn.status().ToString());
  if (turn.ok() && turn->stall > absl::ZeroDuration()) world_.Count("coordinator_stalls_noticed");
  // What is sent although nothing has changed.
  if (turn.ok() && !handled_.empty()) Check({});
  if (!crashes_ && world_.dice.Chance(world_.faults.stall)) {
    world_.Log("c", endpoint_, "    has a slow store for ", absl::FormatDuration(BeginStall()));
    world_.timeline.At(busy_until_, life_, [this, turn] { EndTurn(turn); });
  } else {
    EndTurn(turn);
  }
}

void SimulatedCoordinator::EndTurn(const absl::StatusOr<DurableMachine::Turn>& turn) {
  in_turn_ = false;
  if (turn.ok()) CarryOut(turn->actions);
  if (crashes_) return Crash();
  if (!up()) return;
  if (turn.ok()) {
    for (const Action& action : turn->actions) {
      if (const auto* again = std::get_if<cadre::BeginAgain>(&action)) {
        return BeginAgain(again->above);
      }
    }
  }
  const absl::Time now = world_.timeline.now();
  const absl::Time until = machine_->BeginWait(Now()) - ahead_;
  if (!inbox_.empty()) return ScheduleTurn(now);
  if (world_.plant == Plant::kNoTicks || until == absl::InfiniteFuture()) return;
  // Otherwise, a deadline that a Tick does not resolve would be scheduled again without end.
  ScheduleTurn(std::max(until, now + absl::Milliseconds(1)));
}

absl::Status SimulatedCoordinator::Commit(const std::vector<Store::Op>& ops) {
  if (world_.plant == Plant::kSendBeforeCommit &&
      world_.dice.Chance(world_.faults.crash_before_commit * 20)) {
    crashes_ = true;
    handled_.clear();
    return absl::OkStatus();
  }
  crashes_ = world_.dice.Chance(world_.faults.crash_before_commit);
  if (crashes_) {
    world_.Count("crashes_before_commit");
    return absl::AbortedError("the process crashes before the transaction");
  }
  world_.Count("transactions");
  // The start of the process is no event.
  if (handled_.empty()) handled_.emplace_back(ops.begin(), ops.end());
  Check(ops);
  crashes_ = world_.dice.Chance(world_.faults.crash_after_commit);
  if (!crashes_) return absl::OkStatus();
  world_.Count("crashes_after_commit");
  return absl::AbortedError("the process crashes after the transaction");
}

void SimulatedCoordinator::Check(std::span<const Store::Op> ops) {
  for (const std::vector<Action>& actions : std::exchange(handled_, {})) {
    const size_t writes = CountWrites(actions);
    if (writes > ops.size()) return world_.Violate("a transaction lacks operations of its events");
    if (writes > 0) {
      std::map<std::string, std::string> after = store_;
      const bool loses_one = world_.plant == Plant::kLoseOneWrite && writes > 1;
      for (const Store::Op& op : ops.first(loses_one ? writes - 1 : writes)) {
        testing::ApplyTo(after, op);
      }
      if (world_.plant == Plant::kDropGroupRecords) {
        testing::ApplyTo(after, {Store::Op::Kind::kErasePrefix, kGroupPrefix, ""});
      }
      invariants_.OnTransaction(endpoint_, store_, after);
      store_ = std::move(after);
      ops = ops.subspan(writes);
    }
    for (size_t i = 0; i < actions.size(); ++i) {
      const auto* sent = std::get_if<Send>(&actions[i]);
      if (sent == nullptr || IsReleasedAgain(std::span(actions).subspan(i))) continue;
      invariants_.OnSent(store_, sent->message);
    }
  }
  if (!ops.empty()) world_.Violate("a transaction has operations of no event");
}

void SimulatedCoordinator::CarryOut(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      network_.Down(send->connection, send->message);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      network_.EndByServer(disconnect->connection);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      Reply(*replied);
    } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
      Plan(cadre::Answer(*options_.planning, *search),
           world_.dice.Between(absl::ZeroDuration(), kMaxSearch));
    } else if (const auto* predict = std::get_if<PredictStep>(&action)) {
      Plan(cadre::Answer(*options_.planning, *predict), kPrediction);
    }
  }
}

void SimulatedCoordinator::Plan(Event answer, absl::Duration time) {
  world_.timeline.After(time, life_, [this, answer = std::move(answer)] { Take(answer); });
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
