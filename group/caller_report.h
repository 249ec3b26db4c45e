// What a program reports of its training: the loss, tokens, the learning rate and metrics of its
// own. Values are summed until they are taken: for a contribution, those since the last boundary;
// for the status, those since they were last taken for either.
//
// Values that are not finite do not count. They are counted instead, and logged with the name at
// the next boundary, once for each name.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "member/trained_model.h"

namespace cadre {

class CallerReport {
 public:
  // The name of the learning rate, of which the last value counts.
  static constexpr absl::string_view kRate = "rate";

  void AddLoss(double loss) ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: InvalidArgument, naming the metric, for an invalid name (model/training_metrics.h), for
  // a name after the first kMaxMetrics, and for a negative learning rate.
  absl::Status AddMetric(absl::string_view name, double value) ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: InvalidArgument for more than kMaxTokens.
  absl::Status AddTokens(uint64_t tokens) ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets the values since the last boundary: the steps are lost.
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_);
  PeriodReport TakeForContribution() ABSL_LOCKS_EXCLUDED(mutex_);
  PeriodReport TakeForStatus() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Mean {
    double value = 0;
    int64_t count = 0;
    void Add(double one);
  };
  struct Sums {
    Mean loss;
    uint64_t tokens = 0;
    std::map<std::string, Mean, std::less<>> metrics;
  };

  // Returns false, and counts the value as not finite, unless it is finite.
  bool IsFinite(absl::string_view name, double value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogNotFinite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PeriodReport ReportOf(const Sums& sums) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  // Since the last boundary, and since the last report.
  Sums period_ ABSL_GUARDED_BY(mutex_);
  Sums unreported_ ABSL_GUARDED_BY(mutex_);
  float rate_ ABSL_GUARDED_BY(mutex_) = 0;
  // All names so far.
  std::set<std::string, std::less<>> names_ ABSL_GUARDED_BY(mutex_);
  // Values since the last boundary, and the names that were logged.
  std::map<std::string, uint64_t, std::less<>> not_finite_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> logged_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
