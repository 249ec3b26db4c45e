#include "tests/emulator/emulated_math.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

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

class EmulatedMath final : public DenseMath {
 public:
  EmulatedMath(CudaDevice& device, EmulatedCuda& machine) : device_(device), machine_(machine) {}

  void set_tf32(bool allowed) override { tf32_ = allowed; }
  std::string versions() const override { return "emulated"; }

  void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b,
                     ConstValues bias, Values c) override {
    CHECK_LE(dims.batch, kMaxProducts);
    CHECK(a.type() == b.type());
    CHECK(c.type() == a.type() || c.type() == DType::kFloat32);
    CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == dims.n);
    CHECK(bias.empty() || bias.type() == DType::kFloat32 || bias.type() == c.type());
    Do("matrix product", {a, b, bias, c},
       [=, factors = Factors()] { MultiplyAll(dims, factors(a), factors(b), Read(bias), c); });
  }

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                          Values y) override {
    CHECK(x.type() == w.type() && x.type() == y.type());
    Do("convolution", {x, w, y}, [=, factors = Factors()] {
      Floats out(y.size());
      MakeReferenceBackend()->window().ConvolutionForward(dims, factors(x), factors(w), {}, out);
      Write(out, y);
    });
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                               Values dx) override {
    CHECK(dy.type() == w.type() && dy.type() == dx.type());
    Do("convolution, backward data", {dy, w, dx}, [=, factors = Factors()] {
      Floats out(dx.size());
      MakeReferenceBackend()->window().ConvolutionBackwardData(dims, factors(dy), factors(w), out);
      Write(out, dx);
    });
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw) override {
    CHECK(x.type() == dy.type());
    Do("convolution, backward weights", {x, dy, dw}, [=, factors = Factors()] {
      Floats out(dw.size());
      MakeReferenceBackend()->window().ConvolutionBackwardWeights(dims, factors(x), factors(dy),
                                                                  out, {});
      Write(out, dw);
    });
  }

  bool HasFusedAttention(const AttentionDims& dims, DType type) override {
    // The limits of cuDNN.
    constexpr int64_t kMaxFeatures = 128;
    return type == DType::kBFloat16 && dims.head_features > 0 && dims.head_features % 8 == 0 &&
           dims.head_features <= kMaxFeatures;
  }
  void FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                             FloatSpan statistics) override {
    CHECK(HasFusedAttention(dims, qkv.type()) && context.type() == qkv.type());
    Do("attention", {qkv, context, statistics}, [=] {
      const Floats in = Read(qkv);
      Floats out(context.size());
      MakeReferenceBackend()->dense().AttentionForward(dims, {}, in, out, statistics);
      Write(out, context);
    });
  }
  void FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues context,
                              ConstValues dcontext, ConstFloatSpan statistics,
                              Values dqkv) override {
    CHECK(HasFusedAttention(dims, qkv.type()) && dqkv.type() == qkv.type());
    CHECK(context.size() == dcontext.size() && context.type() == dcontext.type());
    Do("attention, backward", {qkv, context, dcontext, statistics, dqkv}, [=] {
      const Floats in = Read(qkv);
      const auto reference = MakeReferenceBackend();
      Floats stored(context.size()), logs(statistics.size()), out(dqkv.size());
      reference->dense().AttentionForward(dims, {}, in, stored, logs);
      // Fused kernels read what forward stored; the reference computes it again.
      for (size_t i = 0; i < logs.size(); ++i) {
        CHECK(statistics[i] == logs[i] || std::isnan(logs[i])) << statistics[i] << " " << logs[i];
      }
      const Floats read = Read(context);
      for (size_t i = 0; i < read.size(); ++i) {
        CHECK_EQ(read[i], __bfloat162float(__float2bfloat16(stored[i])));
      }
      reference->dense().AttentionBackward(dims, {}, in, stored, Read(dcontext), logs, out);
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

  void Do(const char* what, std::initializer_list<ConstValues> operands,
          std::function<void()> work) {
    if (device_.failed()) return;
    if (machine_.LibraryFails()) {
      return device_.FailOperation(
          absl::InternalError(absl::StrCat(what, ": the emulated library fails")));
    }
    const cudaStream_t stream = device_.stream();
    for (const ConstValues& operand : operands) {
      CHECK(operand.empty() || EmulatedCuda::OnDevice(stream, operand.data(), operand.bytes()))
          << what << ": an operand of " << operand.bytes() << " bytes is not the device's memory";
    }
    device_.Check(EmulatedCuda::Enqueue(stream,
                                        [work = std::move(work)] {
                                          work();
                                          return cudaSuccess;
                                        }),
                  what);
  }

  CudaDevice& device_;
  EmulatedCuda& machine_;
  bool tf32_ = false;
};

}  // namespace

std::unique_ptr<DenseMath> MakeEmulatedMath(CudaDevice& device, EmulatedCuda& machine) {
  // Compares a function of the tables, because each machine has its own functions.
  CHECK(device.api().launch == machine.api().launch) << "a device of another machine";
  return std::make_unique<EmulatedMath>(device, machine);
}

}  // namespace cadre
