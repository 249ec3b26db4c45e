// The gradient of convolution weights over channels-last images, as sums of outer products: for
// every output position and tap, the output's gradients times the inputs at that tap.
//
// Guarantees: the same number of threads gives the same bits. The .cc file describes the algorithm.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/primitive_run.h"

namespace cadre {

class WeightGradient {
 public:
  // Whether the processor has AVX-512 and the convolution has one group.
  static bool Takes(const ConvolutionDims& dims);

  // Requires: Takes(dims), no empty tensor.
  explicit WeightGradient(const ConvolutionDims& dims);

  // dw and db from x and dy. An empty db is not computed.
  void Run(int threads, Workspace& workspace, ConstFloatSpan x, ConstFloatSpan dy, FloatSpan dw,
           FloatSpan db) const;

 private:
  // A row of a panel of x (a packed copy of inputs): input row `in_row` of image `image`.
  struct PanelRow {
    int64_t image = 0, in_row = 0, offset = 0;
  };
  // Output rows that are packed into panels and summed together.
  struct Chunk {
    // Output rows [first, first + rows), counted over all images.
    int64_t first = 0, rows = 0;
    // Offset in a panel of the first tap of each output row's first position.
    std::vector<int64_t> starts;
    // Rows to copy into the panel; empty if columns are gathered.
    std::vector<PanelRow> panel_rows;
  };

  // Memory of one thread, or of all threads if they share each chunk.
  struct Buffers {
    float* x_panels = nullptr;
    float* dy_panels = nullptr;
    float* sums = nullptr;
    // Null if db is empty.
    double* bias = nullptr;
  };
  static constexpr int64_t kMinChunksPerThread = 8;

  Chunk MakeChunk(int64_t first) const;
  void FillX(int threads, const Chunk& chunk, const float* x, float* panels) const;
  void FillDy(int threads, const Chunk& chunk, const float* dy, float* panels) const;
  // Adds the chunk's products to `sums`; without `add`, overwrites them.
  void AddProducts(int threads, const Chunk& chunk, bool add, const float* x_panels,
                   const float* dy_panels, float* sums) const;
  // Fills the sums of `buffers` from chunks [begin, end).
  void AddChunks(int threads, int64_t begin, int64_t end, const float* x, const float* dy,
                 const Buffers& buffers) const;
  // sums[blocks of dy][16] += the sums of the panels' columns.
  void AddColumns(int threads, const Chunk& chunk, const float* panels, double* sums) const;
  void Deliver(int threads, const float* sums, float* dw) const;

  const ConvolutionDims dims_;
  // Whether all inputs of an output are gathered into columns; otherwise columns are channels.
  const bool gathered_;
  const int64_t columns_;
  const int64_t taps_;
  const int64_t x_blocks_, dy_blocks_;
  const int64_t chunk_rows_;
  // Positions in a row of x's panel.
  const int64_t panel_width_;
  // Floats of one panel of the largest chunk.
  const int64_t x_panel_size_, dy_panel_size_;
};

}  // namespace cadre
