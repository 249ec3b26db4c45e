// Element by element: one pass, sixteen bytes at a time where all arrays begin at a multiple of it.
#include <cmath>

#include "device/cuda/launch.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

// 1 / sqrt(2) and 1 / sqrt(2 pi).
constexpr float kRootHalf = 0.707106781F;
constexpr float kDensity = 0.398942280F;

// Forms that keep not-a-number what it is.
struct Relu {
  __device__ float operator()(float x, float) const { return x < 0 ? 0 : x; }
};
// By the complement, small values keep their relative precision.
struct Gelu {
  __device__ float operator()(float x, float) const { return x * (0.5F * erfcf(-x * kRootHalf)); }
};
struct Sigmoid {
  __device__ float operator()(float x, float) const { return 1.0F / (1.0F + expf(-x)); }
};
struct Tanh {
  __device__ float operator()(float x, float) const { return tanhf(x); }
};

// Of what forward saw (gelu: x, the others: y) and dy.
struct ReluBackward {
  __device__ float operator()(float y, float dy) const { return y > 0 ? dy : 0; }
};
struct GeluBackward {
  __device__ float operator()(float x, float dy) const {
    const float below = 0.5F * erfcf(-x * kRootHalf);
    return dy * (below + x * (expf(-0.5F * x * x) * kDensity));
  }
};
struct SigmoidBackward {
  __device__ float operator()(float y, float dy) const { return dy * y * (1 - y); }
};
struct TanhBackward {
  __device__ float operator()(float y, float dy) const { return dy * (1 - y * y); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// y = f(a, b), without b where it is null. y may be a or b: a thread reads an element before it
// writes it, and nobody else does either.
template <typename F, typename T, int N>
__global__ void __launch_bounds__(256) Map(F f, int64_t n, const T* a, const T* b, T* y) {
  const int64_t groups = n / N;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float first[N];
    float second[N] = {};
    LoadGroup(a + i * N, first);
    if (b != nullptr) LoadGroup(b + i * N, second);
    for (int k = 0; k < N; ++k) first[k] = f(first[k], second[k]);
    StoreGroup(first, y + i * N);
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    FromFloat(f(ToFloat(a[i]), b != nullptr ? ToFloat(b[i]) : 0.0F), y + i);
  }
}

template <typename F>
void LaunchMap(CudaDevice& device, const char* name, const F& f, ConstValues a, ConstValues b,
               Values y) {
  const auto n = static_cast<int64_t>(y.size());
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const T* const from = static_cast<const T*>(a.data());
    const T* const also = static_cast<const T*>(b.data());
    T* const to = static_cast<T*>(y.data());
    if (Aligned({from, also, to})) {
      Launch(device, name, Map<F, T, kWide<T>>, Strided(device, n / kWide<T> + 1), f, n, from, also,
             to);
    } else {
      Launch(device, name, Map<F, T, 1>, Strided(device, n), f, n, from, also, to);
    }
  });
}

// sum += values, of numbers that are added in their own type.
template <typename T>
__global__ void __launch_bounds__(256)
    AddPlainly(int64_t n, const T* __restrict__ values, T* __restrict__ sum) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) sum[i] += values[i];
}

template <typename T>
void LaunchAddPlainly(CudaDevice& device, std::span<std::byte> sum,
                      std::span<const std::byte> values) {
  const auto n = static_cast<int64_t>(sum.size() / sizeof(T));
  Launch(device, "add what arrived", AddPlainly<T>, Strided(device, n), n,
         reinterpret_cast<const T*>(values.data()), reinterpret_cast<T*>(sum.data()));
}

template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    AddBias(int64_t rows, int64_t columns, const float* __restrict__ b, T* __restrict__ y) {
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  float bias[N];
  LoadColumns(b, place.column, bias);
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    float values[N];
    LoadGroup(y + row * columns + place.column, values);
    for (int k = 0; k < N; ++k) values[k] += bias[k];
    StoreGroup(values, y + row * columns + place.column);
  }
}

__global__ void SetPosition(int64_t position, CudaNumbers* numbers) {
  numbers->position = position;
}

__global__ void SetUpdate(float rate, int64_t updates, CudaNumbers* numbers) {
  numbers->rate = rate;
  numbers->updates = updates;
}

}  // namespace

void LaunchActivationForward(CudaDevice& device, Activation kind, ConstValues x, Values y) {
  constexpr const char* kName = "activation";
  const ConstValues none(nullptr, 0, x.type());
  switch (kind) {
    case Activation::kRelu:
      return LaunchMap(device, kName, Relu{}, x, none, y);
    case Activation::kGelu:
      return LaunchMap(device, kName, Gelu{}, x, none, y);
    case Activation::kSigmoid:
      return LaunchMap(device, kName, Sigmoid{}, x, none, y);
    case Activation::kTanh:
      return LaunchMap(device, kName, Tanh{}, x, none, y);
  }
}

void LaunchActivationBackward(CudaDevice& device, Activation kind, ConstValues seen, ConstValues dy,
                              Values dx) {
  constexpr const char* kName = "activation's gradient";
  switch (kind) {
    case Activation::kRelu:
      return LaunchMap(device, kName, ReluBackward{}, seen, dy, dx);
    case Activation::kGelu:
      return LaunchMap(device, kName, GeluBackward{}, seen, dy, dx);
    case Activation::kSigmoid:
      return LaunchMap(device, kName, SigmoidBackward{}, seen, dy, dx);
    case Activation::kTanh:
      return LaunchMap(device, kName, TanhBackward{}, seen, dy, dx);
  }
}

void LaunchAdd(CudaDevice& device, ConstValues x, Values y) {
  LaunchMap(device, "add", Sum{}, x, y, y);
}

void LaunchAccumulateReceived(CudaDevice& device, DType type, std::span<std::byte> sum,
                              std::span<const std::byte> values) {
  switch (type) {
    case DType::kFloat32:
    case DType::kBFloat16:
      return LaunchAdd(device, ConstValues(values.data(), values.size() / SizeOf(type), type),
                       Values(sum.data(), sum.size() / SizeOf(type), type));
    case DType::kFloat64:
      return LaunchAddPlainly<double>(device, sum, values);
    case DType::kUInt64:
      return LaunchAddPlainly<uint64_t>(device, sum, values);
    default:
      LOG(FATAL) << "no sums of " << DTypeName(type) << " here";
  }
}

void LaunchAddBias(CudaDevice& device, std::span<const float> b, Values y) {
  const auto columns = static_cast<int64_t>(b.size());
  const int64_t rows = static_cast<int64_t>(y.size()) / columns;
  const int64_t most = int64_t{device.processors()} * 8;
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    T* const to = static_cast<T*>(y.data());
    if (columns % kWide<T> == 0 && Aligned({to})) {
      Launch(device, "bias", AddBias<T, kWide<T>>, ColumnShape(rows, columns, kWide<T>, most), rows,
             columns, b.data(), to);
    } else {
      Launch(device, "bias", AddBias<T, 1>, ColumnShape(rows, columns, 1, most), rows, columns,
             b.data(), to);
    }
  });
}

void LaunchSetPosition(CudaDevice& device, int64_t position, CudaNumbers* numbers) {
  Launch(device, "position", SetPosition, LaunchShape{}, position, numbers);
}

void LaunchSetUpdate(CudaDevice& device, float rate, int64_t updates, CudaNumbers* numbers) {
  Launch(device, "numbers of an update", SetUpdate, LaunchShape{}, rate, updates, numbers);
}

}  // namespace cadre
