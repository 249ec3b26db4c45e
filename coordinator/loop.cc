#include "coordinator/loop.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "coordinator/keys.h"

namespace cadre {
namespace {

// A turn of the loop that comes so much later than planned was held up.
constexpr absl::Duration kDelay = absl::Seconds(1);

}  // namespace

AnchoredClock::AnchoredClock() : wall_(absl::Now()), steady_(std::chrono::steady_clock::now()) {}

absl::Time AnchoredClock::Now() const {
  return wall_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_);
}

Loop::Loop(Options options, Store* store, const Clock* clock, Outlet* outlet)
    : options_(std::move(options)),
      store_(store),
      clock_(clock),
      outlet_(outlet),
      machine_(options_.machine),
      queue_(options_.queue_capacity),
      last_turn_(clock->Now()) {}

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(Options options, Store* store, const Clock* clock,
                                                  Outlet* outlet) {
  auto loop = std::unique_ptr<Loop>(new Loop(std::move(options), store, clock, outlet));
  CADRE_RETURN_IF_ERROR(loop->Restore());
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

Loop::~Loop() { Stop(); }

// Of the commits only each run's newest and its neighbours are needed; all of them could be many.
absl::Status Loop::Restore() {
  std::map<std::string, std::string> records;
  for (const absl::string_view prefix :
       {kMetaKey, kMemberPrefix, kRunPrefix, kGroupPrefix, kProfilePrefix}) {
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
  CADRE_ASSIGN_OR_RETURN(const auto actions, machine_.Restore(records, clock_->Now()));
  return Keep(actions);
}

bool Loop::Post(Event event) { return queue_.Push(Item(std::move(event))); }

bool Loop::Ask(Question question) { return queue_.Push(Item(std::move(question))); }

void Loop::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

void Loop::Run() {
  absl::Time called_again = absl::InfiniteFuture();
  while (true) {
    const absl::Time wake = NextWake(called_again);
    const std::vector<Item> items = Take(wake);
    if (items.empty() && queue_.closed()) return;
    NoticeDelay(std::max(wake, last_turn_));
    const absl::Time began = clock_->Now();
    const std::vector<Action> actions = Handle(items);
    if (const absl::Status kept = Keep(actions); !kept.ok()) {
      LOG(ERROR) << "what was decided cannot be kept, so nothing of it is done: " << kept;
      queue_.Close();
      if (options_.on_failure) options_.on_failure(kept);
      return;
    }
    Deliver(actions);
    const absl::Time now = clock_->Now();
    for (const Item& item : items) {
      if (const Question* question = std::get_if<Question>(&item)) (*question)(machine_, now);
    }
    called_again = outlet_->OnSettled(machine_, now);
    NoticeDelay(began);
    last_turn_ = clock_->Now();
  }
}

absl::Time Loop::NextWake(absl::Time called_again) const {
  return std::min(std::max(machine_.NextDeadline(), judge_from_), called_again);
}

std::vector<Loop::Item> Loop::Take(absl::Time wake) {
  std::vector<Item> items;
  // The queue waits by the time of day.
  const absl::Time until =
      wake == absl::InfiniteFuture() ? wake : absl::Now() + (wake - clock_->Now());
  std::optional<Item> item = queue_.PopBefore(until);
  while (item.has_value()) {
    items.push_back(*std::move(item));
    if (items.size() >= options_.queue_capacity) break;
    item = queue_.PopBefore(absl::InfinitePast());
  }
  return items;
}

// After a delay of our own (a slow disk, a stopped process) members get two heartbeats' time to be
// heard before their silence counts.
void Loop::NoticeDelay(absl::Time expected) {
  const absl::Time now = clock_->Now();
  if (now <= expected + kDelay) return;
  LOG(WARNING) << "held up for " << now - expected;
  judge_from_ = now + 2 * options_.machine.heartbeat;
}

std::vector<Action> Loop::Handle(const std::vector<Item>& items) {
  std::vector<Action> actions;
  auto handle = [&](const Event& event) {
    for (Action& action : machine_.Handle(event, clock_->Now())) {
      actions.push_back(std::move(action));
    }
  };
  for (const Item& item : items) {
    if (const Event* event = std::get_if<Event>(&item)) handle(*event);
  }
  const absl::Time now = clock_->Now();
  if (now >= machine_.NextDeadline() && now >= judge_from_) handle(Tick{});
  return actions;
}

absl::Status Loop::Keep(const std::vector<Action>& actions) {
  std::vector<Store::Op> ops;
  for (const Action& action : actions) {
    if (const auto* persist = std::get_if<Persist>(&action)) {
      ops.push_back({Store::Op::Kind::kPut, persist->key, persist->value});
    } else if (const auto* erase = std::get_if<Erase>(&action)) {
      ops.push_back({erase->prefix ? Store::Op::Kind::kErasePrefix : Store::Op::Kind::kErase,
                     erase->key, ""});
    }
  }
  return ops.empty() ? absl::OkStatus() : store_->Txn({}, ops);
}

void Loop::Deliver(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      outlet_->OnSend(send->connection, send->message);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      outlet_->OnDisconnect(disconnect->connection, disconnect->status);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      outlet_->OnReplied(*replied);
    } else if (const auto* answered = std::get_if<TraceAnswered>(&action)) {
      outlet_->OnTraceAnswered(*answered);
    }
  }
}

}  // namespace cadre
