// The gradient of convolution weights is, for every tap and every pair of an input channel c and an
// output channel o,
//
//   dw[o][c][tap] = sum over positions of dy[position][o] * x[position * stride + tap][c],
//
// a matrix product whose inner dimension (positions) is far larger than its outer ones. Libraries
// transform it to blocked layouts and split the sum over threads in ways that depend on the number
// of threads and on timing. This file computes it directly, in the style of the register-tiled
// kernels of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008):
// copy panels that fit in the second-level cache, keep a tile of the result in registers, stream
// the panels past it.
//
// Layout. A chunk of whole output rows is packed into panels:
//   x:  [block of 32 columns][row][position in the row][32]   dy: [block of 16][position][16]
// A column is an input channel, and taps are offsets into the padded panel. With few channels, or a
// kernel of 1 x 1, all inputs of an output are gathered into columns instead (im2col), so that
// registers are full and there is only one tap.
//
// Cost. A tile of 3 taps x 4 outputs x 32 columns holds 24 accumulators in 32 AVX-512 registers; a
// step loads 6 vectors and 4 scalars for 24 fused multiply-adds, so that arithmetic, not loads,
// limits the speed. Packing costs one copy of x per block of columns and one copy of dy, amortised
// over all tiles that read the panel.
//
// Order of sums. Positions within a chunk, and chunks, are summed in their order. If there are many
// chunks, each thread has its own sums, which are added in the order of the threads. So the bits
// depend only on the extents and the number of threads.
//
// Limits: AVX-512, one group. window.cc decides when oneDNN is faster.
#include "kernels/cpu/weight_gradient.h"

#include <algorithm>

#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

constexpr int64_t kColumns = 2 * kVectorSize;  // of a block of x
constexpr int64_t kOuts = 16;                  // of a block of dy
// Positions of a chunk: enough that loading and storing tiles is a hundredth of the work, and few
// enough that two panels (128 and 64 KiB) stay in a second-level cache.
constexpr int64_t kChunkPositions = 1024;
// With fewer input channels a block of channels would be mostly padding.
constexpr int64_t kMinChannelsForTaps = 16;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool Gathers(const ConvolutionDims& d) {
  return d.in_channels < kMinChannelsForTaps || d.window.kernel_height * d.window.kernel_width == 1;
}

int64_t Taps(const ConvolutionDims& d) { return d.window.kernel_height * d.window.kernel_width; }

// Inputs that `outputs` adjacent windows cover.
int64_t Extent(int64_t outputs, int64_t kernel, int64_t stride, int64_t dilation) {
  return (outputs - 1) * stride + dilation * (kernel - 1) + 1;
}

// Upper bound on the rows of x's panel for one chunk: every image in the chunk adds the kernel's
// rows beyond the first.
int64_t MaxPanelRows(const ConvolutionDims& d, int64_t chunk_rows) {
  const int64_t images = 2 + (chunk_rows - 1) / d.window.out_height;
  return chunk_rows * d.window.stride_height +
         images * (d.window.dilation * (d.window.kernel_height - 1) + 1);
}

// --- the products --------------------------------------------------------------------------------

// The positions that a tile sums over.
struct Positions {
  int64_t rows = 0, width = 0;
  const int64_t* starts = nullptr;  // of each row, in x's panel
  int64_t x_step = 0;               // floats from one position to the next
};

// sums[o][t] (+)= sum over positions of dy[o] * x[tap t], for kOut outs and kTaps taps; an out's
// sums are `out_stride` apart, a tap's inputs `tap_step`.
template <int kTap, int kOut>
CADRE_INLINE void SumTile(const Positions& positions, const float* x, int64_t tap_step,
                          const float* dy, bool add, float* sums, int64_t out_stride) {
  Vector tile[kOut][kTap][2] = {};
  for (int64_t r = 0; r < positions.rows; ++r) {
    const float* at = x + positions.starts[r];
    for (int64_t p = 0; p < positions.width; ++p, at += positions.x_step, dy += kOuts) {
      Vector inputs[kTap][2];
#pragma GCC unroll 8
      for (int t = 0; t < kTap; ++t) {
        inputs[t][0] = Load<Vector>(at + t * tap_step);
        inputs[t][1] = Load<Vector>(at + t * tap_step + kVectorSize);
      }
#pragma GCC unroll 16
      for (int o = 0; o < kOut; ++o) {
        const Vector gradient = dy[o] - Vector{};
#pragma GCC unroll 8
        for (int t = 0; t < kTap; ++t) {
          tile[o][t][0] += gradient * inputs[t][0];
          tile[o][t][1] += gradient * inputs[t][1];
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int o = 0; o < kOut; ++o) {
#pragma GCC unroll 8
    for (int t = 0; t < kTap; ++t) {
      float* to = sums + o * out_stride + t * kColumns;
      if (add) {
        tile[o][t][0] += Load<Vector>(to);
        tile[o][t][1] += Load<Vector>(to + kVectorSize);
      }
      Store(to, tile[o][t][0]);
      Store(to + kVectorSize, tile[o][t][1]);
    }
  }
}

// Sums all outs of a block. Tiles have enough accumulators to hide the latency of a fused
// multiply-add (8), and few enough for 32 registers together with their inputs: 3 taps x 4 outs x
// 2, or 1 x 8 x 2.
CADRE_VECTOR_LOOP void SumThreeTaps(const Positions& positions, const float* x, int64_t tap_step,
                                    const float* dy, bool add, float* sums, int64_t out_stride) {
  for (int64_t o = 0; o < kOuts; o += 4) {
    SumTile<3, 4>(positions, x, tap_step, dy + o, add, sums + o * out_stride, out_stride);
  }
}

CADRE_VECTOR_LOOP void SumOneTap(const Positions& positions, const float* x, const float* dy,
                                 bool add, float* sums, int64_t out_stride) {
  for (int64_t o = 0; o < kOuts; o += 8) {
    SumTile<1, 8>(positions, x, 0, dy + o, add, sums + o * out_stride, out_stride);
  }
}

// --- the panels ----------------------------------------------------------------------------------

// to[block][kWidth] = from[channels], where blocks are `panel` floats apart and the last one is
// padded with zeros.
template <int64_t kWidth>
CADRE_INLINE void CopyPosition(int64_t channels, const float* __restrict from, int64_t panel,
                               float* __restrict to) {
  for (; channels >= kWidth; channels -= kWidth, from += kWidth, to += panel) {
    for (int64_t c = 0; c < kWidth; c += kVectorSize) Store(to + c, Load<Vector>(from + c));
  }
  if (channels == 0) return;
  for (int64_t c = 0; c < kWidth; ++c) to[c] = c < channels ? from[c] : 0.0F;
}

template <int64_t kWidth>
CADRE_INLINE void ZeroPosition(int64_t channels, int64_t panel, float* to) {
  for (; channels > 0; channels -= kWidth, to += panel) {
    for (int64_t c = 0; c < kWidth; c += kVectorSize) Store(to + c, Vector{});
  }
}

CADRE_VECTOR_LOOP void CopyPositions(int64_t positions, int64_t channels, const float* from,
                                     int64_t panel, float* to) {
  for (int64_t p = 0; p < positions; ++p, from += channels, to += kOuts) {
    CopyPosition<kOuts>(channels, from, panel, to);
  }
}

// to[kOuts] += the sum of a panel of dy over its positions.
CADRE_VECTOR_LOOP void SumPanel(int64_t positions, const float* panel, double* to) {
  constexpr int64_t kInFloat = 64;
  static_assert(kOuts == kVectorSize);
  for (int64_t p = 0; p < positions; p += kInFloat) {
    const int64_t end = p + kInFloat < positions ? p + kInFloat : positions;
    Vector sums[2] = {};  // odd and even: two chains
    int64_t i = p;
    for (; i + 2 <= end; i += 2) {
      sums[0] += Load<Vector>(panel + i * kOuts);
      sums[1] += Load<Vector>(panel + (i + 1) * kOuts);
    }
    if (i < end) sums[0] += Load<Vector>(panel + i * kOuts);
    AddWide(sums[0] + sums[1], to);
  }
}

// Copies a row of the input with its padding; `row` is null if the row lies outside the image.
CADRE_VECTOR_LOOP void CopyPaddedRow(const WindowDims& w, int64_t channels, const float* row,
                                     int64_t width, int64_t panel, float* to) {
  for (int64_t p = 0; p < width; ++p, to += kColumns) {
    const int64_t column = p - w.pad_left;
    if (row == nullptr || column < 0 || column >= w.in_width) {
      ZeroPosition<kColumns>(channels, panel, to);
    } else {
      CopyPosition<kColumns>(channels, row + column * channels, panel, to);
    }
  }
}

// to[n] = from[n] in whole registers: floats after to[n] are overwritten, and floats after from[n]
// are read up to `end`.
CADRE_INLINE void CopyFloats(int64_t n, const float* from, const float* end, float* to) {
  const int64_t rounded = (n + kVectorSize - 1) / kVectorSize * kVectorSize;
  if (end - from >= rounded) {
    for (int64_t c = 0; c < rounded; c += kVectorSize) Store(to + c, Load<Vector>(from + c));
  } else {
    for (int64_t c = 0; c < n; ++c) to[c] = from[c];
  }
}

// to[kernel_height][kernel_width][channels] = the inputs of the window at (top, left). Up to one
// vector after the end of `to` is overwritten. `end` is the end of x.
CADRE_INLINE void Gather(const WindowDims& w, int64_t channels, const float* image,
                         const float* end, int64_t top, int64_t left, float* to) {
  const int64_t row = w.kernel_width * channels;
  const bool whole = w.dilation == 1 && left >= 0 && left + w.kernel_width <= w.in_width;
  for (int64_t i = 0; i < w.kernel_height; ++i, to += row) {
    const int64_t h = top + i * w.dilation;
    if (h < 0 || h >= w.in_height) {
      for (int64_t c = 0; c < row; ++c) to[c] = 0;
    } else if (whole) {
      CopyFloats(row, image + (h * w.in_width + left) * channels, end, to);
    } else {
      for (int64_t j = 0; j < w.kernel_width; ++j) {
        const int64_t column = left + j * w.dilation;
        const bool inside = column >= 0 && column < w.in_width;
        for (int64_t c = 0; c < channels; ++c) {
          to[j * channels + c] = inside ? image[(h * w.in_width + column) * channels + c] : 0.0F;
        }
      }
    }
  }
}

// Gathers one output row. `gathered` has room for its columns and one more block: the last block of
// a position is filled with the first columns of the next position, whose sums are not read.
CADRE_VECTOR_LOOP void GatherRow(const WindowDims& w, int64_t channels, const float* image,
                                 const float* end, int64_t out_row, float* gathered, int64_t panel,
                                 float* to) {
  const int64_t columns = w.kernel_height * w.kernel_width * channels;
  const int64_t top = out_row * w.stride_height - w.pad_top;
  for (int64_t p = 0; p < w.out_width; ++p) {
    Gather(w, channels, image, end, top, p * w.stride_width - w.pad_left, gathered + p * columns);
  }
  const int64_t whole = DivideUp(columns, kColumns) * kColumns;
  for (int64_t p = 0; p < w.out_width; ++p, to += kColumns) {
    CopyPosition<kColumns>(whole, gathered + p * columns, panel, to);
  }
}

// The same for a 1 x 1 kernel, for which the inputs of an output are contiguous.
CADRE_VECTOR_LOOP void PickRow(const WindowDims& w, int64_t channels, const float* row,
                               int64_t panel, float* to) {
  for (int64_t p = 0; p < w.out_width; ++p, to += kColumns) {
    CopyPosition<kColumns>(channels, row + p * w.stride_width * channels, panel, to);
  }
}

// dw[channel][tap] = sums[block of channels][tap][32], for one output channel.
CADRE_VECTOR_LOOP void DeliverTaps(int64_t channels, int64_t taps, const float* __restrict sums,
                                   float* __restrict dw) {
  for (int64_t c = 0; c < channels; ++c) {
    const float* from = sums + c / kColumns * taps * kColumns + c % kColumns;
    for (int64_t t = 0; t < taps; ++t) dw[c * taps + t] = from[t * kColumns];
  }
}

// dw[channel][tap] = sums[tap][channel], for one output channel.
CADRE_VECTOR_LOOP void DeliverGathered(int64_t channels, int64_t taps, const float* __restrict sums,
                                       float* __restrict dw) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < taps; ++t) dw[c * taps + t] = sums[t * channels + c];
  }
}

}  // namespace

bool WeightGradient::Takes(const ConvolutionDims& dims) {
#if defined(__x86_64__)
  return dims.groups == 1 && __builtin_cpu_supports("avx512f") > 0;
#else
  return false;
#endif
}

WeightGradient::WeightGradient(const ConvolutionDims& dims)
    : dims_(dims),
      gathered_(Gathers(dims)),
      columns_(gathered_ ? Taps(dims) * dims.in_channels : dims.in_channels),
      taps_(gathered_ ? 1 : Taps(dims)),
      x_blocks_(DivideUp(columns_, kColumns)),
      dy_blocks_(DivideUp(dims.out_channels, kOuts)),
      chunk_rows_(std::clamp<int64_t>(kChunkPositions / dims.window.out_width, 1,
                                      dims.batch * dims.window.out_height)),
      panel_width_(gathered_ ? dims.window.out_width
                             : Extent(dims.window.out_width, dims.window.kernel_width,
                                      dims.window.stride_width, dims.window.dilation)),
      x_panel_size_((gathered_ ? chunk_rows_ : MaxPanelRows(dims, chunk_rows_)) * panel_width_ *
                    kColumns),
      dy_panel_size_(chunk_rows_ * dims.window.out_width * kOuts) {}

WeightGradient::Chunk WeightGradient::MakeChunk(int64_t first) const {
  const WindowDims& w = dims_.window;
  Chunk chunk{.first = first, .rows = std::min(chunk_rows_, dims_.batch * w.out_height - first)};
  const int64_t row_size = panel_width_ * kColumns;
  if (gathered_) {
    for (int64_t r = 0; r < chunk.rows; ++r) chunk.starts.push_back(r * row_size);
    return chunk;
  }
  int64_t panel_row = 0;
  for (int64_t r = 0; r < chunk.rows;) {
    const int64_t image = (first + r) / w.out_height, out_row = (first + r) % w.out_height;
    const int64_t outs = std::min(w.out_height - out_row, chunk.rows - r);
    for (int64_t i = 0; i < outs; ++i) {
      chunk.starts.push_back((panel_row + i * w.stride_height) * row_size);
    }
    const int64_t top = out_row * w.stride_height - w.pad_top;
    for (int64_t i = 0; i < Extent(outs, w.kernel_height, w.stride_height, w.dilation);
         ++i, ++panel_row) {
      chunk.panel_rows.push_back({image, top + i, panel_row * row_size});
    }
    r += outs;
  }
  return chunk;
}

void WeightGradient::FillX(int threads, const Chunk& chunk, const float* x, float* panels) const {
  const WindowDims& w = dims_.window;
  const int64_t channels = dims_.in_channels;
  const int64_t row_size = w.in_width * channels;
  if (!gathered_) {
    const int64_t rows = chunk.panel_rows.size();
    ForParts(threads, rows, row_size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PanelRow& row = chunk.panel_rows[i];
        const bool inside = row.in_row >= 0 && row.in_row < w.in_height;
        CopyPaddedRow(w, channels,
                      inside ? x + (row.image * w.in_height + row.in_row) * row_size : nullptr,
                      panel_width_, x_panel_size_, panels + row.offset);
      }
    });
    return;
  }
  const bool picks = Taps(dims_) == 1 && w.pad_top == 0 && w.pad_left == 0;
  ForParts(threads, chunk.rows, w.out_width * columns_, [&](int64_t begin, int64_t end) {
    std::vector<float> gathered(w.out_width * columns_ + kColumns);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t out_row = (chunk.first + r) % w.out_height;
      const float* image = x + (chunk.first + r) / w.out_height * w.in_height * row_size;
      float* to = panels + chunk.starts[r];
      if (picks) {
        PickRow(w, channels, image + out_row * w.stride_height * row_size, x_panel_size_, to);
      } else {
        GatherRow(w, channels, image, x + dims_.batch * w.in_height * row_size, out_row,
                  gathered.data(), x_panel_size_, to);
      }
    }
  });
}

void WeightGradient::FillDy(int threads, const Chunk& chunk, const float* dy, float* panels) const {
  const int64_t width = dims_.window.out_width, channels = dims_.out_channels;
  const float* from = dy + chunk.first * width * channels;
  ForParts(threads, chunk.rows * width, channels, [&](int64_t begin, int64_t end) {
    CopyPositions(end - begin, channels, from + begin * channels, dy_panel_size_,
                  panels + begin * kOuts);
  });
}

void WeightGradient::AddColumns(int threads, const Chunk& chunk, const float* panels,
                                double* sums) const {
  const int64_t positions = chunk.rows * dims_.window.out_width;
  ForParts(threads, dy_blocks_, positions * kOuts, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      SumPanel(positions, panels + i * dy_panel_size_, sums + i * kOuts);
    }
  });
}

void WeightGradient::AddProducts(int threads, const Chunk& chunk, bool add, const float* x_panels,
                                 const float* dy_panels, float* sums) const {
  const WindowDims& w = dims_.window;
  const Positions positions{.rows = chunk.rows,
                            .width = w.out_width,
                            .starts = chunk.starts.data(),
                            .x_step = (gathered_ ? 1 : w.stride_width) * kColumns};
  const int64_t out_stride = x_blocks_ * taps_ * kColumns;
  const int64_t taps_in_row = gathered_ ? 1 : w.kernel_width;
  const int64_t tap_step = w.dilation * kColumns;
  const int64_t cost = taps_ * chunk.rows * w.out_width * kOuts;
  ForParts(threads, x_blocks_ * dy_blocks_, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t x_block = i / dy_blocks_, dy_block = i % dy_blocks_;
      const float* x = x_panels + x_block * x_panel_size_;
      const float* dy = dy_panels + dy_block * dy_panel_size_;
      float* to = sums + dy_block * kOuts * out_stride + x_block * taps_ * kColumns;
      for (int64_t t = 0; t < taps_;) {
        const int64_t row = t / taps_in_row, column = t % taps_in_row;
        const float* tap = x + row * w.dilation * panel_width_ * kColumns + column * tap_step;
        if (column + 3 <= taps_in_row) {
          SumThreeTaps(positions, tap, tap_step, dy, add, to + t * kColumns, out_stride);
          t += 3;
        } else {
          SumOneTap(positions, tap, dy, add, to + t * kColumns, out_stride);
          t += 1;
        }
      }
    }
  });
}

void WeightGradient::Deliver(int threads, const float* sums, float* dw) const {
  const int64_t out_size = dims_.in_channels * Taps(dims_);
  ForParts(threads, dims_.out_channels, out_size, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const float* from = sums + o * x_blocks_ * taps_ * kColumns;
      const auto deliver = gathered_ ? DeliverGathered : DeliverTaps;
      deliver(dims_.in_channels, Taps(dims_), from, dw + o * out_size);
    }
  });
}

void WeightGradient::AddChunks(int threads, int64_t begin, int64_t end, const float* x,
                               const float* dy, const Buffers& buffers) const {
  for (int64_t i = begin; i < end; ++i) {
    const Chunk chunk = MakeChunk(i * chunk_rows_);
    FillX(threads, chunk, x, buffers.x_panels);
    FillDy(threads, chunk, dy, buffers.dy_panels);
    if (buffers.bias != nullptr) AddColumns(threads, chunk, buffers.dy_panels, buffers.bias);
    AddProducts(threads, chunk, /*add=*/i > begin, buffers.x_panels, buffers.dy_panels,
                buffers.sums);
  }
}

void WeightGradient::Run(int threads, Workspace& workspace, ConstFloatSpan x, ConstFloatSpan dy,
                         FloatSpan dw, FloatSpan db) const {
  const int64_t chunks = DivideUp(dims_.batch * dims_.window.out_height, chunk_rows_);
  // With many chunks, each thread processes some into its own sums, with one barrier at the end.
  // With few, the threads share each chunk.
  const int parts = chunks >= kMinChunksPerThread * threads ? threads : 1;
  const int64_t sums_size = dy_blocks_ * kOuts * x_blocks_ * taps_ * kColumns;
  const int64_t bias_size = dy_blocks_ * kOuts;
  std::vector<double> bias(parts * bias_size);
  std::vector<Buffers> buffers;
  for (int part = 0; part < parts; ++part) {
    const auto get = [&](size_t slot, int64_t floats) {
      return workspace.Floats(part * 3 + slot, floats);
    };
    buffers.push_back({.x_panels = get(0, x_blocks_ * x_panel_size_),
                       .dy_panels = get(1, dy_blocks_ * dy_panel_size_),
                       .sums = get(2, sums_size),
                       .bias = db.empty() ? nullptr : bias.data() + part * bias_size});
  }
  const int threads_each = parts == 1 ? threads : 1;
  ForEachPart(parts, chunks, [&](int part, int64_t begin, int64_t end) {
    AddChunks(threads_each, begin, end, x.data(), dy.data(), buffers[part]);
  });
  float* const sums = buffers[0].sums;
  for (int part = 1; part < parts; ++part) {
    const float* const more = buffers[part].sums;
    ForParts(threads, sums_size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[i] += more[i];
    });
  }
  Deliver(threads, sums, dw.data());
  for (size_t o = 0; o < db.size(); ++o) {
    double sum = 0;
    for (int part = 0; part < parts; ++part) {
      sum += bias[part * bias_size + o];
    }
    db[o] = sum;
  }
}

}  // namespace cadre
