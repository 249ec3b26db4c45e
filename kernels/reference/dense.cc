// Fully connected layers, embeddings and attention, by their definitions.
//
// The definition of a layer is written once, as a function that visits all of its products or
// elements (ForEachProduct, ForEachFeature, ForEachQuery). Forward and the two backward passes
// differ only in which of the three indices they sum over, so that a wrong index would show in all
// of them, and the gradients can be checked by differences. Sums are taken in double and rounded
// once, and the code avoids every optimisation: it is the oracle that faster back ends are compared
// with.
//
// Cost: a multiplication per product, in one thread; tests use it with small extents.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

// Calls f(x_at, w_at, y_at) for every product x[x_at] * w[w_at] of the sum y[y_at].
template <typename F>
void ForEachProduct(const FullyConnectedDims& d, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t o = 0; o < d.out; ++o) {
      for (int64_t i = 0; i < d.in; ++i) f(n * d.in + i, o * d.in + i, n * d.out + o);
    }
  }
}

// Calls f(a_at, b_at, c_at) for each term a[a_at] * b[b_at] of each element c[c_at].
template <typename F>
void ForEachProduct(const BatchedProductDims& d, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t row = 0; row < d.m; ++row) {
      for (int64_t column = 0; column < d.n; ++column) {
        for (int64_t i = 0; i < d.k; ++i) {
          f(n * d.m * d.k + (d.transpose_a ? i * d.m + row : row * d.k + i),
            n * d.k * d.n + (d.transpose_b ? column * d.k + i : i * d.n + column),
            n * d.m * d.n + row * d.n + column);
        }
      }
    }
  }
}

// Calls f(w_at, position_at, y_at) for every element of the output.
template <typename F>
void ForEachFeature(const EmbeddingDims& d, ConstFloatSpan ids, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t t = 0; t < d.tokens; ++t) {
      const int64_t row = ids[n * d.tokens + t];
      for (int64_t i = 0; i < d.features; ++i) {
        f(row * d.features + i, (d.first_token + t) * d.features + i,
          (n * d.tokens + t) * d.features + i);
      }
    }
  }
}

enum QkvPart { kQuery, kKey, kValue };

// Index of the first feature of a part of one token and head.
int64_t PartAt(const AttentionDims& d, int64_t n, int64_t t, int64_t h, QkvPart part) {
  return (((n * d.tokens + t) * d.heads + h) * 3 + part) * d.head_features;
}

int64_t ContextAt(const AttentionDims& d, int64_t n, int64_t t, int64_t h) {
  return ((n * d.tokens + t) * d.heads + h) * d.head_features;
}

// Token t attends to the tokens [0, returned value) that are not hidden.
int64_t SeenBy(const AttentionDims& d, int64_t t) { return d.causal ? t + 1 : d.tokens; }

// Whether padding hides each token of sample n: not in a sample of padding alone.
std::vector<bool> HiddenIn(const AttentionDims& d, ConstFloatSpan ids, int64_t n) {
  std::vector<bool> hidden(d.tokens, false);
  if (ids.empty()) return hidden;
  for (int64_t t = 0; t < d.tokens; ++t) hidden[t] = ids[n * d.tokens + t] == d.padding_token;
  const bool alone = std::find(hidden.begin(), hidden.end(), false) == hidden.end();
  return alone ? std::vector<bool>(d.tokens, false) : hidden;
}

double ScoreScale(const AttentionDims& d) {
  return 1 / std::sqrt(std::max<int64_t>(1, d.head_features));
}

double Dot(ConstFloatSpan a, ConstFloatSpan b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += Product(a[i], b[i]);
  return sum;
}

// The softmax of the scores of one query, with which it attends to the tokens that it sees.
struct Attended {
  // 0 for hidden tokens.
  std::vector<double> weights;
  // Logarithm of the sum of the exponentials of the scores; 0 without scores.
  double log_sum = 0;
};

Attended Attend(const AttentionDims& d, ConstFloatSpan ids, ConstFloatSpan qkv, int64_t n,
                int64_t h, int64_t t) {
  const auto query = qkv.subspan(PartAt(d, n, t, h, kQuery), d.head_features);
  const std::vector<bool> hidden = HiddenIn(d, ids, n);
  constexpr double kNoScore = -std::numeric_limits<double>::infinity();
  Attended attended;
  for (int64_t s = 0; s < SeenBy(d, t); ++s) {
    const auto key = qkv.subspan(PartAt(d, n, s, h, kKey), d.head_features);
    attended.weights.push_back(hidden[s] ? kNoScore : Dot(query, key) * ScoreScale(d));
  }
  const double largest = *std::max_element(attended.weights.begin(), attended.weights.end());
  if (largest == kNoScore) return {.weights = std::vector<double>(attended.weights.size(), 0)};
  double total = 0;
  for (double& weight : attended.weights) total += weight = std::exp(weight - largest);
  for (double& weight : attended.weights) weight /= total;
  attended.log_sum = largest + std::log(total);
  return attended;
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

class ReferenceDense {
 public:
  void FullyConnectedForward(const FullyConnectedDims& dims, ConstFloatSpan x, ConstFloatSpan w,
                             ConstFloatSpan b, FloatSpan y) {
    std::vector<double> sums(y.size());
    for (size_t i = 0; i < sums.size() && !b.empty(); ++i) sums[i] = b[i % b.size()];
    ForEachProduct(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
      sums[y_at] += Product(x[x_at], w[w_at]);
    });
    Store(sums, y);
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstFloatSpan dy,
                                  ConstFloatSpan w, FloatSpan dx) {
    std::vector<double> sums(dx.size());
    ForEachProduct(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
      sums[x_at] += Product(dy[y_at], w[w_at]);
    });
    Store(sums, dx);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstFloatSpan x,
                                     ConstFloatSpan dy, FloatSpan dw, FloatSpan db) {
    std::fill(dw.begin(), dw.end(), 0.0F);
    std::fill(db.begin(), db.end(), 0.0F);
    FullyConnectedAddGradients(dims, x, dy, dw, db);
  }

  void FullyConnectedAddGradients(const FullyConnectedDims& dims, ConstFloatSpan x,
                                  ConstFloatSpan dy, FloatSpan dw, FloatSpan db) {
    std::vector<double> weights(dw.begin(), dw.end());
    ForEachProduct(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
      weights[w_at] += Product(x[x_at], dy[y_at]);
    });
    Store(weights, dw);
    std::vector<double> biases(db.begin(), db.end());
    for (size_t i = 0; i < dy.size() && !db.empty(); ++i) biases[i % db.size()] += dy[i];
    Store(biases, db);
  }

  void BatchedProduct(const BatchedProductDims& dims, ConstFloatSpan a, ConstFloatSpan b,
                      FloatSpan c) {
    std::vector<double> sums(c.size());
    ForEachProduct(dims, [&](int64_t a_at, int64_t b_at, int64_t c_at) {
      sums[c_at] += Product(a[a_at], b[b_at]);
    });
    Store(sums, c);
  }

  void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                        ConstFloatSpan positions, FloatSpan y) {
    ForEachFeature(dims, ids, [&](int64_t w_at, int64_t position_at, int64_t y_at) {
      y[y_at] = positions.empty() ? w[w_at] : w[w_at] + positions[position_at];
    });
  }

  void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan dy,
                         FloatSpan dw, FloatSpan dpositions) {
    std::vector<double> table(dw.size());
    std::vector<double> by_position(dpositions.size());
    ForEachFeature(dims, ids, [&](int64_t w_at, int64_t position_at, int64_t y_at) {
      table[w_at] += dy[y_at];
      if (!by_position.empty()) by_position[position_at] += dy[y_at];
    });
    Store(table, dw);
    Store(by_position, dpositions);
  }

  void AttentionForward(const AttentionDims& dims, ConstFloatSpan ids, ConstFloatSpan qkv,
                        FloatSpan context, FloatSpan statistics, FloatSpan /*scratch*/) {
    ForEachQuery(dims, [&](int64_t n, int64_t h, int64_t t) {
      const Attended attended = Attend(dims, ids, qkv, n, h, t);
      statistics[(n * dims.heads + h) * dims.tokens + t] = attended.log_sum;
      std::vector<double> sums(dims.head_features);
      for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
        const int64_t value = PartAt(dims, n, s, h, kValue);
        for (int64_t i = 0; i < dims.head_features; ++i) {
          sums[i] += attended.weights[s] * qkv[value + i];
        }
      }
      Store(sums, context.subspan(ContextAt(dims, n, t, h), sums.size()));
    });
  }

  // The gradient of softmax(s) is p * (dp - sum(p * dp)) by row, where dp is the gradient of the
  // probabilities p; the chain rule through the scores s = q k^T / sqrt(features) gives dq and dk,
  // and that through context = p v gives dv. The probabilities are computed again, so that nothing
  // that forward rounded is used.
  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstFloatSpan qkv,
                         ConstFloatSpan /*context*/, ConstFloatSpan dcontext,
                         ConstFloatSpan /*statistics*/, FloatSpan /*scratch*/, FloatSpan dqkv) {
    std::vector<double> sums(dqkv.size());
    ForEachQuery(dims, [&](int64_t n, int64_t h, int64_t t) {
      const int64_t features = dims.head_features;
      const auto d = dcontext.subspan(ContextAt(dims, n, t, h), features);
      const std::vector<double> row = Attend(dims, ids, qkv, n, h, t).weights;
      // dp[s] = d . value[s]; the softmax turns it into p[s] * (dp[s] - sum of p dp).
      std::vector<double> dp(row.size());
      double weighted = 0;
      for (int64_t s = 0; s < SeenBy(dims, t); ++s) {
        const int64_t value = PartAt(dims, n, s, h, kValue);
        dp[s] = Dot(d, qkv.subspan(value, features));
        weighted += row[s] * dp[s];
        for (int64_t i = 0; i < features; ++i) sums[value + i] += row[s] * d[i];
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
};

}  // namespace

std::unique_ptr<DenseKernels> MakeReferenceDense() {
  return std::make_unique<HostDense<SpanCaller<ReferenceDense>>>();
}

}  // namespace cadre
