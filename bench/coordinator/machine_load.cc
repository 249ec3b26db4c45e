// The load has three phases:
//
//   setup      All members join and the runs form their groups. It ends early after setup_seconds;
//              the output then has fewer members than requested.
//   measuring  Turns of 32 heartbeats, the Progress of one group and the contribution of one group.
//              Contributions go run by run, so that each run commits a round once all its groups
//              have contributed. In every eighth turn a lease expires, whose worker joins again as
//              a new process, and a page of the status is read.
//   check      The heartbeats that the status shows must be as many as were sent, no lease may be
//              lost except those of the members that fell silent, and no run may have failed.
//
// What is timed: one call of Handle, including the serialization of its records, and one call of
// NextDeadline, which the coordinator's loop makes for every batch of events. At low load a batch
// is one event. Neither the store nor gRPC is included. Percentiles are wall-clock time. The rate
// of heartbeats is processor time of this thread, so other programs on the machine do not lower it.
//
// Time is virtual: a heartbeat interval passes while every member sends one heartbeat. The members
// whose leases will expire are among the first to join, one in sixteen; their last heartbeats are
// some milliseconds apart. Five seconds later all others send a heartbeat or join, so that their
// leases outlast those of the silent members however few events the measuring phase handles.
//
// Memory: what the destructor of the state machine returns to the allocator.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/coordinator/fake_member.h"
#include "bench/coordinator/load.h"
#include "bench/harness.h"
#include "coordinator/machine/machine.h"
#include "coordinator/measured_planning.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

constexpr int kHeartbeatsPerTurn = 32;
constexpr int kTurnsPerLoss = 8;
constexpr int kMaxLosses = 128;
// One of so many members that join first falls silent.
constexpr int kPerLoss = 16;
// Leases of silent members expire within this time, one by one.
constexpr absl::Duration kLossWindow = absl::Seconds(4);
constexpr absl::Duration kMinLossInterval = absl::Milliseconds(10);
constexpr absl::Duration kSilentFor = absl::Seconds(5);
// A stride through the members that is prime and larger than their number, so that neighbors in
// time are not neighbors in memory.
constexpr int64_t kStride = 15'485'863;

enum Kind {
  kHeartbeat,
  kProgress,
  kContributed,
  kCommit,
  kAdopted,
  kJoin,
  kPrepared,
  kLeaseLoss,
  kStatusPage,
  kOther,
  kKinds
};
constexpr std::array<const char*, kKinds> kKindNames = {
    "heartbeat", "progress", "contributed", "commit",      "adopted",
    "join",      "prepared", "lease_loss",  "status_page", "other"};

// Bytes that the allocator has given out.
int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

Kind KindOf(const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kHeartbeat:
      return kHeartbeat;
    case v1::MemberMessage::kProgress:
      return kProgress;
    case v1::MemberMessage::kContributed:
      return kContributed;
    case v1::MemberMessage::kAdopted:
      return kAdopted;
    case v1::MemberMessage::kHello:
      return kJoin;
    case v1::MemberMessage::kPrepared:
      return kPrepared;
    default:
      return kOther;
  }
}

class MachineLoad {
 public:
  explicit MachineLoad(const LoadOptions& options)
      : options_(options),
        machine_options_(LoadMachineOptions(planning_)),
        machine_(std::make_unique<Machine>(machine_options_)) {
    tick_ = machine_options_.heartbeat / options.workers;
    loss_interval_ = std::max(kMinLossInterval, kTurnsPerLoss * kHeartbeatsPerTurn * tick_);
    losses_ = static_cast<int>(std::min<int64_t>(
        {kMaxLosses, 1 + kLossWindow / loss_interval_, options.workers / kPerLoss}));
  }

  absl::StatusOr<nlohmann::ordered_json> Run() {
    CADRE_RETURN_IF_ERROR(SetUp());
    Measure();
    CADRE_RETURN_IF_ERROR(Check());
    return Result();
  }

 private:
  struct Joined {
    FakeMember member;
    ConnectionId connection = 0;
    // Neither sends nor answers until its lease has expired.
    bool silent = false;
  };
  struct Pending {
    ConnectionId connection = 0;
    v1::MemberMessage message;
  };

  // ---- Events

  // Handles the event, times it, and passes its actions to the members. Returns its duration.
  void Do(Kind kind, const Event& event) {
    const double begin = MonotonicSeconds();
    std::vector<Action> actions = HandleOne(*machine_, event, now_);
    deadline_ = machine_->NextDeadline();
    const double seconds = MonotonicSeconds() - begin;
    bool lost = false, decided = false;
    std::vector<Event> planned;
    for (Action& action : actions) {
      if (const auto* op = std::get_if<Store::Op>(&action)) {
        ++records_;
        record_bytes_ += op->value.size();
      } else if (auto* send = std::get_if<Send>(&action)) {
        decided |= send->message.has_decision();
        Deliver(*send);
      } else if (const auto* end = std::get_if<Disconnect>(&action)) {
        lost = true;
        OnDisconnect(end->connection);
      } else if (const auto* replied = std::get_if<Replied>(&action)) {
        submitted_ = replied->status;
      } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
        // On another thread in the coordinator (loop.h), so its time does not count here.
        planned.push_back(Answer(planning_, *search));
      } else if (const auto* predict = std::get_if<PredictStep>(&action)) {
        planned.push_back(Answer(planning_, *predict));
      }
    }
    if (std::holds_alternative<Tick>(event) && lost) kind = kLeaseLoss;
    if (kind == kOther && decided) kind = kCommit;
    if (measuring_) times_[kind].Add(seconds);
    for (const Event& answer : planned) Do(kOther, answer);
  }

  void Deliver(const Send& send) {
    Joined& to = members_[owner_.at(send.connection)];
    if (to.silent) return;
    for (v1::MemberMessage& answer : to.member.Handle(send.message)) {
      pending_.push_back({send.connection, std::move(answer)});
    }
  }

  // The worker restarts as a new process.
  void OnDisconnect(ConnectionId connection) {
    const auto owner = owner_.find(connection);
    if (owner == owner_.end()) return;
    Joined& member = members_[owner->second];
    if (member.connection != connection) return;
    ++lost_;
    member.connection = 0;
    member.silent = false;
    member.member.Restart();
    rejoining_.push_back(owner->second);
  }

  void Join(size_t index) {
    Joined& joined = members_[index];
    joined.connection = ++last_connection_;
    owner_[joined.connection] = index;
    Do(kOther, StreamOpened{joined.connection});
    pending_.push_back({joined.connection, joined.member.Hello()});
    Settle();
  }

  // Handles the answers of the members until there are none.
  void Settle() {
    while (!pending_.empty() || !rejoining_.empty()) {
      if (pending_.empty()) {
        const size_t index = rejoining_.front();
        rejoining_.pop_front();
        Join(index);
        continue;
      }
      Pending next = std::move(pending_.front());
      pending_.pop_front();
      const Kind kind = KindOf(next.message);
      Do(kind, MessageReceived{next.connection, std::move(next.message)});
    }
  }

  void AdvanceTo(absl::Time now) {
    now_ = std::max(now_, now);
    for (int i = 0; i < kMaxLosses && now_ >= deadline_; ++i) {
      Do(kOther, Tick{});
      Settle();
    }
  }

  // ---- Phases

  absl::Status SetUp() {
    const double end = MonotonicSeconds() + options_.setup_seconds;
    for (int i = 0; i < kLoadAggregators; ++i) Add(v1::ROLE_AGGREGATOR, i);
    CADRE_ASSIGN_OR_RETURN(const std::vector<v1::RunSpec> specs, options_.Specs());
    for (const v1::RunSpec& spec : specs) {
      Do(kOther, SubmitRun{.request = 1, .spec = spec, .lineage_seed = 7});
      CADRE_RETURN_IF_ERROR(submitted_);
    }
    const int first = losses_ * kPerLoss;
    for (int i = 0; i < options_.workers && (i < first || MonotonicSeconds() < end); ++i) {
      if (i == first) Silence();
      Add(v1::ROLE_WORKER, i);
    }
    if (std::ssize(members_) == kLoadAggregators + first) Silence();
    return absl::OkStatus();
  }

  // The members whose leases will expire send their last heartbeats; all others follow later.
  void Silence() {
    for (int i = 0; i < losses_; ++i) {
      AdvanceTo(start_ + i * loss_interval_);
      Joined& silent = members_[kLoadAggregators + i * kPerLoss + i % kPerLoss];
      Do(kHeartbeat, MessageReceived{silent.connection, silent.member.Heartbeat()});
      silent.silent = true;
    }
    AdvanceTo(start_ + kSilentFor);
    for (Joined& joined : members_) {
      if (joined.silent) continue;
      Do(kHeartbeat, MessageReceived{joined.connection, joined.member.Heartbeat()});
    }
  }

  void Add(v1::Role role, int number) {
    members_.push_back({.member = FakeMember(role, number, options_.HostOf(number))});
    Join(members_.size() - 1);
  }

  void Measure() {
    measuring_ = true;
    const double begin = MonotonicSeconds();
    for (int turn = 0; turn == 0 || MonotonicSeconds() < begin + options_.seconds; ++turn) {
      SendHeartbeats();
      SendProgress();
      SendContribution();
      if (turn % kTurnsPerLoss == 0) {
        if (lost_ < losses_) {
          AdvanceTo(start_ + lost_ * loss_interval_ + machine_options_.lease);
        }
        ReadStatus();
      }
    }
    measured_seconds_ = MonotonicSeconds() - begin;
    measuring_ = false;
  }

  Joined& NextMember() {
    while (true) {
      next_ = (next_ + kStride) % std::ssize(members_);
      if (!members_[next_].silent) return members_[next_];
    }
  }

  void SendHeartbeats() {
    std::vector<Event> events;
    for (int i = 0; i < kHeartbeatsPerTurn; ++i) {
      Joined& from = NextMember();
      events.push_back(MessageReceived{from.connection, from.member.Heartbeat()});
    }
    const double begin = ThreadSeconds();
    for (const Event& event : events) Do(kHeartbeat, event);
    heartbeat_seconds_ += ThreadSeconds() - begin;
    heartbeats_ += kHeartbeatsPerTurn;
    AdvanceTo(now_ + kHeartbeatsPerTurn * tick_);
  }

  // The next member of all that leads a training group, from `from` on.
  Joined* NextLead(size_t& from) {
    for (size_t i = 0; i < members_.size(); ++i) {
      from = (from + 1) % members_.size();
      if (members_[from].member.leads() && !members_[from].silent) return &members_[from];
    }
    return nullptr;
  }

  void SendProgress() {
    Joined* const lead = NextLead(progress_at_);
    if (lead == nullptr) return;
    Do(kProgress, MessageReceived{lead->connection, lead->member.Progress()});
  }

  // Ranks are given out in the order of the members, so the leads of one run follow one another.
  void SendContribution() {
    Joined* const lead = NextLead(contribute_at_);
    if (lead == nullptr) return;
    Do(kContributed, MessageReceived{lead->connection, lead->member.Contributed()});
    Settle();
  }

  void ReadStatus() {
    v1::StatusRequest request;
    request.set_page_token(page_token_);
    const double begin = MonotonicSeconds();
    const absl::StatusOr<v1::StatusReply> page = machine_->Status(now_, request);
    times_[kStatusPage].Add(MonotonicSeconds() - begin);
    page_token_ = page.ok() ? page->next_page_token() : "";
    if (page.ok()) page_bytes_ = std::max(page_bytes_, page->ByteSizeLong());
  }

  // ---- Results

  absl::Status Check() {
    uint64_t sent = 0;
    for (const Joined& joined : members_) sent += joined.member.heartbeats();
    const v1::StatusReply status = machine_->Status(now_);
    const uint64_t handled = HandledHeartbeats(status);
    if (sent != handled) {
      return absl::InternalError(
          absl::StrCat(sent, " heartbeats sent, but the status shows ", handled));
    }
    for (const v1::RunStatus& run : status.runs()) {
      rounds_ += run.rounds_committed();
      if (run.state() != v1::RUN_STATE_RUNNING && run.state() != v1::RUN_STATE_QUEUED) {
        return absl::InternalError(absl::StrCat(run.run(), " has ended: ", run.reason()));
      }
    }
    for (const v1::MemberStatus& worker : status.workers()) {
      placed_ += worker.place().run().empty() ? 0 : 1;
    }
    const auto found = status.counters().find("leases_lost");
    const uint64_t lost = found == status.counters().end() ? 0 : found->second;
    if (lost != static_cast<uint64_t>(lost_) || lost_ > losses_) {
      return absl::InternalError(absl::StrCat(lost, " leases lost, expected at most ", losses_));
    }
    return absl::OkStatus();
  }

  nlohmann::ordered_json Result() {
    Latencies all;
    nlohmann::ordered_json events;
    for (int kind = 0; kind < kKinds; ++kind) {
      if (kind != kStatusPage) all.Add(times_[kind]);
      events[kKindNames[kind]] = times_[kind].ToJson();
    }
    const int64_t before = AllocatedBytes();
    machine_.reset();
    const int64_t bytes = before - AllocatedBytes();
    const int workers = static_cast<int>(members_.size()) - kLoadAggregators;
    return {{"members", options_.workers},
            {"joined", workers},
            {"placed", placed_},
            {"runs", options_.runs()},
            {"groups", options_.groups()},
            {"ranks_per_group", options_.ranks_per_group},
            {"seconds", Rounded(measured_seconds_, 2)},
            {"heartbeats", heartbeats_},
            {"heartbeats_per_second_per_core",
             std::llround(static_cast<double>(heartbeats_) / heartbeat_seconds_)},
            {"event_p99_ms", all.ToJson()["p99_ms"]},
            {"rounds_committed", rounds_},
            {"leases_lost", lost_},
            {"events", std::move(events)},
            {"status_page_bytes", page_bytes_},
            {"bytes_per_member", bytes / std::max(1, workers)},
            {"records_written", records_},
            {"record_bytes", record_bytes_}};
  }

  const LoadOptions options_;
  const MeasuredPlanning planning_;
  const Machine::Options machine_options_;
  std::unique_ptr<Machine> machine_;

  // Virtual time, also between two heartbeats and between two expiries of leases.
  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
  absl::Time now_ = start_;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Duration tick_;
  absl::Duration loss_interval_;
  // Number of members that fall silent.
  int losses_ = 0;

  // The aggregators, then the workers.
  std::deque<Joined> members_;
  std::map<ConnectionId, size_t> owner_;
  ConnectionId last_connection_ = 0;
  std::deque<Pending> pending_;
  std::deque<size_t> rejoining_;
  absl::Status submitted_;
  int64_t next_ = 0;
  size_t progress_at_ = 0;
  size_t contribute_at_ = 0;

  bool measuring_ = false;
  std::array<Latencies, kKinds> times_;
  double measured_seconds_ = 0;
  double heartbeat_seconds_ = 0;
  int64_t heartbeats_ = 0;
  int lost_ = 0;
  int placed_ = 0;
  uint64_t rounds_ = 0;
  // The page that is read next.
  std::string page_token_;
  size_t page_bytes_ = 0;
  uint64_t records_ = 0;
  uint64_t record_bytes_ = 0;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureMachine(const LoadOptions& options) {
  return MachineLoad(options).Run();
}

}  // namespace cadre
