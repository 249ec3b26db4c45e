#include "kernels/reference/reference_backend.h"

#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

class ReferenceMemory {
 public:
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstFloatSpan x,
                 FloatSpan y) {
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < positions; ++p) {
        for (int64_t c = 0; c < channels; ++c) {
          y[(n * channels + c) * positions + p] = x[(n * positions + p) * channels + c];
        }
      }
    }
  }
};

// Steps in double: the state is converted for each element and rounded once at the end. The
// arithmetic is that of kernels/optimizer_step.h, which the faster back ends instantiate in fp32.
class ReferenceOptimizer {
 public:
  void Sgd(const SgdStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan v) {
    const auto factors = SgdFactorsOf<double>(step);
    for (size_t i = 0; i < w.size(); ++i) {
      double weight = w[i], velocity = v[i];
      if (step.nesterov) {
        SgdElement<true, double>(factors, g[i], &weight, &velocity);
      } else {
        SgdElement<false, double>(factors, g[i], &weight, &velocity);
      }
      w[i] = weight;
      v[i] = velocity;
    }
  }

  void AdamW(const AdamWStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan m, FloatSpan v) {
    const auto factors = AdamFactorsOf<double>(step);
    for (size_t i = 0; i < w.size(); ++i) {
      double weight = w[i], first = m[i], second = v[i];
      AdamElement<double>(factors, g[i], &weight, &first, &second);
      w[i] = weight;
      m[i] = first;
      v[i] = second;
    }
  }

  double SumOfSquares(ConstFloatSpan x) {
    double sum = 0;
    for (const float value : x) sum += Product(value, value);
    return sum;
  }
};

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend() : HostBackend("the plain loops compute in FP32 only; give FP32") {
    families_ = {.memory = std::make_unique<HostMemory<SpanCaller<ReferenceMemory>>>(),
                 .dense = MakeReferenceDense(),
                 .window = MakeReferenceWindow(),
                 .norm = MakeReferenceNorm(),
                 .pointwise = MakeReferencePointwise(),
                 .optimizer = std::make_unique<HostOptimizer<SpanCaller<ReferenceOptimizer>>>(),
                 .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return MakeReferenceBackend(); }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace cadre
