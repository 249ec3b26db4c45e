#include "coordinator/failover.h"

#include <glog/logging.h>

#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status.h"

namespace cadre {
namespace {

// How long a start waits for the database.
constexpr absl::Duration kStartPatience = absl::Seconds(30);
// After a lead that could not be held: another coordinator may reach the database.
constexpr absl::Duration kYield = absl::Milliseconds(600);

std::string NewInstance() {
  std::random_device entropy;
  return absl::StrFormat("%08x%08x%08x%08x", entropy(), entropy(), entropy(), entropy());
}

// Whether the next attempt to lead may succeed.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status);
}

}  // namespace

Failover::Failover(Options options, CoordinatorService& service)
    : options_(std::move(options)),
      instance_(NewInstance()),
      service_(service),
      row_(options_.url, instance_) {}

absl::StatusOr<bool> Failover::Open() {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + kStartPatience;
  while (true) {
    auto store = PostgresStore::Open(
        {.url = options_.url, .instance = instance_, .address = options_.address});
    if (store.ok()) {
      store_ = *std::move(store);
      return true;
    }
    if (!absl::IsUnavailable(store.status()) || clock.Now() >= until) return store.status();
    LOG_EVERY_N(WARNING, 10) << "waits for the database: " << store.status().message();
    if (options_.wait(kBeatEvery)) return false;
  }
}

absl::Status Failover::Run() {
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool gone, AwaitLead());
    if (!gone) return absl::OkStatus();
    const absl::Status ended = Lead();
    if (ended.ok()) return absl::OkStatus();
    service_.StandBy(absl::StrCat("this coordinator does not lead: ", ended.message()));
    LOG(WARNING) << "standing by: " << ended.message();
    if (!MayPass(ended) && !IsReplaced()) return ended;
    Release();
    if (options_.wait(kYield)) return absl::OkStatus();
  }
}

absl::StatusOr<bool> Failover::AwaitLead() {
  const SteadyClock clock;
  LeaderWatch watch;
  std::string shown;
  while (true) {
    const absl::Time begin = clock.Now();
    const absl::StatusOr<Leader> leader = row_.Read();
    options_.on_read(leader.ok());
    if (!leader.ok() && !absl::IsUnavailable(leader.status())) return leader.status();
    std::string text;
    if (!leader.ok()) {
      watch.OnUnreadable();
      text = absl::StrCat("this coordinator is a standby: ", leader.status().message());
    } else if (watch.OnRead(*leader, begin, clock.Now())) {
      store_->Replace(leader->term, leader->beat);
      replaced_term_ = leader->term;
      return true;
    } else if (leader->instance == instance_) {
      text = absl::StrCat("this coordinator is a standby; none leads since it has given up term ",
                          leader->term);
    } else {
      text = absl::StrCat("this coordinator is a standby; the one at ", leader->address,
                          " leads in term ", leader->term);
    }
    if (text != shown) LOG(INFO) << text;
    shown = text;
    service_.StandBy(text);
    if (options_.wait(kBeatEvery)) return false;
  }
}

absl::Status Failover::Lead() {
  // The loop's thread uses the store afterwards.
  const std::string name = store_->name();
  CADRE_ASSIGN_OR_RETURN(const bool started, Start());
  if (!started) return absl::OkStatus();
  LOG(INFO) << "leads with " << name;
  return HoldLead();
}

// The start takes the lead and then reads all records, which may take longer than a standby waits
// for a beat. Whether the lead is lost meanwhile, the first transaction or HoldLead finds out.
absl::StatusOr<bool> Failover::Start() {
  absl::Status status;
  absl::Notification done;
  std::thread start([&] {
    status = service_.Start(store_.get(), options_.backup_path);
    done.Notify();
  });
  bool ends = false;
  while (!done.HasBeenNotified()) {
    // Until the lead is taken, a beat changes nothing.
    row_.Beat().IgnoreError();
    if (ends) {
      done.WaitForNotificationWithTimeout(kBeatEvery);
    } else {
      ends = options_.wait(kBeatEvery);
    }
  }
  start.join();
  if (ends) return false;
  CADRE_RETURN_IF_ERROR(status);
  return true;
}

absl::Status Failover::HoldLead() {
  const SteadyClock clock;
  absl::Time changed = clock.Now();
  while (true) {
    CADRE_RETURN_IF_ERROR(service_.failure());
    const absl::Time begin = clock.Now();
    const absl::Status beat = row_.Beat();
    if (beat.ok()) {
      changed = begin;
    } else if (!absl::IsUnavailable(beat) || clock.Now() - changed >= kLeaderPatience) {
      return beat;
    }
    if (options_.wait(kBeatEvery)) return absl::OkStatus();
  }
}

bool Failover::IsReplaced() {
  const absl::StatusOr<Leader> leader = row_.Read();
  return leader.ok() && leader->term > replaced_term_ && leader->instance != instance_;
}

void Failover::Release() { row_.Release().IgnoreError(); }

}  // namespace cadre
