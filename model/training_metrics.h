// What a training loop reports of its training beside the loss (v1::TrainingMetrics): limits, and
// means over groups. Programs are refused what exceeds the limits when they report it, members when
// the coordinator receives it.
//
// Thread-safe (pure functions), except for MetricMeans, which is thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/history.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Names that one group may report.
inline constexpr int kMaxMetrics = 32;
// Tokens that one message may report. A sum of 65,536 such numbers does not overflow.
inline constexpr uint64_t kMaxTokens = uint64_t{1} << 48;

// A name has 1 to 64 of the characters a-z, 0-9, '_', '.', '/', '-'. Errors: InvalidArgument,
// naming the metric.
absl::Status CheckMetricName(absl::string_view name);

// Whether anything is known. Messages have no metrics otherwise.
bool HasMetrics(const v1::TrainingMetrics& metrics);

// Errors: InvalidArgument, naming the metric: as CheckMetricName, too many names, a mean that is
// not finite, too many tokens.
absl::Status CheckMetrics(const v1::TrainingMetrics& metrics);

// Tokens of a sample, if the model says so; 0: not known.
uint64_t TokensPerSample(const v1::Model& model);

// The metrics of several groups.
class MetricMeans {
 public:
  // Requires: CheckMetrics(metrics) is OK; weight >= 0.
  void Add(const v1::TrainingMetrics& metrics, double weight);
  // The sum of the tokens, and for each name the mean over those that have it, by weight. Has no
  // more than kMaxMetrics names, the first ones in the order of the alphabet.
  v1::TrainingMetrics Result() const;

 private:
  struct Weighted {
    double value = 0;
    double weight = 0;
  };
  uint64_t tokens_ = 0;
  std::map<std::string, std::vector<Weighted>> means_;
};

}  // namespace cadre
