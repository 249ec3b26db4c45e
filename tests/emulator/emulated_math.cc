#include "tests/emulator/emulated_math.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "glog/logging.h"
#include "kernels/cuda/scratch.h"

namespace cadre {
namespace {

using Floats = std::vector<float>;

float RoundToTf32(float x) {
  constexpr uint32_t kDropped = 13;
  if (!std::isfinite(x)) return x;
  auto word = std::bit_cast<uint32_t>(x);
  word += (uint32_t{1} << (kDropped - 1)) - 1 + (word >> kDropped & 1);
  return std::bit_cast<float>(word >> kDropped << kDropped);
}

Floats Read(ConstValues values) {
  Floats floats(values.size());
  if (values.type() == DType::kFloat32) {
    if (!floats.empty()) std::memcpy(floats.data(), values.data(), values.bytes());
    return floats;
  }
  CHECK(values.type() == DType::kBFloat16);
  const auto* narrow = static_cast<const __nv_bfloat16*>(values.data());
  std::transform(narrow, narrow + floats.size(), floats.begin(), __bfloat162float);
  return floats;
}

void WriteAt(Values values, size_t i, float x) {
  if (values.type() == DType::kFloat32) {
    static_cast<float*>(values.data())[i] = x;
  } else {
    static_cast<__nv_bfloat16*>(values.data())[i] = __float2bfloat16(x);
  }
}

void Write(const Floats& floats, Values values) {
  CHECK_EQ(floats.size(), values.size());
  for (size_t i = 0; i < floats.size(); ++i) WriteAt(values, i, floats[i]);
}

// The elements of a matrix after op(), which may transpose it.
struct Matrix {
  int64_t begin;
  int64_t row_step, column_step;
  size_t At(int64_t row, int64_t column) const {
    return begin + row * row_step + column * column_step;
  }
};

Matrix MatrixOf(int64_t begin, int64_t row, bool transposed) {
  return transposed ? Matrix{begin, 1, row} : Matrix{begin, row, 1};
}

int64_t OrTight(int64_t row, int64_t tight) { return row == 0 ? tight : row; }

// One matrix of a batch.
void Multiply(const MatrixProductDims& d, const Matrix& a_at, const Floats& a, const Matrix& b_at,
              const Floats& b, const Floats& bias, const Matrix& c_at, Values c) {
  std::vector<double> sums(d.n);
  for (int64_t i = 0; i < d.m; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < d.k; ++k) {
      const double factor = a.at(a_at.At(i, k));
      if (d.n == 0) continue;
      CHECK_LT(b_at.At(k, d.n - 1), b.size());
      for (int64_t j = 0; j < d.n; ++j) {
        sums[j] += factor * b[b_at.At(k, j)];
      }
    }
    for (int64_t j = 0; j < d.n; ++j) {
      const size_t at = c_at.At(i, j);
      double sum = sums[j] * d.alpha;
      if (!bias.empty()) sum += bias[j];
      CHECK_LT(at, c.size());
      if (d.add) sum += Read(c.subspan(at, 1))[0];
      WriteAt(c, at, sum);
    }
  }
}

void MultiplyAll(const MatrixProductDims& d, const Floats& a, const Floats& b, const Floats& bias,
                 Values c) {
  const int64_t a_row = OrTight(d.a_row, d.transpose_a ? d.m : d.k);
  const int64_t b_row = OrTight(d.b_row, d.transpose_b ? d.k : d.n);
  const int64_t c_row = OrTight(d.c_row, d.n);
  for (int64_t o = 0; o < d.outer; ++o) {
    for (int64_t i = 0; i < d.batch; ++i) {
      Multiply(d, MatrixOf(o * d.a_outer + i * d.a_step, a_row, d.transpose_a), a,
               MatrixOf(o * d.b_outer + i * d.b_step, b_row, d.transpose_b), b, bias,
               MatrixOf(o * d.c_outer + i * d.c_step, c_row, false), c);
    }
  }
}

// An operand of an operation, by its name in dense_math.h.
struct Operand {
  const char* name;
  ConstValues values;
};
using Operands = std::initializer_list<Operand>;

// What a plan is made for: an operation, its extents, the type of its first operand, whether TF32
// is allowed, and the alignment that all operands have.
using Extents = std::variant<MatrixProductDims, ConvolutionDims, AttentionDims>;
struct PlanKey {
  std::string operation;
  Extents extents;
  DType type = DType::kFloat32;
  bool tf32 = false;
  uintptr_t alignment = 0;
  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

// The number of elements of all operands.
size_t ElementsOf(Operands operands) {
  size_t elements = 0;
  for (const Operand& operand : operands) elements += operand.values.size();
  return elements;
}

class EmulatedMath final : public DenseMath {
 public:
  EmulatedMath(CudaDevice& device, EmulatedCuda& machine)
      : device_(device), machine_(machine), scratch_(device) {}

  void set_tf32(bool allowed) override { tf32_ = allowed; }
  std::string versions() const override { return "emulated"; }
  DenseMathCounters counters() const override { return counters_; }

  void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b, ConstValues bias,
                     Values c) override {
    CHECK_LE(dims.batch, kMaxProducts);
    CHECK(a.type() == b.type());
    CHECK(c.type() == a.type() || c.type() == DType::kFloat32);
    CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == dims.n);
    CHECK(bias.empty() || bias.type() == DType::kFloat32 || bias.type() == c.type());
    Do("matrix product", dims, {{"a", a}, {"b", b}, {"bias", bias}}, {{"c", c}},
       [=, factors = Factors()] { MultiplyAll(dims, factors(a), factors(b), Read(bias), c); });
  }

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                          Values y) override {
    CHECK(x.type() == w.type() && x.type() == y.type());
    Do("convolution", dims, {{"x", x}, {"w", w}}, {{"y", y}}, [=, factors = Factors()] {
      Floats out(y.size());
      MakeReferenceBackend()->window().ConvolutionForward(dims, factors(x), factors(w), {}, out);
      Write(out, y);
    });
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                               Values dx) override {
    CHECK(dy.type() == w.type() && dy.type() == dx.type());
    Do("convolution, backward data", dims, {{"dy", dy}, {"w", w}}, {{"dx", dx}},
       [=, factors = Factors()] {
         Floats out(dx.size());
         MakeReferenceBackend()->window().ConvolutionBackwardData(dims, factors(dy), factors(w),
                                                                  out);
         Write(out, dx);
       });
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw) override {
    CHECK(x.type() == dy.type());
    Do("convolution, backward weights", dims, {{"x", x}, {"dy", dy}}, {{"dw", dw}},
       [=, factors = Factors()] {
         Floats out(dw.size());
         MakeReferenceBackend()->window().ConvolutionBackwardWeights(dims, factors(x), factors(dy),
                                                                     out, {});
         Write(out, dw);
       });
  }

  bool HasFusedAttention(const AttentionDims& dims, DType type) override {
    // The limits of cuDNN.
    constexpr int64_t kMaxFeatures = 128;
    if (device_.failed() || type != DType::kBFloat16 || dims.head_features <= 0 ||
        dims.head_features % 8 != 0 || dims.head_features > kMaxFeatures) {
      return false;
    }
    const auto found = fused_.find(dims);
    if (found != fused_.end()) return found->second;
    if (!scratch_.MayPrepare()) return false;
    const bool fused = fused_[dims] = !machine_.LibraryFails("plan of attention");
    if (!fused) {
      ++counters_.unfused_attentions;
      counters_.attention_reason = "emulated library: no plan of attention";
    }
    return fused;
  }
  void FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                             FloatSpan statistics) override {
    CHECK(HasFusedAttention(dims, qkv.type()) && context.type() == qkv.type());
    Do("attention", dims, {{"qkv", qkv}}, {{"context", context}, {"statistics", statistics}}, [=] {
      const Floats in = Read(qkv);
      Floats out(context.size());
      MakeReferenceBackend()->dense().AttentionForward(dims, {}, in, out, statistics, {});
      Write(out, context);
    });
  }
  void FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                              ConstValues dcontext, ConstFloatSpan statistics, Values /*scratch*/,
                              Values dqkv) override {
    CHECK(HasFusedAttention(dims, qkv.type()) && dqkv.type() == qkv.type());
    CHECK(context.size() == dcontext.size() && context.type() == dcontext.type());
    const Operands inputs = {
        {"qkv", qkv}, {"context", context}, {"dcontext", dcontext}, {"statistics", statistics}};
    Do("attention, backward", dims, inputs, {{"dqkv", dqkv}}, [=] {
      const Floats in = Read(qkv);
      const auto reference = MakeReferenceBackend();
      Floats stored(context.size()), logs(statistics.size()), out(dqkv.size());
      reference->dense().AttentionForward(dims, {}, in, stored, logs, {});
      // Fused kernels read what forward stored; the reference computes it again.
      for (size_t i = 0; i < logs.size(); ++i) {
        CHECK(statistics[i] == logs[i] || std::isnan(logs[i])) << statistics[i] << " " << logs[i];
      }
      const Floats read = Read(context);
      for (size_t i = 0; i < read.size(); ++i) {
        CHECK_EQ(read[i], __bfloat162float(__float2bfloat16(stored[i])));
      }
      reference->dense().AttentionBackward(dims, {}, in, stored, Read(dcontext), logs, {}, out);
      Write(out, dqkv);
    });
  }

 private:
  // Reads factors, rounded to TF32 if that is allowed at the time of the call.
  std::function<Floats(ConstValues)> Factors() const {
    return [tf32 = tf32_](ConstValues values) {
      Floats floats = Read(values);
      if (tf32 && values.type() == DType::kFloat32) {
        for (float& x : floats) x = RoundToTf32(x);
      }
      return floats;
    };
  }

  void Do(const char* operation, const Extents& extents, Operands inputs, Operands outputs,
          std::function<void()> work) {
    if (device_.failed()) return;
    if (!HasPlan(operation, extents, inputs, outputs)) return;
    // Different for most extents, so that blocks grow.
    const size_t bytes = 256 * (1 + (ElementsOf(inputs) + ElementsOf(outputs)) % 61);
    std::byte* const memory = scratch_.Take(bytes);
    if (memory == nullptr) return;
    const Operand workspace = {"workspace", std::span(reinterpret_cast<float*>(memory), bytes / 4)};
    CheckOperands(operation, inputs, outputs, workspace);
    if (machine_.LibraryFails(operation)) {
      return device_.FailOperation(
          absl::InternalError(absl::StrCat("emulated library: execution of ", operation)));
    }
    device_.Check(EmulatedCuda::Enqueue(device_.stream(),
                                        [work = std::move(work), memory, bytes] {
                                          std::memset(memory, 0xFF, bytes);
                                          work();
                                          return cudaSuccess;
                                        }),
                  operation);
  }

  // Makes the plan at its first use. False after an error, or if it would have to be made during a
  // capture.
  bool HasPlan(const char* operation, const Extents& extents, Operands inputs, Operands outputs) {
    uintptr_t addresses = 16;
    for (const Operands& operands : {inputs, outputs}) {
      for (const Operand& operand : operands) {
        addresses |= reinterpret_cast<uintptr_t>(operand.values.data());
      }
    }
    PlanKey key{.operation = operation,
                .extents = extents,
                .type = inputs.begin()->values.type(),
                .tf32 = tf32_,
                .alignment = addresses & -addresses};
    if (plans_.contains(key)) return true;
    if (!scratch_.MayPrepare()) return false;
    if (machine_.LibraryFails(absl::StrCat("plan of ", operation))) {
      std::string error = absl::StrCat("emulated library: no plan of ", operation);
      if (!std::holds_alternative<ConvolutionDims>(extents)) {
        device_.Fail(WithReason(absl::FailedPreconditionError(error), kReasonNoPlan));
        return false;
      }
      // Cadre's kernels would compute it.
      ++counters_.fallback_convolutions;
      counters_.convolution_reason = std::move(error);
    }
    plans_.insert(std::move(key));
    return true;
  }

  // Libraries read operands and the workspace while they write others, so what is written must not
  // overlap anything else.
  void CheckOperands(const char* operation, Operands inputs, Operands outputs,
                     const Operand& workspace) const {
    std::vector<Operand> all = {workspace};
    all.insert(all.end(), outputs.begin(), outputs.end());
    const size_t written = all.size();
    all.insert(all.end(), inputs.begin(), inputs.end());
    for (size_t i = 0; i < all.size(); ++i) {
      const ConstValues values = all[i].values;
      if (values.empty()) continue;
      CHECK(EmulatedCuda::OnDevice(device_.stream(), values.data(), values.bytes()))
          << operation << ": " << all[i].name << ", an operand of " << values.bytes()
          << " bytes, is not the device's memory";
      for (size_t j = 0; j < std::min(i, written); ++j) {
        CHECK(!Overlap(values, all[j].values))
            << operation << " writes " << all[j].name << ", which overlaps " << all[i].name;
      }
    }
  }
  static bool Overlap(ConstValues a, ConstValues b) {
    const auto* const a_begin = static_cast<const std::byte*>(a.data());
    const auto* const b_begin = static_cast<const std::byte*>(b.data());
    return !a.empty() && !b.empty() && a_begin < b_begin + b.bytes() &&
           b_begin < a_begin + a.bytes();
  }

  CudaDevice& device_;
  EmulatedCuda& machine_;
  CudaScratch scratch_;
  bool tf32_ = false;
  std::set<PlanKey> plans_;
  // Whether a plan was found for attention.
  std::map<AttentionDims, bool> fused_;
  DenseMathCounters counters_;
};

}  // namespace

std::unique_ptr<DenseMath> MakeEmulatedMath(CudaDevice& device, EmulatedCuda& machine) {
  // Compares a function of the tables, because each machine has its own functions.
  CHECK(device.api().launch == machine.api().launch) << "a device of another machine";
  return std::make_unique<EmulatedMath>(device, machine);
}

}  // namespace cadre
