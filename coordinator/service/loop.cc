// One iteration takes all waiting items, passes the events to the machine, which commits all their
// records in one transaction, carries out the actions that it returns, runs queries and notifies
// the watchers. Batching makes the cost of the fsync independent of the number of events: under
// load, more events share it. Queries have a queue of their own and at most kQueryTime of an
// iteration, so they delay no event for longer, however many there are.
//
// If the store fails, the loop stops: the machine is ahead of the store, so none of its decisions
// may be sent. The restarted process continues from the last transaction.
#include "coordinator/service/loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"

namespace cadre {
namespace {

// Limits of waiting events and queries.
constexpr size_t kMaxWaitingItems = 4096;
constexpr size_t kMaxWaitingQueries = 256;
constexpr absl::Duration kQueryTime = absl::Milliseconds(10);

}  // namespace

Loop::Loop(Options options, Store* store, Callbacks* callbacks)
    : options_(std::move(options)),
      store_(store),
      callbacks_(callbacks),
      queue_(kMaxWaitingItems),
      queries_(kMaxWaitingQueries) {}

DurableMachine::Options Loop::MachineOptions() {
  return {.machine = options_.machine,
          .commit = [this](const std::vector<Store::Op>& ops) { return Commit(ops); },
          .on_handled =
              [this](const Event* event, const std::vector<Action>&) {
                const auto* message = std::get_if<MessageReceived>(event);
                if (message != nullptr) callbacks_->OnHandled(message->connection);
              },
          .find_limit = options_.find_limit};
}

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(Options options, Store* store,
                                                  Callbacks* callbacks) {
  auto loop = std::unique_ptr<Loop>(new Loop(std::move(options), store, callbacks));
  CADRE_RETURN_IF_ERROR(loop->Begin(/*above=*/0));
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  loop->planning_thread_ = std::thread([raw = loop.get()] { raw->Plan(); });
  return loop;
}

Loop::~Loop() {
  Stop();
  if (planning_thread_.joinable()) planning_thread_.join();
}

absl::Status Loop::Begin(uint64_t above) {
  const absl::Time now = clock_.Now();
  machine_.emplace(MachineOptions(), now);
  CADRE_ASSIGN_OR_RETURN(const DurableMachine::Turn restored,
                         machine_->Restore(*store_, now, above));
  Deliver(restored.actions);
  return absl::OkStatus();
}

// The member's stream has ended, also if the coordinator does not begin again yet: the member joins
// again and claims its epoch then.
absl::Status Loop::BeginAbove(uint64_t above) {
  const absl::Time now = clock_.Now();
  if (!begin_limit_.Take(now)) {
    LOG_EVERY_N(WARNING, 100) << "a member knows epoch " << above << "; beginning again in "
                              << begin_limit_.next() - now
                              << " at the earliest, after several times in succession";
    return absl::OkStatus();
  }
  LOG(WARNING) << "a member knows epoch " << above << "; beginning again above it";
  callbacks_->OnBegunAgain();
  return Begin(above);
}

bool Loop::Post(Event event) { return queue_.Push(Item(std::move(event))); }

absl::Status Loop::RunQuery(Query query) {
  if (queue_.closed()) return absl::UnavailableError("the coordinator is stopping");
  if (!queries_.TryPush(std::move(query))) {
    return BusyError("too many queries are waiting");
  }
  // If there is no room, the loop is awake.
  queue_.TryPush(Wake());
  return absl::OkStatus();
}

void Loop::Close() { queue_.Close(); }

void Loop::Stop() {
  Close();
  if (thread_.joinable()) thread_.join();
  planning_.Close();
}

void Loop::Plan() {
  while (const std::optional<PlanningWork> work = planning_.Pop()) {
    if (queue_.closed()) return;
    Post(Answer(*options_.machine.planning, *work));
  }
}

void Loop::Run() {
  absl::Time next_call = absl::InfiniteFuture();
  while (true) {
    const std::vector<Event> events = Take(machine_->BeginWait(clock_.Now(), next_call));
    if (events.empty() && queue_.closed()) return;
    const absl::Time read = clock_.Now();
    const absl::StatusOr<DurableMachine::Turn> turn = machine_->Handle(events, read);
    if (!turn.ok()) return Fail(turn.status());
    LOG_IF(WARNING, turn->stall > absl::ZeroDuration()) << "stalled for " << turn->stall;
    LOG_IF(ERROR, !turn->limit.empty()) << turn->limit;
    if (const std::optional<uint64_t> above = Deliver(turn->actions)) {
      const absl::Status begun = BeginAbove(*above);
      if (!begun.ok()) return Fail(begun);
    }
    const bool more = RunQueries();
    const absl::Time now = clock_.Now();
    turns_.Observe(now - read);
    next_call = more ? now : callbacks_->OnSettled(machine_->machine(), now);
  }
}

void Loop::Fail(const absl::Status& status) {
  LOG(ERROR) << "cannot write to the store; stopping without acting on the decisions: " << status;
  queue_.Close();
  if (options_.on_failure) options_.on_failure(status);
}

bool Loop::RunQueries() {
  const absl::Time until = clock_.Now() + kQueryTime;
  while (const std::optional<Query> query = queries_.PopBefore(absl::InfinitePast())) {
    const absl::Time now = clock_.Now();
    (*query)(machine_->machine(), now);
    if (now >= until) return true;
  }
  return false;
}

std::vector<Event> Loop::Take(absl::Time wake) {
  std::vector<Event> events;
  // The queue's deadline is wall-clock time.
  const absl::Time until =
      wake == absl::InfiniteFuture() ? wake : absl::Now() + (wake - clock_.Now());
  std::optional<Item> item = queue_.PopBefore(until);
  while (item.has_value()) {
    if (auto* const event = std::get_if<Event>(&*item)) events.push_back(std::move(*event));
    if (events.size() >= kMaxWaitingItems) break;
    item = queue_.PopBefore(absl::InfinitePast());
  }
  return events;
}

absl::Status Loop::Commit(const std::vector<Store::Op>& ops) {
  const absl::Time begin = clock_.Now();
  const absl::Status committed = store_->Commit(ops);
  commits_.Observe(clock_.Now() - begin);
  return committed;
}

std::optional<uint64_t> Loop::Deliver(const std::vector<Action>& actions) {
  std::optional<uint64_t> again;
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      callbacks_->OnSend(send->connection, send->message);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      callbacks_->OnDisconnect(disconnect->connection, disconnect->status);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      callbacks_->OnReplied(*replied);
    } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
      planning_.Push(*search);
    } else if (const auto* predict = std::get_if<PredictStep>(&action)) {
      planning_.Push(*predict);
    } else if (const auto* begin = std::get_if<BeginAgain>(&action)) {
      again = std::max(again.value_or(0), begin->above);
    }
  }
  return again;
}

}  // namespace cadre
