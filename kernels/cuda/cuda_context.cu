// Operations that several families use: conversion, biases and their gradients, and parameters as
// factors of products.
//
// Under bf16 a product reads the parameter's bf16 copy (WeightCopies). Parameters lie in buckets
// without gaps, so a parameter of odd size misaligns those after it; libraries have slow
// algorithms, or none, for addresses that are not multiples of 16 bytes, so such weights are copied
// to scratch memory first.
#include "kernels/cuda/cuda_context.h"

#include <numeric>
#include <utility>

#include "device/cuda/launch.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/map.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

struct Identity {
  __device__ float operator()(float a, float) const { return a; }
};

template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    AddBiasToRows(int64_t rows, int64_t columns, int64_t row_step, const float* __restrict__ b,
                  T* __restrict__ y) {
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  float bias[N];
  LoadColumns(b, place.column, bias);
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    float values[N];
    LoadGroup(y + row * row_step + place.column, values);
    for (int k = 0; k < N; ++k) values[k] += bias[k];
    StoreGroup(values, y + row * row_step + place.column);
  }
}

template <typename T>
struct BiasTerms : RowTerms {
  // `padding`: elements between rows.
  BiasTerms(const T* dy, int64_t padding) : dy(dy), padding(padding) {}
  static constexpr int kSums = 1;
  const T* dy;
  int64_t padding;

  template <int N>
  __device__ void Add(const None&, int64_t row, int64_t at, double (&sums)[1][N]) const {
    float values[N];
    LoadGroup(dy + at + row * padding, values);
    for (int k = 0; k < N; ++k) sums[0][k] += values[k];
  }
};

}  // namespace

void LaunchConvert(CudaDevice& device, ConstValues x, Values y) {
  ByType(x.type(), [&](auto x_zero) {
    ByType(y.type(), [&](auto y_zero) {
      using From = decltype(x_zero);
      LaunchMap<Identity, From>(device, "convert", Identity(), x.size(), Data<From>(x), nullptr,
                                Data<decltype(y_zero)>(y));
    });
  });
}

CudaContext::CudaContext(CudaDevice& device, std::unique_ptr<DenseMath> math)
    : device(device),
      math(std::move(math)),
      scratch(device),
      copies(device),
      numbers(device, 1, "numbers of a step"),
      results(device, 1, "numbers of a step") {}

void CudaContext::Copy(ConstValues x, Values y) {
  CHECK_EQ(x.size(), y.size());
  if (x.empty() || x.data() == y.data()) return;
  if (x.type() == y.type()) {
    device.Copy(x.data(), y.data(), x.bytes());
  } else {
    LaunchConvert(device, x, y);
  }
}

void CudaContext::Zero(Values y) {
  if (!y.empty()) device.Zero(y.data(), y.bytes());
}

ConstValues CudaContext::WeightsAs(DType type, ConstFloatSpan w) {
  ConstValues weights = w;
  if (type != DType::kFloat32) {
    if (const Values copy = copies.Find(w); !copy.empty()) weights = copy;
  }
  if (weights.type() == type && Aligned({weights.data()})) return weights;
  const Values converted(scratch.Take(w.size() * SizeOf(type)), w.size(), type);
  if (converted.data() != nullptr) Copy(weights, converted);
  return converted;
}

void CudaContext::AddBias(int64_t rows, ConstFloatSpan b, Values y) {
  if (b.empty()) return;
  const int64_t columns = b.size(), row = PaddedRow("y", rows, columns, y.size());
  ByTypeAndWidth(y.type(), std::gcd(columns, row), {y.data()}, [&](auto zero, auto group) {
    using T = decltype(zero);
    constexpr int kGroup = decltype(group)::value;
    Launch(device, "bias", AddBiasToRows<T, kGroup>, ColumnShape(device, rows, columns, kGroup),
           rows, columns, row, b.data(), Data<T>(y));
  });
}

void CudaContext::BiasGradient(int64_t rows, ConstValues dy, FloatSpan db, bool add) {
  if (db.empty()) return;
  const int64_t columns = db.size(), row = PaddedRow("dy", rows, columns, dy.size());
  ByTypeAndWidth(dy.type(), std::gcd(columns, row), {dy.data()}, [&](auto zero, auto group) {
    const BiasTerms terms(Data<decltype(zero)>(dy), row - columns);
    LaunchColumnSums<decltype(group)::value>(device, scratch, "bias gradient", terms, rows, columns,
                                             ColumnResults<float>{.first = db.data(), .add = add});
  });
}

}  // namespace cadre
