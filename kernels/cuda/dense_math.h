// The operations that the CUDA back end leaves to libraries: matrix products (cuBLASLt),
// convolutions and fused attention (cuDNN). They are an interface, so that tests can replace the
// libraries by loops on the host.
//
// Work is enqueued on the current stream of the object's device. Plans and workspaces are made when
// extents are used for the first time, and kept; later uses allocate nothing. Thread-compatible.
// Errors are the device's (device.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/library_loader.h"
#include "kernels/backend.h"
#include "tensor/dtype.h"
#include "tensor/values.h"

namespace cadre {

// Libraries may refuse batches of more products, which are a dimension of the grid of their
// kernels.
inline constexpr int64_t kMaxProducts = 65'535;

// c[batch] = op(a)[batch] op(b)[batch] (+ bias), row-major; with `add`, c gets the sum of this and
// what it holds. op(a): [m, k]; op(b): [k, n].
struct MatrixProductDims {
  int64_t m = 0, n = 0, k = 0;
  // a is stored as [k, m], b as [n, k].
  bool transpose_a = false, transpose_b = false;
  // Distance in elements between stored rows; 0: rows are contiguous.
  int64_t a_row = 0, b_row = 0, c_row = 0;
  // At most kMaxProducts.
  int64_t batch = 1;
  // Distance in elements between the matrices of a batch.
  int64_t a_step = 0, b_step = 0, c_step = 0;
  // A second batch dimension, outside the first.
  int64_t outer = 1;
  int64_t a_outer = 0, b_outer = 0, c_outer = 0;
  float alpha = 1;
  bool add = false;
  friend auto operator<=>(const MatrixProductDims&, const MatrixProductDims&) = default;
};

// What the library could not do. Each number counts a case once, however often it is computed: a
// case is a set of extents with its type, alignment and pass. The reasons are those of the last
// cases, with the library's text; each case is also logged once with its own.
struct DenseMathCounters {
  // Convolutions for which the library has no plan, or a plan that failed; Cadre's own kernels,
  // which are slower, compute them.
  int64_t fallback_convolutions = 0;
  std::string convolution_reason;
  // Attentions that fused kernels could compute by their extents but not for lack of a plan. They
  // are computed by matrix products, by blocks of scores (attention.cu).
  int64_t unfused_attentions = 0;
  std::string attention_reason;
};

class DenseMath {
 public:
  virtual ~DenseMath() = default;

  // fp32 factors may be rounded to TF32.
  virtual void set_tf32(bool allowed) = 0;

  // a and b have one type; c has that type, or fp32 if they are bf16. bias: [n], fp32 or of the
  // type of c, added to every row of c; empty for none.
  virtual void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b,
                             ConstValues bias, Values c) = 0;

  // Images are channels last. w is [out, in / groups, height, width] as in backend.h, of the type
  // of x. Padding at the far edges is what the outputs need. There is no bias.
  virtual void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                                  Values y) = 0;
  virtual void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                                       Values dx) = 0;
  // dw: fp32.
  virtual void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x,
                                          ConstValues dy, FloatSpan dw) = 0;

  // Fused attention, which saves no probabilities for backward. The library's workspace may be
  // quadratic in the tokens: on Hopper cuDNN's deterministic backward needs one for the gradients
  // of scores. If it exceeds the library's limit, attention is not fused. qkv is
  // [batch, tokens, heads, 3, head_features] of bf16; forward stores statistics
  // [batch, heads, tokens], which backward needs. `scratch`: memory for the workspace; the library
  // uses its own if that is too small.
  // Requires: no padding token.
  virtual bool HasFusedAttention(const AttentionDims& dims, DType type) = 0;
  virtual void FusedAttentionForward(const AttentionDims& dims, ConstValues qkv, Values context,
                                     FloatSpan statistics) = 0;
  virtual void FusedAttentionBackward(const AttentionDims& dims, ConstValues qkv,
                                      ConstValues context, ConstValues dcontext,
                                      ConstFloatSpan statistics, Values scratch, Values dqkv) = 0;

  // For messages and measurements: "cuBLAS 13.1.0, cuDNN 9.19.0".
  virtual std::string versions() const = 0;
  virtual DenseMathCounters counters() const { return {}; }
};

// DenseMath by the vendor's libraries, which this call loads (library_loader.h). The workspace of a
// cuDNN call is at most a sixteenth of the device's memory (but 64 MiB are always allowed), and at
// most 2 GiB. Errors: FailedPrecondition with the library that is missing or too old, the searched
// folders, and how to install it.
absl::StatusOr<std::unique_ptr<DenseMath>> MakeLibraryMath(CudaDevice& device,
                                                           const LibrarySearch& search);

}  // namespace cadre
