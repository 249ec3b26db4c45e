// An update is sent when a run has changed, at most once per kInterval. `sent_` holds the last
// update of each run without fields such as elapsed times, which always change.
#include "coordinator/watch_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run_rules.h"

namespace cadre {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);

// The result is equal for two updates that differ only in elapsed times.
std::string WithoutTimes(v1::WatchUpdate update) {
  update.clear_time_ms();
  update.mutable_run()->clear_seconds();
  update.mutable_run()->clear_eta_seconds();
  update.mutable_run()->clear_samples_per_second();
  return update.SerializeAsString();
}

}  // namespace

absl::Time WatchStream::MaybeSend(const Machine& machine, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  // A slow caller receives fewer updates: none is queued while one is being written.
  if (ending()) return absl::InfiniteFuture();
  if (queued() > 0) return now + kInterval;
  if (now < next_) return next_;
  SendChanges(machine, now);
  next_ = now + kInterval;
  return absl::InfiniteFuture();
}

void WatchStream::SendChanges(const Machine& machine, absl::Time now) {
  v1::StatusReply status = machine.Status(now, run_);
  if (!run_.empty() && status.runs().empty()) {
    EndLocked(absl::NotFoundError(absl::StrCat("no such run: ", run_)));
    return;
  }
  std::map<std::string, std::string> sent;
  for (v1::RunStatus& run : *status.mutable_runs()) {
    v1::WatchUpdate update;
    update.set_time_ms(absl::ToUnixMillis(now));
    for (v1::GroupStatus& group : *status.mutable_groups()) {
      if (group.run() != run.run()) continue;
      group.clear_plan();
      *update.add_groups() = group;
    }
    const bool end = !IsLive(run.state());
    *update.mutable_run() = std::move(run);
    const std::string& id = update.run().run();
    sent[id] = WithoutTimes(update);
    const auto before = sent_.find(id);
    if (before == sent_.end() || before->second != sent[id]) Queue(std::move(update));
    if (end && !run_.empty()) EndLocked(absl::OkStatus());
  }
  sent_ = std::move(sent);
}

void WatchStream::OnCancel() { End(absl::CancelledError("cancelled by the caller")); }

void WatchStream::OnDone() {
  done_();
  delete this;
}

}  // namespace cadre
