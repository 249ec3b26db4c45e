#include "coordinator/failover.h"

#include <glog/logging.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"

namespace cadre {
namespace {

// How long a start waits for the database.
constexpr absl::Duration kStartPatience = absl::Seconds(30);

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

absl::Status Failover::Open() {
  const SteadyClock clock;
  const absl::Time until = clock.Now() + kStartPatience;
  while (true) {
    auto store = PostgresStore::Open(
        {.url = options_.url, .instance = instance_, .address = options_.address});
    if (store.ok()) {
      store_ = *std::move(store);
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(store.status()) || clock.Now() >= until) return store.status();
    if (options_.wait(kBeatEvery)) return absl::CancelledError("ended while it waited");
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
    if (!MayPass(ended)) return ended;
  }
}

absl::StatusOr<bool> Failover::AwaitLead() {
  const SteadyClock clock;
  LeaderWatch watch;
  std::string shown;
  while (true) {
    const absl::StatusOr<Leader> leader = row_.Read();
    if (!leader.ok() && !absl::IsUnavailable(leader.status())) return leader.status();
    std::string text;
    if (!leader.ok()) {
      watch.OnUnreadable();
      text = absl::StrCat("this coordinator is a standby: ", leader.status().message());
    } else if (watch.OnRead(*leader, clock.Now())) {
      store_->Replace(leader->term);
      return true;
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
  CADRE_RETURN_IF_ERROR(service_.Start(store_.get(), options_.backup_path));
  LOG(INFO) << "leads with " << store_->name();
  return HoldLead();
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

void Failover::Release() { row_.Release().IgnoreError(); }

}  // namespace cadre
