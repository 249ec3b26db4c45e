// Sums over the rows of a matrix, column by column, in two launches and a fixed order: blocks sum
// bands (parts) of the rows into scratch memory, and then the bands' sums are added up. The
// division into bands depends on the extents only, so the same data give the same bits on every
// device.
//
// Also the launch shape of kernels over a matrix that use one value per column: a thread keeps its
// columns and iterates over rows. For *.cu only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/scratch.h"

namespace cadre {

inline constexpr int kColumnThreads = 256;
// Maximum number of blocks that sum bands of rows.
inline constexpr int64_t kMaxColumnBlocks = 1024;

// Minimum number of rows per thread, unless the rows are fewer.
inline constexpr int kColumnRows = 4;

// Maximum number of groups of columns per block.
inline constexpr int kMaxColumnGroups = 32;

// A block's threads are [rows, groups of `group` columns], with at most `max_across` groups; blocks
// along x divide the columns, and blocks along y divide the rows. Requires: `threads` and
// `max_across` are powers of two.
inline LaunchShape ColumnShape(int64_t rows, int64_t columns, int group, int64_t max_blocks,
                               int threads = kColumnThreads, int max_across = kMaxColumnGroups) {
  const int64_t groups = columns / group;
  int across = 1;
  while (across < max_across && across < groups) across *= 2;
  const int down = threads / across;
  const int64_t tiles = (groups + across - 1) / across;
  const int64_t step = kColumnRows * down;
  const int64_t bands =
      std::clamp<int64_t>((rows + step - 1) / step, 1, std::max<int64_t>(1, max_blocks / tiles));
  return {.grid = dim3(tiles, bands), .block = dim3(across, down)};
}

// The same for an elementwise pass, whose result does not depend on the number of blocks. Threads
// have fewer rows if some processors would have no block otherwise.
inline LaunchShape ColumnShape(const CudaDevice& device, int64_t rows, int64_t columns, int group) {
  const int64_t processors = device.processors();
  LaunchShape shape = ColumnShape(rows, columns, group, processors * 8);
  const int64_t down = shape.block.y;
  const int64_t wanted =
      std::min<int64_t>((rows + down - 1) / down, (processors + shape.grid.x - 1) / shape.grid.x);
  shape.grid.y = std::max<int64_t>(shape.grid.y, wanted);
  return shape;
}

// The first column and the rows that a thread of such a kernel processes.
struct ColumnPlace {
  int64_t column;
  int64_t first_row, row_step;
};

template <int N>
__device__ inline ColumnPlace PlaceInColumns() {
  return {ThreadIndex() * N, int64_t{blockIdx.y} * blockDim.y + threadIdx.y,
          int64_t{gridDim.y} * blockDim.y};
}

// Loads one value for each of a thread's N columns.
template <int N>
__device__ inline void LoadColumns(const float* __restrict__ from, int64_t column,
                                   float (&values)[N]) {
  for (int k = 0; k < N; ++k) values[k] = from[column + k];
}

// Base of Terms (see SumBands) that read no values by column.
struct RowTerms {
  struct None {};
  template <int N>
  __device__ None At(int64_t) const {
    return {};
  }
};

// partial[bands, kSums, columns] = sums over a band of rows. `Terms` defines what is summed:
// At<N>(column) loads the values of N columns, and Add<N>(these values, row, index of the element,
// sums) adds the terms of N elements to Terms::kSums sums.
template <typename Terms, int N>
__global__ void __launch_bounds__(kColumnThreads)
    SumBands(Terms terms, int64_t rows, int64_t columns, double* __restrict__ partial) {
  __shared__ double shared[Terms::kSums * N][kColumnThreads];
  const ColumnPlace place = PlaceInColumns<N>();
  const bool here = place.column < columns;
  double sums[Terms::kSums][N] = {};
  if (here) {
    const auto by_column = terms.template At<N>(place.column);
    for (int64_t row = place.first_row; row < rows; row += place.row_step) {
      terms.template Add<N>(by_column, row, row * columns + place.column, sums);
    }
  }
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int s = 0; s < Terms::kSums; ++s) {
    for (int k = 0; k < N; ++k) shared[s * N + k][thread] = sums[s][k];
  }
  __syncthreads();
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y < half) {
      for (int i = 0; i < Terms::kSums * N; ++i) {
        shared[i][thread] += shared[i][thread + half * blockDim.x];
      }
    }
    __syncthreads();
  }
  if (!here || threadIdx.y != 0) return;
  for (int s = 0; s < Terms::kSums; ++s) {
    double* const to = partial + (blockIdx.y * Terms::kSums + s) * columns + place.column;
    for (int k = 0; k < N; ++k) to[k] = shared[s * N + k][threadIdx.x];
  }
}

// Where sums over rows are stored, by column. `second` is not used if there is one sum. The sums
// are also stored as fp32 where `rounded_first` and `rounded_second` are not null. `add`: sums are
// added to what `first` and `second` hold.
template <typename T>
struct ColumnResults {
  T* first;
  T* second = nullptr;
  float* rounded_first = nullptr;
  float* rounded_second = nullptr;
  bool add = false;
};

// Adds up the bands of partial[bands, columns] and stores the sums of columns [0, split) as first
// and the other sums as second.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    AddBands(int64_t bands, int64_t columns, const double* __restrict__ partial, int64_t split,
             ColumnResults<T> to) {
  __shared__ double shared[32][8];
  const int64_t column = int64_t{blockIdx.x} * 8 + threadIdx.x;
  double sum = 0;
  if (column < columns) {
    for (int64_t band = threadIdx.y; band < bands; band += 32) {
      sum += partial[band * columns + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int strip = 1; strip < 32; ++strip) sum += shared[strip][threadIdx.x];
  const bool is_first = column < split;
  const int64_t at = is_first ? column : column - split;
  T* const result = (is_first ? to.first : to.second) + at;
  if (to.add) sum += *result;
  *result = sum;
  float* const rounded = is_first ? to.rounded_first : to.rounded_second;
  if (rounded != nullptr) rounded[at] = sum;
}

// Stores the sums of `terms` over the rows (zero rows are allowed). N elements of a row are read
// together.
template <int N, typename Terms, typename T>
void LaunchColumnSums(CudaDevice& device, CudaScratch& scratch, const char* name,
                      const Terms& terms, int64_t rows, int64_t columns,
                      const ColumnResults<T>& to) {
  if (columns == 0) return;
  const LaunchShape shape = ColumnShape(rows, columns, N, kMaxColumnBlocks);
  const int64_t all = Terms::kSums * columns;
  const auto partial = scratch.Take<double>(all * shape.grid.y);
  Launch(device, name, SumBands<Terms, N>, shape, terms, rows, columns, partial.data());
  Launch(device, name, AddBands<T>, LaunchShape{.grid = dim3((all + 7) / 8), .block = dim3(8, 32)},
         shape.grid.y, all, partial.data(), columns, to);
}

}  // namespace cadre
