#include "tests/kernels/attention_bounds.h"

#include <algorithm>
#include <cmath>

#include "kernels/extents.h"

namespace cadre {
namespace {

constexpr double kUnit = 0x1p-24;

// The largest relative error of rounding to the type.
double RoundingOf(DType type) { return type == DType::kBFloat16 ? 0x1p-8 : kUnit; }

double ScaleOf(const AttentionDims& d) { return 1 / std::sqrt(double(d.head_features)); }

// Bounds on the errors of one number. `largest`: the maximum magnitude of the inputs.
struct AttentionErrors {
  // A probability; a context, relative to the values, weighted by probabilities.
  double probability = 0, context = 0;
  // The gradient of a score, relative to the probability; and the maximum of that of a probability.
  double dscore = 0, max_dp = 0;
};
AttentionErrors ErrorsOf(const AttentionDims& d, double v, double largest) {
  const double u = kUnit;
  const double features = d.head_features, tokens = d.tokens, scale = ScaleOf(d);
  // A score: the sum of a product, its scaling by a rounded scale.
  const double score = (features + 3) * u * features * largest * largest * scale;
  // The difference of a score and the statistic or the maximum, both of at most max_score; the
  // exponential, which is within two units in the last place (4 u); and the sum of exponentials
  // with its corrections, one for each tile.
  const double max_score = features * largest * largest * scale + std::log(tokens);
  const double probability = 2 * score + (2 * max_score + 8 + 3 * tokens) * u;
  const double context = probability + v + (tokens + 2) * u;
  // dp, and the sum of p * dp, are at most max_dp; the second inherits the error of the stored
  // context.
  const double max_dp = features * largest;
  const double dp = features * u * max_dp, weighted = dp + (context + v) * max_dp;
  const double dscore = 2 * max_dp * (probability + v + 4 * u) + dp + weighted;
  return {probability, context, dscore, max_dp};
}

}  // namespace

AttentionBounds BoundsOf(const AttentionDims& d, DType type, const Floats& qkv, double largest,
                         const Floats& ids) {
  const double u = kUnit, v = type == DType::kBFloat16 ? RoundingOf(type) : 0;
  const double tokens = d.tokens, scale = ScaleOf(d);
  const auto [probability, context, dscore, max_dp] = ErrorsOf(d, v, largest);
  const auto part = [&](int64_t n, int64_t t, int64_t h, int64_t which) {
    return (((n * d.tokens + t) * d.heads + h) * 3 + which) * d.head_features;
  };
  AttentionBounds bounds{.statistics = std::vector<double>(SizesOf(d).statistics),
                         .context = std::vector<double>(SizesOf(d).context),
                         .dqkv = std::vector<double>(SizesOf(d).qkv)};
  for (int64_t n = 0; n < d.batch; ++n) {
    const auto hides = [&](int64_t s) {
      return !ids.empty() && ids[n * d.tokens + s] == d.padding_token;
    };
    // A sample of padding alone has no mask.
    int64_t padding = 0;
    for (int64_t s = 0; s < d.tokens; ++s) padding += hides(s) ? 1 : 0;
    const bool masks = padding < d.tokens;
    for (int64_t h = 0; h < d.heads; ++h) {
      for (int64_t t = 0; t < d.tokens; ++t) {
        std::vector<double> p(d.causal ? t + 1 : d.tokens);
        double total = 0;
        for (size_t s = 0; s < p.size(); ++s) {
          double sum = 0;
          for (int64_t i = 0; i < d.head_features; ++i) {
            sum += double{qkv[part(n, t, h, 0) + i]} * qkv[part(n, s, h, 1) + i];
          }
          total += p[s] = masks && hides(s) ? 0 : std::exp(sum * scale);
        }
        bounds.statistics[(n * d.heads + h) * d.tokens + t] = probability;
        for (size_t s = 0; s < p.size() && total > 0; ++s) {
          p[s] /= total;
          // The sums over tokens also round: (tokens + 1) u times the magnitudes.
          const double ds = scale * p[s] * (dscore + (tokens + 1) * u * 2 * max_dp);
          for (int64_t i = 0; i < d.head_features; ++i) {
            const auto size = [&](int64_t token, int64_t which) {
              return std::abs(qkv[part(n, token, h, which) + i]);
            };
            bounds.context[((n * d.tokens + t) * d.heads + h) * d.head_features + i] +=
                context * p[s] * size(s, 2);
            bounds.dqkv[part(n, t, h, 0) + i] += ds * size(s, 1);
            bounds.dqkv[part(n, s, h, 1) + i] += ds * size(t, 0);
            bounds.dqkv[part(n, s, h, 2) + i] += (probability + v + (tokens + 1) * u) * p[s];
          }
        }
      }
    }
  }
  return bounds;
}

double LargestShare(const Floats& got, const Floats& want, const std::vector<double>& bounds,
                    DType type) {
  double share = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(double{got[i]} - want[i]);
    // The reference rounds what it stores, too.
    const double rounding = (RoundingOf(type) + kUnit) * std::abs(want[i]);
    share = std::max(share, error / (bounds[i] + rounding));
  }
  return share;
}

}  // namespace cadre
