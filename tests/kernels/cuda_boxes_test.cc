// Tests copies and sums of boxes and the search for non-finite values of the CUDA back end, for
// both types, aligned and unaligned. Values are multiples of 1/8, which are exact in bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/box.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

using CudaBoxesTest = CudaTest;

// A box within `outer`, which may be empty.
Box BoxWithin(const Box& outer, uint64_t seed) {
  Box box = outer;
  for (size_t d = 0; d < outer.begin.size(); ++d) {
    // Often the whole dimension, so that neighbouring dimensions can be merged.
    if (Draw(0, 2, seed, 10 + d) == 0) continue;
    box.begin[d] = Draw(outer.begin[d], outer.end[d], seed, 100 + d);
    box.end[d] = Draw(box.begin[d], outer.end[d], seed, 200 + d);
  }
  return box;
}

Box RandomBox(uint64_t seed) {
  std::vector<int64_t> dims;
  const int64_t rank = Draw(1, 5, seed, 0);
  for (int64_t d = 0; d < rank; ++d) {
    dims.push_back(Draw(1, 5, seed, 1 + static_cast<uint64_t>(d)));
  }
  // The last dimension is often a multiple of a vector.
  if (Draw(0, 1, seed, 9) == 0) dims.back() *= 8;
  return Box::Whole(Shape(dims));
}

TEST_F(CudaBoxesTest, RandomBoxesAgreeWithTheHost) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Box whole = RandomBox(seed);
    const Box from_box = BoxWithin(whole, seed + 1000), to_box = BoxWithin(whole, seed + 2000);
    const Box region = BoxWithin(Intersect(from_box, to_box), seed + 3000);
    const Floats from = Eighths(from_box.shape().elements(), seed);
    const Floats before = Eighths(to_box.shape().elements(), seed + 1);
    Floats copied = before, added = before;
    CopyBox(from, from_box, copied, to_box, region);
    AddBox(from, from_box, added, to_box, region);
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << region.ToString() << " of "
                                        << from_box.ToString() << " in " << to_box.ToString());
      const int64_t shift = static_cast<int64_t>(seed % 2);
      const OnDevice source(device(), from, type, shift);
      const OnDevice target(device(), before, type, shift);
      kernels().memory().CopyBox(source.values(), from_box, target.values(), to_box, region);
      ASSERT_EQ(target.Get(), copied);
      const OnDevice sum(device(), before, type, shift);
      kernels().memory().AddBox(source.values(), from_box, sum.values(), to_box, region);
      ASSERT_EQ(sum.Get(), added);
    }
  }
}

TEST_F(CudaBoxesTest, CopiesRuns) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int64_t rows = Draw(0, 9, seed, 0), run = Draw(0, 20, seed, 1) * Draw(1, 8, seed, 2);
    const int64_t x_step = run + Draw(0, 9, seed, 3), y_step = run + 8 * Draw(0, 2, seed, 4);
    const Floats x = Eighths(rows * x_step + 1, seed),
                 before = Eighths(rows * y_step + 1, seed + 1);
    Floats want = before;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < run; ++i) {
        want[r * y_step + i] = x[r * x_step + i];
      }
    }
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const OnDevice from(device(), x, type), to(device(), before, type);
      kernels().memory().CopyRuns(rows, run, from.values(), x_step, to.values(), y_step);
      ASSERT_EQ(to.Get(), want) << seed;
    }
  }
}

// The device rounds to the nearest, ties to even, as on_device.cc does on the host.
TEST_F(CudaBoxesTest, RoundsAsTheHost) {
  Floats x = Uniform(1003, 1);
  const float tie = 1 + 0x1.0p-8F, odd_tie = 1 + 3 * 0x1.0p-8F;
  const Floats special = {
      0,     -0.0F,    tie,       odd_tie, std::nextafter(tie, 2.0F),        1e-40F,
      3e38F, INFINITY, -INFINITY, 65504,   std::numeric_limits<float>::max()};
  x.insert(x.end(), special.begin(), special.end());
  for (const int64_t shift : {0, 1}) {
    const OnDevice wide(device(), x, DType::kFloat32, shift);
    const OnDevice narrow(device(), Garbage(std::ssize(x)), DType::kBFloat16, shift);
    const OnDevice again(device(), Garbage(std::ssize(x)));
    kernels().memory().Copy(wide.values(), narrow.values());
    EXPECT_EQ(narrow.Get(), Bf16Rounded(x));
    kernels().memory().Copy(narrow.values(), again.values());
    EXPECT_EQ(again.Get(), Bf16Rounded(x));
    const OnDevice same(device(), Garbage(std::ssize(x)));
    kernels().memory().Copy(wide.values(), same.values());
    EXPECT_EQ(same.Get(), x);
    kernels().memory().Zero(same.values());
    EXPECT_EQ(same.Get(), Floats(x.size(), 0.0F));
  }
  const OnDevice nan(device(), {NAN}), narrow(device(), {0}, DType::kBFloat16);
  kernels().memory().Copy(nan.values(), narrow.values());
  EXPECT_TRUE(std::isnan(narrow.Get()[0]));
}

template <typename T>
void ExpectReceivedAccumulates(CudaDevice& device, Backend& kernels, DType type) {
  for (const size_t n : {0, 1, 7, 1000}) {
    DeviceArray<T> sum(device, n + 1, "test"), values(device, n + 1, "test");
    std::vector<T> a(n), b(n), want(n);
    for (size_t i = 0; i < n; ++i) {
      a[i] = static_cast<T>(i * 3);
      b[i] = static_cast<T>(i * i);
      want[i] = a[i] + b[i];
    }
    // One element after an aligned address.
    device.CopyIn(a.data(), sum.data() + 1, n * sizeof(T));
    device.CopyIn(b.data(), values.data() + 1, n * sizeof(T));
    kernels.memory().AccumulateReceived(type, std::as_writable_bytes(sum.span().subspan(1)),
                                        std::as_bytes(values.span().subspan(1)));
    EXPECT_EQ(FromDevice<T>(device, sum.span().subspan(1)), want);
  }
}

TEST_F(CudaBoxesTest, AddsReceivedValues) {
  ExpectReceivedAccumulates<float>(device(), kernels(), DType::kFloat32);
  ExpectReceivedAccumulates<double>(device(), kernels(), DType::kFloat64);
  ExpectReceivedAccumulates<uint64_t>(device(), kernels(), DType::kUInt64);
  const Floats a = Eighths(1001, 1), b = Eighths(1001, 2);
  const OnDevice sum(device(), a, DType::kBFloat16), values(device(), b, DType::kBFloat16);
  kernels().memory().AccumulateReceived(
      DType::kBFloat16, {static_cast<std::byte*>(sum.values().data()), sum.values().bytes()},
      {static_cast<std::byte*>(values.values().data()), values.values().bytes()});
  Floats want = a;
  for (size_t i = 0; i < want.size(); ++i) want[i] += b[i];
  EXPECT_EQ(sum.Get(), want);
}

TEST_F(CudaBoxesTest, FindsValuesThatAreNotFinite) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t shift : {0, 1}) {
      EXPECT_TRUE(kernels().memory().AllFinite(
          OnDevice(device(), Uniform(100'003, 1), type, shift).values()));
      for (size_t at = 0; at < 37; ++at) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          Floats x(37, 1.0F);
          x[at] = bad;
          EXPECT_FALSE(kernels().memory().AllFinite(OnDevice(device(), x, type, shift).values()))
              << at;
        }
      }
    }
  }
  EXPECT_TRUE(kernels().memory().AllFinite(Values()));
}

TEST_F(CudaBoxesTest, TransposesBf16) {
  for (const auto& [batch, positions, channels] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 49, 65}, {2, 100, 3}, {70, 5, 40}}) {
    const Floats x = Eighths(batch * positions * channels, 1);
    Floats want = x;
    reference_->memory().Transpose(batch, positions, channels, x, want);
    const OnDevice from(device(), x, DType::kBFloat16), to(device(), x, DType::kBFloat16);
    kernels().memory().Transpose(batch, positions, channels, from.values(), to.values());
    EXPECT_EQ(to.Get(), want);
  }
}

}  // namespace
}  // namespace cadre
