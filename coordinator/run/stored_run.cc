#include "coordinator/run/stored_run.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/store/keys.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Number of warnings of a run that are kept.
constexpr int kMaxWarnings = 32;

}  // namespace

// The spec, which may be large and does not change, has a record of its own.
void StoredRun::Save() {
  if (std::exchange(reported_, record_.state()) != record_.state()) {
    const bool explained = !record_.reason().empty() && record_.state() >= v1::RUN_STATE_DONE;
    cluster_.ReportRun(v1::EVENT_KIND_RUN_STATE, record_.run(),
                       absl::StrCat("the run is ", EnumText(record_.state()), explained ? ": " : "",
                                    explained ? record_.reason() : ""));
  }
  v1::RunSpec* const spec = record_.release_spec();
  cluster_.out().Put(RunKey(record_.run()), record_);
  record_.set_allocated_spec(spec);
}

void StoredRun::SaveSpec() { cluster_.out().Put(SpecKey(record_.run()), record_.spec()); }

void StoredRun::Save(const Slot& slot) {
  cluster_.out().Put(GroupKey(record_.run(), slot.group()), slot.record());
}

void StoredRun::AnnounceRemoval(absl::Time at, const std::string& reason) {
  record_.set_removal_ms(absl::ToUnixMillis(at));
  record_.set_removal_reason(reason);
  Save();
  cluster_.ReportRun(v1::EVENT_KIND_RUN_WARNING, record_.run(), RemovalText());
}

void StoredRun::WithdrawRemoval() {
  record_.clear_removal_ms();
  record_.clear_removal_reason();
  Save();
  cluster_.ReportRun(v1::EVENT_KIND_RUN_WARNING, record_.run(), "the run is kept after all");
}

std::string StoredRun::RemovalText() const {
  if (record_.removal_ms() == 0) return "";
  return absl::StrCat(
      "the run will be deleted, with its model, at ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(record_.removal_ms()),
                       absl::UTCTimeZone()),
      ": ", record_.removal_reason());
}

bool StoredRun::AddWarning(const std::string& text) {
  if (record_.warnings_size() >= kMaxWarnings || absl::c_linear_search(record_.warnings(), text)) {
    return false;
  }
  record_.add_warnings(text);
  if (record_.warnings_size() == kMaxWarnings) {
    record_.add_warnings("further warnings are only in the logs of the members");
  }
  cluster_.ReportRun(v1::EVENT_KIND_RUN_WARNING, record_.run(), text);
  cluster_.Count("warnings");
  Save();
  return true;
}

}  // namespace cadre
