#include "group/caller_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "glog/logging.h"
#include "model/training_metrics.h"

namespace cadre {

// The running mean does not overflow where a sum would.
void CallerReport::Mean::Add(double one) {
  ++count;
  const double share = 1.0 / static_cast<double>(count);
  value += one * share - value * share;
}

// Losses and the rate are reported as floats.
bool CallerReport::IsFinite(absl::string_view name, double value) {
  const bool single = name == kRate || name == "loss";
  if (single ? std::isfinite(static_cast<float>(value)) : std::isfinite(value)) return true;
  ++not_finite_[std::string(name)];
  return false;
}

void CallerReport::AddLoss(double loss) {
  absl::MutexLock lock(&mutex_);
  if (!IsFinite("loss", loss)) return;
  period_.loss.Add(loss);
  unreported_.loss.Add(loss);
}

absl::Status CallerReport::AddMetric(absl::string_view name, double value) {
  absl::MutexLock lock(&mutex_);
  if (name == kRate) {
    if (value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("metric 'rate' is ", value, ", but a learning rate is not negative"));
    }
    if (IsFinite(name, value)) rate_ = static_cast<float>(value);
    return absl::OkStatus();
  }
  if (names_.find(name) == names_.end()) {
    if (const absl::Status valid = CheckMetricName(name); !valid.ok()) return valid;
    if (names_.size() >= kMaxMetrics) {
      return absl::InvalidArgumentError(absl::StrCat("metric '", name, "': the group has reported ",
                                                     kMaxMetrics, " others, which is the limit"));
    }
    names_.emplace(name);
  }
  if (!IsFinite(name, value)) return absl::OkStatus();
  for (Sums* const sums : {&period_, &unreported_}) sums->metrics[std::string(name)].Add(value);
  return absl::OkStatus();
}

absl::Status CallerReport::AddTokens(uint64_t tokens) {
  absl::MutexLock lock(&mutex_);
  if (tokens > kMaxTokens - period_.tokens) {
    return absl::InvalidArgumentError(absl::StrCat(tokens, " tokens of a step: more than ",
                                                   kMaxTokens, " between two boundaries"));
  }
  period_.tokens += tokens;
  unreported_.tokens += tokens;
  return absl::OkStatus();
}

void CallerReport::Reset() {
  absl::MutexLock lock(&mutex_);
  period_ = {};
  unreported_ = {};
}

PeriodReport CallerReport::TakeForContribution() {
  absl::MutexLock lock(&mutex_);
  LogNotFinite();
  unreported_ = {};
  return ReportOf(std::exchange(period_, {}));
}

PeriodReport CallerReport::TakeForStatus() {
  absl::MutexLock lock(&mutex_);
  return ReportOf(std::exchange(unreported_, {}));
}

PeriodReport CallerReport::ReportOf(const Sums& sums) const {
  PeriodReport report{.rate = rate_};
  if (sums.loss.count > 0) report.loss = sums.loss.value;
  report.metrics.set_tokens(sums.tokens);
  for (const auto& [name, mean] : sums.metrics) (*report.metrics.mutable_mean())[name] = mean.value;
  return report;
}

void CallerReport::LogNotFinite() {
  for (const auto& [name, count] : std::exchange(not_finite_, {})) {
    if (!logged_.insert(name).second) continue;
    LOG(WARNING) << Counted(count, "reported value") << " of '" << name
                 << "' since the last boundary " << (count == 1 ? "is" : "are")
                 << " not finite, so that the mean is without; later ones are not logged";
  }
}

}  // namespace cadre
