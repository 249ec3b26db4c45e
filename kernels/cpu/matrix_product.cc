#include "kernels/cpu/matrix_product.h"

#include <glog/logging.h>

#include <algorithm>
#include <dnnl.hpp>

namespace cadre {
namespace {

// c = alpha * a b + beta * c. Requires: no extent is 0.
void Multiply(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
              const MatrixView& b, float beta, float* c, int64_t c_stride) {
  const auto letter = [](const MatrixView& matrix) { return matrix.transposed ? 'T' : 'N'; };
  // The C interface, because it returns a status; the C++ interface may throw.
  const dnnl_status_t status = dnnl_sgemm(letter(a), letter(b), m, n, k, alpha, a.data, a.stride,
                                          b.data, b.stride, beta, c, c_stride);
  CHECK_EQ(status, dnnl_success) << "matrix product " << m << " x " << n << " x " << k;
}

}  // namespace

void MatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                   const MatrixView& b, float* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * c_stride, n, 0.0F);
    return;
  }
  Multiply(m, n, k, alpha, a, b, 0, c, c_stride);
}

bool PartsHaveBitsOfWhole(int64_t k) {
  constexpr int64_t kMaxTerms = 768;
  static const bool same_order =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  return same_order && k <= kMaxTerms;
}

void AddMatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                      const MatrixView& b, float* c, int64_t c_stride) {
  if (m == 0 || n == 0 || k == 0) return;
  Multiply(m, n, k, alpha, a, b, 1, c, c_stride);
}

PrimitiveRun MakeBf16Product(const Bf16ProductDims& dims, const dnnl::engine& engine) {
  using Desc = dnnl::memory::desc;
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  return OrDie("bf16 matrix product", [&] {
    const Desc a({dims.m, dims.k}, Type::bf16, dims.transpose_a ? Tag::ba : Tag::ab);
    const Desc b({dims.k, dims.n}, Type::bf16, dims.transpose_b ? Tag::ba : Tag::ab);
    const Desc c({dims.m, dims.n}, OneDnnType(dims.c), Tag::ab);
    const Desc bias({1, dims.n}, Type::f32, Tag::ab);
    dnnl::primitive_attr attributes = UserScratchpad();
    if (dims.add) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(
        dims.with_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c),
        attributes, engine);
    PrimitiveRun run(engine, dnnl::matmul(description), description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, a, a);
    run.AddInput(DNNL_ARG_WEIGHTS, b, b);
    if (dims.with_bias) run.AddInput(DNNL_ARG_BIAS, bias, bias);
    run.AddOutput(DNNL_ARG_DST, c, c);
    return run;
  });
}

}  // namespace cadre
