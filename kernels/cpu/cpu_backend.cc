// The class CpuBackend, which makes the families. They share one engine and one stream of oneDNN.
//
// Transposition: exchange of the two inner dimensions. A tile of 16 rows is read column by column,
// so that every cache line that is written is filled completely before it is evicted.
#include "kernels/cpu/cpu_backend.h"

#include <glog/logging.h>

#include <algorithm>

#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {

CpuContext::CpuContext(int threads)
    : threads(threads),
      engine(OrDie("engine", [] { return dnnl::engine(dnnl::engine::kind::cpu, 0); })),
      stream(OrDie("stream", [this] { return dnnl::stream(engine); })) {
  CHECK_GE(threads, 1);
}

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

class CpuMemory {
 public:
  explicit CpuMemory(CpuContext& cpu) : cpu_(cpu) {}

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstFloatSpan x,
                 FloatSpan y) {
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

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(int threads) : context_(threads) {
    families_ = {.memory = std::make_unique<HostMemory<SpanCaller<CpuMemory>>>(context_),
                 .dense = MakeCpuDense(context_),
                 .window = MakeCpuWindow(context_),
                 .norm = MakeCpuNorm(context_),
                 .pointwise = MakeCpuPointwise(context_),
                 .optimizer = MakeCpuOptimizer(context_),
                 .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return MakeCpuBackend(1); }

 private:
  CpuContext context_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace cadre
