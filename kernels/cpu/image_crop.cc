// A region that a rank owns can have rows that no window of its outputs reaches. oneDNN derives the
// number of outputs from the input and rejects such extents, so the reached part is copied to a
// separate image. This happens only at the borders between ranks, and the copy costs little
// compared with the convolution.
#include "kernels/cpu/image_crop.h"

#include <algorithm>

#include "kernels/extents.h"

namespace cadre {
namespace {

// Calls f(row of the part, row of the image) for the offsets of every row of the part.
template <typename F>
void ForRows(const ConvolutionDims& whole, const ConvolutionDims& part, F f) {
  const WindowDims& from = whole.window;
  const WindowDims& to = part.window;
  for (int64_t n = 0; n < whole.batch; ++n) {
    for (int64_t h = 0; h < to.in_height; ++h) {
      f((n * to.in_height + h) * to.in_width * part.in_channels,
        (n * from.in_height + h) * from.in_width * whole.in_channels);
    }
  }
}

}  // namespace

ConvolutionDims Reached(const ConvolutionDims& dims) {
  const WindowPadding padding = PaddingOf(dims.window);
  ConvolutionDims reached = dims;
  WindowDims& w = reached.window;
  // At least one row stays: a window may lie wholly in the padding before the image.
  if (padding.bottom <= -w.stride) w.in_height = std::max<int64_t>(1, w.in_height + padding.bottom);
  if (padding.right <= -w.stride) w.in_width = std::max<int64_t>(1, w.in_width + padding.right);
  return reached;
}

void CutOut(const ConvolutionDims& dims, const ConvolutionDims& reached, std::span<const float> x,
            float* part) {
  const int64_t row = reached.window.in_width * reached.in_channels;
  ForRows(dims, reached,
          [&](int64_t to, int64_t from) { std::copy_n(x.data() + from, row, part + to); });
}

void PutBack(const ConvolutionDims& dims, const ConvolutionDims& reached, const float* part,
             std::span<float> x) {
  const int64_t row = reached.window.in_width * reached.in_channels;
  std::fill(x.begin(), x.end(), 0.0F);
  ForRows(dims, reached,
          [&](int64_t from, int64_t to) { std::copy_n(part + from, row, x.data() + to); });
}

}  // namespace cadre
