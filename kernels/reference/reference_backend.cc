#include "kernels/reference/reference_backend.h"

#include <variant>

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
  void Update(const OptimizerStep& step, ConstFloatSpan g, FloatSpan w,
              std::span<const FloatSpan> states) {
    std::visit([&](const auto& rule) { UpdateAll(rule, g, w, states); }, step);
  }

  double SumOfSquares(ConstFloatSpan x) {
    double sum = 0;
    for (const float value : x) sum += Product(value, value);
    return sum;
  }

 private:
  template <typename Step>
  void UpdateAll(const Step& step, ConstFloatSpan g, FloatSpan w,
                 std::span<const FloatSpan> states) {
    const auto factors = FactorsOf<double>(step);
    for (size_t i = 0; i < w.size(); ++i) {
      double weight = w[i], state[Step::kStates];
      for (int s = 0; s < Step::kStates; ++s) state[s] = states[s][i];
      UpdateElement<double>(factors, g[i], &weight, state);
      w[i] = weight;
      for (int s = 0; s < Step::kStates; ++s) states[s][i] = state[s];
    }
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
