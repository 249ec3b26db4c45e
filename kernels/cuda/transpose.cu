// Transposition by tiles in shared memory: rows are read and columns written in contiguous runs,
// and the tile's rows are padded by one element so that a column's elements lie in different banks.
#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// T: bits of an element's size. A block moves tiles of any of the matrices.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileRows)
    TransposeTiles(int64_t batch, int64_t rows, int64_t columns, const T* __restrict__ x,
                   T* __restrict__ y) {
  // One column more: threads that read down a column touch different banks.
  __shared__ T tile[kTile][kTile + 1];
  const int64_t across = (columns + kTile - 1) / kTile;
  const int64_t down = (rows + kTile - 1) / kTile;
  for (int64_t t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
    int64_t tile_column;
    int64_t tile_row;
    const int64_t image = Divide(Divide(t, across, &tile_column), down, &tile_row);
    const int64_t first_row = tile_row * kTile;
    const int64_t first_column = tile_column * kTile;
    const T* const from = x + image * rows * columns;
    T* const to = y + image * rows * columns;
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
  Launch(device, "transpose", TransposeTiles<T>, shape, batch, rows, columns,
         static_cast<const T*>(x.data()), static_cast<T*>(y.data()));
}

}  // namespace

void LaunchTranspose(CudaDevice& device, int64_t batch, int64_t positions, int64_t channels,
                     ConstValues x, Values y) {
  if (SizeOf(x.type()) == 2) {
    LaunchTransposeOf<uint16_t>(device, batch, positions, channels, x, y);
  } else {
    LaunchTransposeOf<uint32_t>(device, batch, positions, channels, x, y);
  }
}

}  // namespace cadre
