// One iteration takes all waiting items, passes the events to the machine, commits all records in
// one transaction, performs the other actions, runs queries and notifies the watchers. Batching
// makes the cost of the fsync independent of the number of events: under load, more events share
// it. Queries have a queue of their own and at most kQueryTime of an iteration, so they delay no
// event for longer, however many there are.
//
// A stalled process (a slow disk, SIGSTOP, a suspended machine) must not expire the leases of
// members whose messages wait in the queue or on the network. Two measures prevent it: Tick follows
// all events of a batch, and a stall extends the leases once (stall_monitor.h).
//
// If the store fails, the loop stops: the machine is ahead of the store, so none of its decisions
// may be sent. The restarted process continues from the last transaction.
#include "coordinator/service/loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Limits of waiting events and queries.
constexpr size_t kMaxWaitingItems = 4096;
constexpr size_t kMaxWaitingQueries = 256;
constexpr absl::Duration kQueryTime = absl::Milliseconds(10);
// How often a limit of the process is looked for, and how long there must be room again:
// connections that come and go at the limit are one event.
constexpr absl::Duration kProbeEvery = absl::Seconds(1);
constexpr absl::Duration kRoomTime = absl::Minutes(1);

}  // namespace

Loop::Loop(Options options, Store* store, Callbacks* callbacks)
    : options_(std::move(options)),
      store_(store),
      callbacks_(callbacks),
      machine_(options_.machine),
      queue_(kMaxWaitingItems),
      queries_(kMaxWaitingQueries),
      last_read_(clock_.Now()) {}

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(Options options, Store* store,
                                                  Callbacks* callbacks) {
  auto loop = std::unique_ptr<Loop>(new Loop(std::move(options), store, callbacks));
  CADRE_RETURN_IF_ERROR(loop->Restore());
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  loop->search_thread_ = std::thread([raw = loop.get()] { raw->Search(); });
  return loop;
}

Loop::~Loop() { Stop(); }

// A run may have many commits; only the newest and the ones next to it are needed.
absl::Status Loop::Restore() {
  std::map<std::string, std::string> records;
  for (const absl::string_view prefix :
       {kMetaKey, kMemberPrefix, kRunPrefix, kSpecPrefix, kDeletedPrefix, kGroupPrefix,
        kProfilePrefix, kStandingPrefix, kLostRankPrefix, kHistoryPrefix, kEventPrefix}) {
    CADRE_ASSIGN_OR_RETURN(auto found, store_->Scan(prefix));
    records.merge(found);
  }
  std::map<std::string, std::string> commits;
  for (const auto& [key, bytes] : records) {
    v1::RunRecord run;
    if (key.rfind(kRunPrefix, 0) != 0 || !run.ParseFromString(bytes)) continue;
    for (uint32_t round = run.version() - std::min(run.version(), 1U); round <= run.version() + 1;
         ++round) {
      const std::string commit = CommitKey(run.run(), round);
      CADRE_ASSIGN_OR_RETURN(auto value, store_->Get(commit));
      if (value.has_value()) commits[commit] = *std::move(value);
    }
  }
  records.merge(commits);
  CADRE_ASSIGN_OR_RETURN(const auto actions, machine_.Restore(records, clock_.Now()));
  return PersistAll(actions);
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

void Loop::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
  searches_.Close();
  if (search_thread_.joinable()) search_thread_.join();
}

void Loop::Search() {
  while (const std::optional<SearchPlans> search = searches_.Pop()) {
    if (queue_.closed()) return;
    Post(PlansFound{search->run, search->key, options_.machine.planning->PlansFor(search->query)});
  }
}

void Loop::Run() {
  absl::Time next_call = absl::InfiniteFuture();
  while (true) {
    const absl::Time probe = options_.find_limit ? next_probe_ : absl::InfiniteFuture();
    const absl::Time wake = std::min({machine_.NextDeadline(), next_call, probe});
    const absl::Time begin = clock_.Now();
    const std::vector<Item> items = Take(wake);
    if (items.empty() && queue_.closed()) return;
    const absl::Time read = clock_.Now();
    // The time since the last read, except for the wait for messages.
    const absl::Duration late = std::max(read - std::max(wake, begin), absl::ZeroDuration());
    const std::vector<Action> actions = Handle(items, begin - last_read_ + late);
    last_read_ = read;
    if (const absl::Status persisted = PersistAll(actions); !persisted.ok()) {
      LOG(ERROR) << "cannot write to the store; stopping without acting on the decisions: "
                 << persisted;
      queue_.Close();
      if (options_.on_failure) options_.on_failure(persisted);
      return;
    }
    Deliver(actions);
    const bool more = RunQueries();
    const absl::Time now = clock_.Now();
    turns_.Observe(now - read);
    next_call = more ? now : callbacks_->OnSettled(machine_, now);
  }
}

bool Loop::RunQueries() {
  const absl::Time until = clock_.Now() + kQueryTime;
  while (const std::optional<Query> query = queries_.PopBefore(absl::InfinitePast())) {
    const absl::Time now = clock_.Now();
    (*query)(machine_, now);
    if (now >= until) return true;
  }
  return false;
}

std::vector<Loop::Item> Loop::Take(absl::Time wake) {
  std::vector<Item> items;
  // The queue's deadline is wall-clock time.
  const absl::Time until =
      wake == absl::InfiniteFuture() ? wake : absl::Now() + (wake - clock_.Now());
  std::optional<Item> item = queue_.PopBefore(until);
  while (item.has_value()) {
    items.push_back(*std::move(item));
    if (items.size() >= kMaxWaitingItems) break;
    item = queue_.PopBefore(absl::InfinitePast());
  }
  return items;
}

std::vector<Action> Loop::Handle(const std::vector<Item>& items, absl::Duration unread) {
  std::vector<Action> actions;
  auto handle = [&](const Event& event) {
    for (Action& action : machine_.Handle(event, clock_.Now())) {
      actions.push_back(std::move(action));
    }
  };
  if (const absl::Duration stall = stall_monitor_.OnRead(unread); stall > absl::ZeroDuration()) {
    LOG(WARNING) << "stalled for " << stall;
    handle(Stalled{stall});
  }
  if (const auto limit = ProbeLimit()) {
    LOG_IF(ERROR, !limit->limit.empty()) << limit->limit;
    handle(*limit);
  }
  for (const Item& item : items) {
    const Event* const event = std::get_if<Event>(&item);
    if (event == nullptr) continue;
    handle(*event);
    const auto* message = std::get_if<MessageReceived>(event);
    if (message != nullptr) callbacks_->OnHandled(message->connection);
  }
  if (clock_.Now() >= machine_.NextDeadline()) handle(Tick{});
  return actions;
}

std::optional<LimitReached> Loop::ProbeLimit() {
  const absl::Time now = clock_.Now();
  if (!options_.find_limit || now < next_probe_) return std::nullopt;
  next_probe_ = now + kProbeEvery;
  const std::string limit = options_.find_limit();
  if (!limit.empty()) limit_at_ = now;
  if (limit == limit_ || (limit.empty() && now < limit_at_ + kRoomTime)) return std::nullopt;
  limit_ = limit;
  return LimitReached{limit};
}

absl::Status Loop::PersistAll(const std::vector<Action>& actions) {
  std::vector<Store::Op> ops;
  for (const Action& action : actions) {
    if (const auto* op = std::get_if<Store::Op>(&action)) ops.push_back(*op);
  }
  if (ops.empty()) return absl::OkStatus();
  const absl::Time begin = clock_.Now();
  const absl::Status committed = store_->Commit(ops);
  commits_.Observe(clock_.Now() - begin);
  return committed;
}

void Loop::Deliver(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      callbacks_->OnSend(send->connection, send->message);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      callbacks_->OnDisconnect(disconnect->connection, disconnect->status);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      callbacks_->OnReplied(*replied);
    } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
      searches_.Push(*search);
    }
  }
}

}  // namespace cadre
