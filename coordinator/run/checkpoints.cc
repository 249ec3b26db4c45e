// The last checkpoint is the trained model of a run without aggregators, and what the user asked
// for in any other. So the end of the run waits for it while a group can still write it, and a run
// that ends without it says so in its reason, in an event and in its status (last_missing), from
// which the command line takes its exit code.
#include "coordinator/run/checkpoints.h"

#include "absl/strings/str_cat.h"

namespace cadre {

std::optional<std::string> Checkpoints::Record(const Member& member,
                                               const v1::Checkpointed& report) {
  v1::CheckpointStatus& checkpoint = *run_.mutable_checkpoint();
  const uint32_t step = report.step();
  // Both kinds of reports may be repeated.
  if (report.error().empty()) {
    if (checkpoint.has_saved_step() && checkpoint.saved_step() == step) return std::nullopt;
    checkpoint.set_saved_step(step);
    if (report.warning().empty()) return "";
    return absl::StrCat("the checkpoint of step ", step, " is written, but: ", report.warning());
  }
  if (checkpoint.failed_step() == step && checkpoint.error() == report.error()) {
    return std::nullopt;
  }
  checkpoint.set_failures(checkpoint.failures() + 1);
  checkpoint.set_failed_step(step);
  checkpoint.set_error(report.error());
  return absl::StrCat("no checkpoint of step ", step, " (worker ", member.record.name(), " on ",
                      member.record.host(), "): ", report.error());
}

bool Checkpoints::HasLast() const {
  const v1::CheckpointStatus& checkpoint = run_.checkpoint();
  return checkpoint.has_saved_step() && checkpoint.saved_step() == run_.step();
}

bool Checkpoints::FailedLast() const {
  return run_.checkpoint().failures() > 0 && run_.checkpoint().failed_step() == run_.step();
}

bool Checkpoints::LacksLast() const {
  return run_.state() == v1::RUN_STATE_FINISHING && Writes() && !HasLast() && !FailedLast();
}

std::string Checkpoints::End() {
  if (!Writes() || HasLast()) return "";
  run_.mutable_checkpoint()->set_last_missing(true);
  return absl::StrCat("the last checkpoint, of step ", run_.step(), ", is missing: ",
                      FailedLast() ? run_.checkpoint().error()
                                   : absl::StrCat("group ", writer(), " has not written it"));
}

}  // namespace cadre
