// The gradient of a convolution's weights over images that are channels last, as sums of outer
// products: for every output position and tap, the output's gradients times the inputs there.
//
// Positions are taken in chunks of whole output rows. A chunk of x and of dy is first copied into
// panels in which a position's numbers lie together, x's with their padding:
//
//   x:  [block of 32 columns][row][position in the row][32]    dy: [block of 16][position][16]
//
// A tile of the result (some output channels by some taps by 32 columns) then stays in registers
// while the positions of the chunk stream by. There are two kinds of columns. With many input
// channels, columns are channels, and taps are offsets into the panel. With few, or with a kernel
// of 1 x 1, all that an output sees is gathered into one row of columns (kernel rows, kernel
// columns, channels), so that registers are full, and there is one tap.
//
// Sums are taken in the order of the positions, in as many parts as there are threads where chunks
// are many: the same bits for the same number of threads. Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/primitive_run.h"
#include "kernels/kernels.h"

namespace cadre {

class WeightGradient {
 public:
  // Whether this processor has the registers for it, and the convolution is one for it.
  static bool Takes(const ConvolutionDims& dims);

  // Requires: Takes(dims), no empty tensor.
  explicit WeightGradient(const ConvolutionDims& dims);

  // dw and db from x and dy. An empty db: not wanted.
  void Run(int threads, Workspace& workspace, std::span<const float> x, std::span<const float> dy,
           std::span<float> dw, std::span<float> db) const;

 private:
  // A row of a panel of x, in columns of x's channels: input row `in_row` of image `image`.
  struct PanelRow {
    int64_t image = 0, in_row = 0, offset = 0;
  };
  struct Chunk {
    // Output rows [first, first + rows) of all images' output rows.
    int64_t first = 0, rows = 0;
    // Where in a panel the first tap of each output row's first position lies.
    std::vector<int64_t> starts;
    // What to copy into the panel; empty if columns are gathered.
    std::vector<PanelRow> panel_rows;
  };

  // What one thread, or all of them together, work in.
  struct Room {
    float* x_panels = nullptr;
    float* dy_panels = nullptr;
    float* sums = nullptr;
    // Null: not wanted.
    double* bias = nullptr;
  };
  static constexpr int64_t kLeastChunksPerThread = 8;

  Chunk MakeChunk(int64_t first) const;
  void FillX(int threads, const Chunk& chunk, const float* x, float* panels) const;
  void FillDy(int threads, const Chunk& chunk, const float* dy, float* panels) const;
  // `add`: to what `sums` holds; otherwise over it.
  void AddProducts(int threads, const Chunk& chunk, bool add, const float* x_panels,
                   const float* dy_panels, float* sums) const;
  // Chunks [begin, end), into sums of their own.
  void AddChunks(int threads, int64_t begin, int64_t end, const float* x, const float* dy,
                 const Room& room) const;
  // sums[blocks of dy][16] += the sums of the panels' columns.
  void AddColumns(int threads, const Chunk& chunk, const float* panels, double* sums) const;
  void Deliver(int threads, const float* sums, float* dw) const;

  const ConvolutionDims dims_;
  const bool gathered_;
  const int64_t columns_;
  const int64_t taps_;
  const int64_t x_blocks_, dy_blocks_;
  const int64_t chunk_rows_;
  // Of a row of x's panel, in positions.
  const int64_t panel_width_;
  // Floats of one panel, of the largest chunk.
  const int64_t x_panel_size_, dy_panel_size_;
};

}  // namespace cadre
