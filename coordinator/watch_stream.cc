#include "coordinator/watch_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"

namespace cadre {
namespace {

constexpr absl::Duration kPace = absl::Milliseconds(100);

// Equal for two updates between which nothing happened but the passing of time.
std::string Essence(v1::WatchUpdate update) {
  update.clear_time_ms();
  update.mutable_run()->clear_seconds();
  update.mutable_run()->clear_eta_seconds();
  update.mutable_run()->clear_samples_per_second();
  return update.SerializeAsString();
}

bool IsEnd(v1::RunState state) {
  return state == v1::DONE || state == v1::FAILED || state == v1::STOPPED;
}

}  // namespace

absl::Time WatchStream::Offer(const Machine& machine, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  // While something is being written, the caller is as slow as it wants to be.
  if (ending_) return absl::InfiniteFuture();
  if (!outgoing_.empty()) return now + kPace;
  if (now < next_) return next_;
  Collect(machine, now);
  next_ = now + kPace;
  WriteOrFinish();
  return absl::InfiniteFuture();
}

void WatchStream::Collect(const Machine& machine, absl::Time now) {
  v1::StatusReply status = machine.Status(now, run_);
  if (!run_.empty() && status.runs().empty()) {
    EndLocked(absl::NotFoundError(absl::StrCat("there is no run ", run_)));
    return;
  }
  std::map<std::string, std::string> said;
  for (v1::RunStatus& run : *status.mutable_runs()) {
    v1::WatchUpdate update;
    update.set_time_ms(absl::ToUnixMillis(now));
    for (v1::GroupStatus& group : *status.mutable_groups()) {
      if (group.run() != run.run()) continue;
      group.clear_plan();
      *update.add_groups() = group;
    }
    const bool end = IsEnd(run.state());
    *update.mutable_run() = std::move(run);
    const std::string& id = update.run().run();
    said[id] = Essence(update);
    auto before = said_.find(id);
    if (before == said_.end() || before->second != said[id]) outgoing_.push_back(update);
    if (end && !run_.empty()) EndLocked(absl::OkStatus());
  }
  said_ = std::move(said);
}

void WatchStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  EndLocked(status);
  WriteOrFinish();
}

void WatchStream::EndLocked(const absl::Status& status) {
  if (ending_) return;
  ending_ = true;
  end_ = status;
}

void WatchStream::WriteOrFinish() {
  if (writing_ || finished_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (ending_) {
    finished_ = true;
    Finish(ToGrpc(end_));
  }
}

void WatchStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) {
    outgoing_.clear();
    EndLocked(absl::CancelledError("the caller has left"));
  }
  WriteOrFinish();
}

void WatchStream::OnCancel() { End(absl::CancelledError("the caller has left")); }

void WatchStream::OnDone() {
  done_();
  delete this;
}

}  // namespace cadre
