#include <glog/logging.h>

#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

int64_t RowOf(const EmbeddingDims& d, float id) {
  CHECK(id >= 0 && id < static_cast<float>(d.vocabulary)) << "token " << id;
  return id;
}

// Calls f(w_at, position_at, y_at) for every element of the output.
template <typename F>
void ForEachElement(const EmbeddingDims& d, std::span<const float> ids, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t t = 0; t < d.tokens; ++t) {
      const int64_t row = RowOf(d, ids[n * d.tokens + t]);
      for (int64_t i = 0; i < d.features; ++i) {
        f(row * d.features + i, (d.first_token + t) * d.features + i,
          (n * d.tokens + t) * d.features + i);
      }
    }
  }
}

}  // namespace

void ReferenceDense::EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                                      std::span<const float> w, std::span<const float> positions,
                                      Values y_values) {
  const auto y = y_values.floats();
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("w", w.size(), sizes.w);
  CheckPositions("positions", positions.size(), dims);
  CheckSize("y", y.size(), sizes.y);
  ForEachElement(dims, ids, [&](int64_t w_at, int64_t position_at, int64_t y_at) {
    y[y_at] = positions.empty() ? w[w_at] : w[w_at] + positions[position_at];
  });
}

void ReferenceDense::EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                                       ConstValues dy_values, std::span<float> dw,
                                       std::span<float> dpositions) {
  const auto dy = dy_values.floats();
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckPositions("dpositions", dpositions.size(), dims);
  std::vector<double> table(dw.size());
  std::vector<double> places(dpositions.size());
  ForEachElement(dims, ids, [&](int64_t w_at, int64_t position_at, int64_t y_at) {
    table[w_at] += dy[y_at];
    if (!places.empty()) places[position_at] += dy[y_at];
  });
  Store(table, dw);
  Store(places, dpositions);
}

}  // namespace cadre
