#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

enum Part { kQuery, kKey, kValue };

// Where the features of one token and head begin.
int64_t PartAt(const AttentionDims& d, int64_t n, int64_t t, int64_t h, Part part) {
  return (((n * d.tokens + t) * d.heads + h) * 3 + part) * d.head_features;
}

int64_t ContextAt(const AttentionDims& d, int64_t n, int64_t t, int64_t h) {
  return ((n * d.tokens + t) * d.heads + h) * d.head_features;
}

// Of the probabilities with which token t looks at the others.
int64_t RowAt(const AttentionDims& d, int64_t n, int64_t t, int64_t h) {
  return ((n * d.heads + h) * d.tokens + t) * d.tokens;
}

// Tokens that token t sees: those before this.
int64_t SeenBy(const AttentionDims& d, int64_t t) { return d.causal ? t + 1 : d.tokens; }

double ScoreScale(const AttentionDims& d) {
  return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, d.head_features)));
}

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void Softmax(std::span<double> scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - largest);
  for (double& score : scores) score /= total;
}

// Calls f(image, head, token).
template <typename F>
void ForEachQuery(const AttentionDims& d, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t h = 0; h < d.heads; ++h) {
      for (int64_t t = 0; t < d.tokens; ++t) f(n, h, t);
    }
  }
}

}  // namespace

void ReferenceDense::AttentionForward(const AttentionDims& dims, ConstValues qkv_values,
                                      Values probabilities_values, Values context_values) {
  const auto qkv = qkv_values.floats();
  const auto probabilities = probabilities_values.floats(), context = context_values.floats();
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("context", context.size(), sizes.context);
  std::fill(probabilities.begin(), probabilities.end(), 0);
  ForEachQuery(dims, [&](int64_t n, int64_t h, int64_t t) {
    const int64_t features = dims.head_features;
    const auto query = qkv.subspan(PartAt(dims, n, t, h, kQuery), features);
    std::vector<double> row(SeenBy(dims, t));
    for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
      const auto key = qkv.subspan(PartAt(dims, n, s, h, kKey), features);
      row[s] = Dot(query, key) * ScoreScale(dims);
    }
    Softmax(row);
    Store(row, probabilities.subspan(RowAt(dims, n, t, h), row.size()));
    std::vector<double> sums(features);
    for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
      const int64_t value = PartAt(dims, n, s, h, kValue);
      for (int64_t i = 0; i < features; ++i) sums[i] += row[s] * qkv[value + i];
    }
    Store(sums, context.subspan(ContextAt(dims, n, t, h), features));
  });
}

void ReferenceDense::AttentionBackward(const AttentionDims& dims, ConstValues qkv_values,
                                       ConstValues probabilities_values,
                                       ConstValues dcontext_values, Values dqkv_values) {
  const auto qkv = qkv_values.floats(), probabilities = probabilities_values.floats(),
             dcontext = dcontext_values.floats();
  const auto dqkv = dqkv_values.floats();
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("dcontext", dcontext.size(), sizes.context);
  CheckSize("dqkv", dqkv.size(), sizes.qkv);
  std::vector<double> sums(dqkv.size());
  ForEachQuery(dims, [&](int64_t n, int64_t h, int64_t t) {
    const int64_t features = dims.head_features;
    const auto d = dcontext.subspan(ContextAt(dims, n, t, h), features);
    const auto row = probabilities.subspan(RowAt(dims, n, t, h), dims.tokens);
    // dp[s] = d . value[s]; the softmax turns it into p[s] * (dp[s] - sum of p dp).
    std::vector<double> dp(SeenBy(dims, t));
    double weighted = 0;
    for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
      const int64_t value = PartAt(dims, n, s, h, kValue);
      dp[s] = Dot(d, qkv.subspan(value, features));
      weighted += row[s] * dp[s];
      for (int64_t i = 0; i < features; ++i) {
        sums[value + i] += static_cast<double>(row[s]) * d[i];
      }
    }
    const int64_t query = PartAt(dims, n, t, h, kQuery);
    for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
      const int64_t key = PartAt(dims, n, s, h, kKey);
      const double dscore = row[s] * (dp[s] - weighted) * ScoreScale(dims);
      for (int64_t i = 0; i < features; ++i) {
        sums[query + i] += dscore * qkv[key + i];
        sums[key + i] += dscore * qkv[query + i];
      }
    }
  });
  Store(sums, dqkv);
}

}  // namespace cadre
