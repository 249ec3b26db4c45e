// Local response norm (Krizhevsky et al. 2012). A thread computes an element; the few neighbouring
// channels come from the first-level cache.
#include "kernels/cuda/local_response.h"

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// d^-beta, by square roots for the usual exponent 3/4.
__device__ inline float Power(float d, float beta) {
  if (beta == 0.75F) {
    const float root = sqrtf(d);
    return 1.0F / (root * sqrtf(root));
  }
  return powf(d, -beta);
}

template <typename T>
__global__ void __launch_bounds__(256)
    Respond(int64_t n, int64_t channels, int64_t before, int64_t after, float factor, float beta,
            float k, const T* __restrict__ x, T* __restrict__ y, float* __restrict__ d) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t c;
    const int64_t row = Divide(i, channels, &c) * channels;
    const int64_t first = c > before ? c - before : 0;
    const int64_t end = c + after + 1 < channels ? c + after + 1 : channels;
    float squares = 0;
    for (int64_t at = row + first; at < row + end; ++at) {
      const float value = ToFloat(x[at]);
      squares += value * value;
    }
    const float divisor = k + factor * squares;
    d[i] = divisor;
    FromFloat(ToFloat(x[i]) * Power(divisor, beta), y + i);
  }
}

// y[j] depends on x[c] through its numerator if j = c, and through d[j] if c is in the window of j:
// for j from c - after to c + before.
template <typename T>
__global__ void __launch_bounds__(256)
    RespondBackward(int64_t n, int64_t channels, int64_t before, int64_t after, float factor,
                    float beta, const T* __restrict__ x, const float* __restrict__ d,
                    const T* __restrict__ dy, T* __restrict__ dx) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t c;
    const int64_t row = Divide(i, channels, &c) * channels;
    const int64_t first = c > after ? c - after : 0;
    const int64_t end = c + before + 1 < channels ? c + before + 1 : channels;
    float through = 0;
    for (int64_t at = row + first; at < row + end; ++at) {
      through += ToFloat(dy[at]) * ToFloat(x[at]) * (Power(d[at], beta) / d[at]);
    }
    const float direct = ToFloat(dy[i]) * Power(d[i], beta);
    FromFloat(direct - 2 * factor * beta * ToFloat(x[i]) * through, dx + i);
  }
}

}  // namespace

void CudaLrnForward(CudaDevice& device, const LrnDims& dims, ConstValues x, Values y, FloatSpan d) {
  const int64_t n = SizeOf(dims);
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    Launch(device, "local response norm", Respond<T>, Strided(device, n), n, dims.channels,
           dims.size / 2, (dims.size - 1) / 2, dims.alpha / dims.size, dims.beta, dims.k,
           Data<T>(x), Data<T>(y), d.data());
  });
}

void CudaLrnBackward(CudaDevice& device, const LrnDims& dims, ConstValues x, ConstFloatSpan d,
                     ConstValues dy, Values dx) {
  const int64_t n = SizeOf(dims);
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    Launch(device, "local response norm gradient", RespondBackward<T>, Strided(device, n), n,
           dims.channels, dims.size / 2, (dims.size - 1) / 2, dims.alpha / dims.size, dims.beta,
           Data<T>(x), d.data(), Data<T>(dy), Data<T>(dx));
  });
}

}  // namespace cadre
