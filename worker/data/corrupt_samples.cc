#include "worker/data/corrupt_samples.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"

namespace cadre {

absl::Status CorruptSamples::Add(const std::string& name, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (names_.contains(name)) return absl::OkStatus();
  const std::string what = absl::StrCat("cannot read sample ", name, ": ", why.message());
  if (std::ssize(names_) >= allowed_) {
    return absl::DataLossError(absl::StrCat(what, "; data.corrupt_samples_allowed is ", allowed_));
  }
  names_.insert(name);
  LOG(WARNING) << what << " (" << names_.size() << " of at most " << allowed_ << ")";
  return absl::OkStatus();
}

int64_t CorruptSamples::count() const {
  absl::MutexLock lock(&mutex_);
  return names_.size();
}

}  // namespace cadre
