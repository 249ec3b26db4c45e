// Copies and sums of boxes of tensors (halos, reshards, runs of rows), transposition, and the
// search for non-finite values.
//
// A box is copied by a loop nest over two buffers (nest.h); neighbouring loops that are contiguous
// in both are merged, and the innermost one moves 16 bytes at a time if both buffers are aligned.
// There is one launch per box: launches, not bytes, dominate the cost of small halos.
//
// Transposition copies tiles through shared memory: rows are read and columns written contiguously,
// and the tile's rows are padded by one element so that a column's elements lie in different banks.
#include "device/cuda/launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/nest.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(256)
    CopyNest(Nest nest, const T* __restrict__ from, T* __restrict__ to) {
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t a;
    int64_t b;
    Locate(nest, i, &a, &b);
    *reinterpret_cast<Group<T, N>*>(to + b) = *reinterpret_cast<const Group<T, N>*>(from + a);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256)
    AddNest(Nest nest, const T* __restrict__ from, T* __restrict__ to) {
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t a;
    int64_t b;
    Locate(nest, i, &a, &b);
    float values[N];
    float sums[N];
    LoadGroup(from + a, values);
    LoadGroup(to + b, sums);
    for (int k = 0; k < N; ++k) sums[k] += values[k];
    StoreGroup(sums, to + b);
  }
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// T is an unsigned integer of the element's size. A block may transpose tiles of several matrices.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileRows)
    TransposeTiles(int64_t batch, int64_t rows, int64_t columns, const T* __restrict__ x,
                   T* __restrict__ y) {
  // One more column, so that threads that read down a column access different banks.
  __shared__ T tile[kTile][kTile + 1];
  const int64_t across = (columns + kTile - 1) / kTile;
  const int64_t down = (rows + kTile - 1) / kTile;
  for (int64_t t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
    int64_t tile_column;
    int64_t tile_row;
    const int64_t sample = Divide(Divide(t, across, &tile_column), down, &tile_row);
    const int64_t first_row = tile_row * kTile;
    const int64_t first_column = tile_column * kTile;
    const T* const from = x + sample * rows * columns;
    T* const to = y + sample * rows * columns;
    for (int i = threadIdx.y; i < kTile; i += kTileRows) {
      const int64_t row = first_row + i;
      const int64_t column = first_column + threadIdx.x;
      if (row < rows && column < columns) tile[i][threadIdx.x] = from[row * columns + column];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kTile; i += kTileRows) {
      const int64_t row = first_row + threadIdx.x;
      const int64_t column = first_column + i;
      if (row < rows && column < columns) to[column * rows + row] = tile[threadIdx.x][i];
    }
    __syncthreads();
  }
}

template <typename T>
void LaunchTransposeOf(CudaDevice& device, int64_t batch, int64_t rows, int64_t columns,
                       ConstValues x, Values y) {
  const int64_t tiles = batch * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  LaunchShape shape = Strided(device, tiles * kTile * kTileRows);
  shape.block = dim3(kTile, kTileRows);
  Launch(device, "transpose", TransposeTiles<T>, shape, batch, rows, columns, Data<T>(x),
         Data<T>(y));
}

// sum += values, in the elements' own type.
template <typename T>
__global__ void __launch_bounds__(256)
    AddNumbers(int64_t n, const T* __restrict__ values, T* __restrict__ sum) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) sum[i] += values[i];
}

template <typename T>
void LaunchAddNumbers(CudaDevice& device, std::span<std::byte> sum,
                      std::span<const std::byte> values) {
  const int64_t n = sum.size() / sizeof(T);
  Launch(device, "addition of received values", AddNumbers<T>, Strided(device, n), n,
         reinterpret_cast<const T*>(values.data()), reinterpret_cast<T*>(sum.data()));
}

// Stores 1 if any element is not finite. Every thread that finds one stores the same value, so the
// order does not matter.
template <typename T, int N>
__global__ void __launch_bounds__(256)
    FindNotFinite(int64_t n, const T* __restrict__ x, int32_t* not_finite) {
  bool bad = false;
  const int64_t groups = n / N;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float values[N];
    LoadGroup(x + i * N, values);
    for (int k = 0; k < N; ++k) bad = bad || !IsFinite(values[k]);
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    bad = bad || !IsFinite(ToFloat(x[i]));
  }
  if (bad) *not_finite = 1;
}

class CudaMemory final : public MemoryKernels {
 public:
  explicit CudaMemory(CudaContext& cuda) : cuda_(cuda) {}

  void Copy(ConstValues x, Values y) override { cuda_.Copy(x, y); }
  void Zero(Values y) override { cuda_.Zero(y); }

  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) override {
    CHECK(x.type() == y.type());
    if (rows <= 0 || run <= 0) return;
    const int64_t x_size = x.size(), y_size = y.size();
    CHECK_LE((rows - 1) * x_step + run, x_size) << "elements of x";
    CHECK_LE((rows - 1) * y_step + run, y_size) << "elements of y";
    CopyNestOf({.loops = {{rows, x_step, y_step}, {run, 1, 1}}}, x, y);
  }

  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) override {
    CheckBoxes(from, from_box, to, to_box);
    if (!region.empty()) CopyNestOf(WalkOf(from_box, to_box, region), from, to);
  }

  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) override {
    CheckBoxes(from, from_box, to, to_box);
    if (region.empty()) return;
    ByNestWidth(WalkOf(from_box, to_box, region), from, to,
                [&](const Nest& nest, auto zero, auto group) {
                  using T = decltype(zero);
                  Launch(cuda_.device, "add a box", AddNest<T, decltype(group)::value>,
                         Strided(cuda_.device, nest.elements), nest, Data<T>(from), Data<T>(to));
                });
  }

  void AccumulateReceived(DType type, std::span<std::byte> sum,
                          std::span<const std::byte> values) override {
    CHECK_EQ(sum.size(), values.size());
    if (sum.empty()) return;
    if (type == DType::kFloat64) return LaunchAddNumbers<double>(cuda_.device, sum, values);
    if (type == DType::kUInt64) return LaunchAddNumbers<uint64_t>(cuda_.device, sum, values);
    ByType(type, [&](auto zero) {
      using T = decltype(zero);
      T* const to = reinterpret_cast<T*>(sum.data());
      LaunchMap(cuda_.device, "addition of received values", Sum(), sum.size() / sizeof(T),
                reinterpret_cast<const T*>(values.data()), static_cast<const T*>(to), to);
    });
  }

  bool AllFinite(ConstValues x) override {
    if (x.empty() || cuda_.results.data() == nullptr) return true;
    int32_t* const not_finite = &cuda_.results.data()->not_finite;
    cuda_.device.Zero(not_finite, sizeof(*not_finite));
    const int64_t n = x.size();
    ByTypeAndWidth(x.type(), /*extent=*/0, {x.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      Launch(cuda_.device, "search for non-finite values", FindNotFinite<T, kGroup>,
             Strided(cuda_.device, n / kGroup + 1), n, Data<T>(x), not_finite);
    });
    int32_t answer = 0;
    cuda_.device.CopyOut(not_finite, &answer, sizeof(answer)).IgnoreError();  // status() has it
    return answer == 0;
  }

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override {
    CheckSizes(batch * positions * channels, {{"x", x.size()}, {"y", y.size()}});
    if (y.empty()) return;
    if (SizeOf(x.type()) == 2) {
      LaunchTransposeOf<uint16_t>(cuda_.device, batch, positions, channels, x, y);
    } else {
      LaunchTransposeOf<uint32_t>(cuda_.device, batch, positions, channels, x, y);
    }
  }

 private:
  static void CheckBoxes(ConstValues from, const Box& from_box, ConstValues to, const Box& to_box) {
    CHECK(from.type() == to.type());
    CheckSize("from", from.size(), from_box.shape().elements());
    CheckSize("to", to.size(), to_box.shape().elements());
  }

  // Calls f(nest, zero of the type, integral_constant of the group's size) with the largest groups
  // that the walk and the addresses allow.
  template <typename F>
  static void ByNestWidth(const NestLoops& loops, ConstValues from, Values to, const F& f) {
    const Nest nest = MakeNest(loops);
    ByType(to.type(), [&](auto zero) {
      constexpr int kGroup = kWide<decltype(zero)>;
      if (Aligned({from.data(), to.data()}) && CanGroup(nest, kGroup, /*check_b=*/true)) {
        f(Grouped(nest, kGroup), zero, std::integral_constant<int, kGroup>());
      } else {
        f(nest, zero, std::integral_constant<int, 1>());
      }
    });
  }

  void CopyNestOf(const NestLoops& loops, ConstValues from, Values to) {
    ByNestWidth(loops, from, to, [&](const Nest& nest, auto zero, auto group) {
      using T = decltype(zero);
      Launch(cuda_.device, "copy a box", CopyNest<T, decltype(group)::value>,
             Strided(cuda_.device, nest.elements), nest, Data<T>(from), Data<T>(to));
    });
  }

  CudaContext& cuda_;
};

}  // namespace

std::unique_ptr<MemoryKernels> MakeCudaMemory(CudaContext& cuda) {
  return std::make_unique<CudaMemory>(cuda);
}

}  // namespace cadre
