// Transposition: exchange of the two inner dimensions. A tile of 16 rows is read column by column,
// so that every cache line that is written is filled completely before it is evicted.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

constexpr int64_t kTile = 16;  // floats of a cache line

// y[columns, rows] = x[rows, columns]^T for one tile, which uses every cache line entirely.
CADRE_VECTOR_LOOP void TransposeRows(int64_t rows, int64_t columns, int64_t x_stride,
                                     int64_t y_stride, const float* __restrict x,
                                     float* __restrict y) {
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < r1; ++r) y[c * y_stride + r] = x[r * x_stride + c];
    }
  }
}

class CpuMemory final : public HostMemory {
 public:
  explicit CpuMemory(CpuContext& cpu) : cpu_(cpu) {}

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x_values,
                 Values y_values) override {
    const auto x = x_values.floats();
    const auto y = y_values.floats();
    CheckSizes(batch * positions * channels, {{"x", x.size()}, {"y", y.size()}});
    if (x.empty()) return;
    // An item of ForParts is a strip of kTile channels of one sample.
    const int64_t strips = (channels + kTile - 1) / kTile;
    ForParts(cpu_.threads, batch * strips, positions * kTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / strips * positions * channels;
        const int64_t c = i % strips * kTile;
        TransposeRows(positions, std::min(kTile, channels - c), channels, positions,
                      x.data() + sample + c, y.data() + sample + c * positions);
      }
    });
  }

 private:
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<MemoryKernels> MakeCpuMemory(CpuContext& cpu) {
  return std::make_unique<CpuMemory>(cpu);
}

}  // namespace cadre
