// Tables of vectors by token id and by position.
#include <glog/logging.h>

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

int64_t IdAt(const EmbeddingDims& d, std::span<const float> ids, int64_t i) {
  const auto id = static_cast<int64_t>(ids[i]);
  CHECK(id >= 0 && id < d.vocabulary) << "token " << id << " of " << d.vocabulary;
  return id;
}

CADRE_VECTOR_LOOP void AddTo(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

}  // namespace

void CpuDense::EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                                std::span<const float> w, std::span<const float> positions,
                                Values y_values) {
  const auto y = y_values.floats();
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("w", w.size(), sizes.w);
  CheckPositions("positions", positions.size(), dims);
  CheckSize("y", y.size(), sizes.y);
  const int64_t n = dims.features;
  ForParts(cpu_.threads, sizes.ids, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = y.data() + i * n;
      std::copy_n(w.data() + IdAt(dims, ids, i) * n, n, to);
      if (positions.empty()) continue;
      AddTo(n, positions.data() + (dims.first_token + i % dims.tokens) * n, to);
    }
  });
}

void CpuDense::EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                                 ConstValues dy_values, std::span<float> dw,
                                 std::span<float> dpositions) {
  const auto dy = dy_values.floats();
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckPositions("dpositions", dpositions.size(), dims);
  const int64_t n = dims.features;
  ForParts(cpu_.threads, std::ssize(dw), [&](int64_t begin, int64_t end) {
    std::fill(dw.begin() + begin, dw.begin() + end, 0.0F);
  });
  std::fill(dpositions.begin(), dpositions.end(), 0.0F);
  // Threads share out the features, so that every sum is taken in the order of the tokens.
  ForParts(cpu_.threads, n, sizes.ids, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < sizes.ids; ++i) {
      const float* from = dy.data() + i * n + begin;
      AddTo(end - begin, from, dw.data() + IdAt(dims, ids, i) * n + begin);
      if (dpositions.empty()) continue;
      const int64_t position = dims.first_token + i % dims.tokens;
      AddTo(end - begin, from, dpositions.data() + position * n + begin);
    }
  });
}

}  // namespace cadre
