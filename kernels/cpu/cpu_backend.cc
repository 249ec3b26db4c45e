// The class CpuBackend, which makes the families. They share one engine and one stream of oneDNN.
//
// Transposition: exchange of the two inner dimensions. A tile of 16 rows is read column by column,
// so that every cache line that is written is filled completely before it is evicted.
#include "kernels/cpu/cpu_backend.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <string>

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

CADRE_VECTOR_LOOP void Round(int64_t n, const float* __restrict x, Bf16* __restrict y) {
  for (int64_t i = 0; i < n; ++i) Store(y + i, x[i]);
}

}  // namespace

ConstValues CpuContext::WeightsAs(DType type, ConstFloatSpan w) {
  if (type == DType::kFloat32) return w;
  const auto convert = [this](ConstFloatSpan from, Values to) {
    ForParts(threads, std::ssize(from), [&](int64_t begin, int64_t end) {
      Round(end - begin, from.data() + begin, Data<Bf16>(to) + begin);
    });
  };
  const ConstValues kept = bf16_weights.Find(w, convert);
  if (!kept.empty()) return kept;
  const Values copy(workspace.Array<Bf16>(kWeightsSlot, w.size()), w.size(), type);
  convert(w, copy);
  return copy;
}

void CpuContext::Bf16Product(const Bf16ProductDims& dims, ConstValues a, ConstValues b,
                             ConstFloatSpan bias, Values c) {
  if (c.empty()) return;
  CHECK_EQ(dims.with_bias, !bias.empty());
  if (dims.k == 0) {
    ByType(c.type(), [&](auto zero) {
      auto* const to = Data<decltype(zero)>(c);
      for (int64_t i = 0; i < dims.m * dims.n; ++i) {
        Store(to + i, bias.empty() ? 0.0F : bias[i % dims.n]);
      }
    });
    return;
  }
  PrimitiveRun& run = products.GetOrMake(dims, [&] { return MakeBf16Product(dims, engine); });
  const std::array<const void*, 3> inputs{a.data(), b.data(), bias.data()};
  OrDie("bf16 matrix product", [&] {
    run.Run(stream, workspace, std::span(inputs).first(bias.empty() ? 2 : 3), std::array{c.data()});
  });
}

namespace {

constexpr int64_t kTile = 16;  // floats of a cache line

// y[columns, rows] = x[rows, columns]^T for one tile, which uses every cache line entirely.
template <typename T>
CADRE_VECTOR_LOOP void TransposeRows(int64_t rows, int64_t columns, int64_t x_stride,
                                     int64_t y_stride, const T* __restrict x, T* __restrict y) {
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < r1; ++r) y[c * y_stride + r] = x[r * x_stride + c];
    }
  }
}

}  // namespace

void CpuContext::Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                           Values y) const {
  if (x.empty()) return;
  // An item of ForParts is a strip of kTile channels of one sample.
  const int64_t strips = (channels + kTile - 1) / kTile;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    ForParts(threads, batch * strips, positions * kTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / strips * positions * channels;
        const int64_t c = i % strips * kTile;
        TransposeRows(positions, std::min(kTile, channels - c), channels, positions,
                      Data<T>(x) + sample + c, Data<T>(y) + sample + c * positions);
      }
    });
  });
}

namespace {

class CpuMemory {
 public:
  explicit CpuMemory(CpuContext& cpu) : cpu_(cpu) {}

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x, Values y) {
    cpu_.Transpose(batch, positions, channels, x, y);
  }

 private:
  CpuContext& cpu_;
};

// Why this processor cannot compute under Precision::kBf16; empty if it can.
std::string WithoutBf16() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16") > 0) return "";
#endif
  return "precision BF16 needs a processor with AVX512_BF16, or a CUDA device; give FP32";
}

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(int threads) : HostBackend(WithoutBf16()), context_(threads) {
    families_ = {.memory = std::make_unique<HostMemory<SpanCaller<CpuMemory>>>(context_),
                 .dense = MakeCpuDense(context_),
                 .window = MakeCpuWindow(context_),
                 .norm = MakeCpuNorm(context_),
                 .pointwise = MakeCpuPointwise(context_),
                 .optimizer = MakeCpuOptimizer(context_),
                 .slices = nullptr};
  }
  absl::Status SetPrecision(Precision precision) override {
    context_.bf16_weights.Clear();
    return HostBackend::SetPrecision(precision);
  }
  void WeightsChanged(ConstFloatSpan weights) override {
    if (activation_type() == DType::kBFloat16) context_.bf16_weights.Announce(weights);
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
