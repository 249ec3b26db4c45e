#include "model/training_metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr size_t kMaxNameBytes = 64;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' ||
         c == '-';
}

}  // namespace

absl::Status CheckMetricName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes &&
      std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "metric '", absl::CHexEscape(name.substr(0, 2 * kMaxNameBytes)), "': a name has 1 to ",
      kMaxNameBytes, " characters: lower-case letters, digits, '_', '.', '/' and '-'"));
}

bool HasMetrics(const v1::TrainingMetrics& metrics) {
  return metrics.tokens() > 0 || metrics.mean_size() > 0;
}

absl::Status CheckMetrics(const v1::TrainingMetrics& metrics) {
  if (metrics.mean_size() > kMaxMetrics) {
    return absl::InvalidArgumentError(
        absl::StrCat(metrics.mean_size(), " metrics, of which at most ", kMaxMetrics, " are kept"));
  }
  if (metrics.tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat(metrics.tokens(), " tokens"));
  }
  for (const auto& [name, mean] : metrics.mean()) {
    if (const absl::Status valid = CheckMetricName(name); !valid.ok()) return valid;
    if (!std::isfinite(mean)) {
      return absl::InvalidArgumentError(absl::StrCat("metric '", name, "' is ", mean));
    }
  }
  return absl::OkStatus();
}

uint64_t TokensPerSample(const v1::Model& model) {
  return model.has_tokens() ? model.tokens().length() : 0;
}

void MetricMeans::Add(const v1::TrainingMetrics& metrics, double weight) {
  tokens_ += metrics.tokens();
  for (const auto& [name, mean] : metrics.mean()) means_[name].push_back({mean, weight});
}

// Shares of the total are at most 1, so that no sum overflows.
v1::TrainingMetrics MetricMeans::Result() const {
  v1::TrainingMetrics result;
  result.set_tokens(tokens_);
  for (const auto& [name, values] : means_) {
    if (result.mean_size() == kMaxMetrics) break;
    double total = 0;
    for (const Weighted& one : values) total += one.weight;
    double mean = 0;
    for (const Weighted& one : values) {
      mean += one.value * (total > 0 ? one.weight / total : 1.0 / values.size());
    }
    (*result.mutable_mean())[name] = mean;
  }
  return result;
}

}  // namespace cadre
