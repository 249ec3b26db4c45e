// fp32 to bf16 and back, eight elements a thread.
#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

template <typename From, typename To, int N>
__global__ void __launch_bounds__(256)
    Convert(int64_t n, const From* __restrict__ x, To* __restrict__ y) {
  const int64_t groups = n / N;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float values[N];
    LoadGroup(x + i * N, values);
    StoreGroup(values, y + i * N);
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    FromFloat(ToFloat(x[i]), y + i);
  }
}

template <typename From, typename To>
void LaunchConvertOf(CudaDevice& device, ConstValues x, Values y) {
  const auto n = static_cast<int64_t>(x.size());
  const From* const from = static_cast<const From*>(x.data());
  To* const to = static_cast<To*>(y.data());
  if (Aligned({from, to})) {
    Launch(device, "convert", Convert<From, To, 8>, Strided(device, n / 8 + 1), n, from, to);
  } else {
    Launch(device, "convert", Convert<From, To, 1>, Strided(device, n), n, from, to);
  }
}

}  // namespace

void LaunchConvert(CudaDevice& device, ConstValues x, Values y) {
  ByType(x.type(), [&](auto from) {
    ByType(y.type(), [&](auto to) { LaunchConvertOf<decltype(from), decltype(to)>(device, x, y); });
  });
}

}  // namespace cadre
