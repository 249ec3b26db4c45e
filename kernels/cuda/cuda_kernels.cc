// What holds for all operations, copies, and operations that are one own kernel.
#include "kernels/cuda/cuda_kernels.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/cuda/cuda_kernels_class.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// TF32 and bf16 came with this compute capability.
constexpr int kLeastCapability = 80;

template <typename T>
int64_t Size(const T& span) {
  return static_cast<int64_t>(span.size());
}

int64_t Extent(const Box& box, size_t d) { return box.end[d] - box.begin[d]; }

// Elements between neighbours along each dimension of a row-major tensor that holds the box.
std::vector<int64_t> StepsOf(const Box& box) {
  std::vector<int64_t> steps(box.begin.size(), 1);
  for (size_t d = steps.size(); d-- > 1;) steps[d - 1] = steps[d] * Extent(box, d);
  return steps;
}

bool Inside(const Box& inner, const Box& outer) {
  if (inner.begin.size() != outer.begin.size()) return false;
  for (size_t d = 0; d < inner.begin.size(); ++d) {
    if (inner.begin[d] < outer.begin[d] || inner.end[d] > outer.end[d]) return false;
  }
  return true;
}

// The walk over the region, in memory that holds `from_box` and memory that holds `to_box`.
NestLoops WalkOf(const Box& from_box, const Box& to_box, const Box& region) {
  CHECK(Inside(region, from_box) && Inside(region, to_box))
      << region.ToString() << " in " << from_box.ToString() << " and " << to_box.ToString();
  const std::vector<int64_t> from_steps = StepsOf(from_box);
  const std::vector<int64_t> to_steps = StepsOf(to_box);
  NestLoops walk;
  for (size_t d = 0; d < region.begin.size(); ++d) {
    walk.loops.push_back({Extent(region, d), from_steps[d], to_steps[d]});
    walk.a_begin += (region.begin[d] - from_box.begin[d]) * from_steps[d];
    walk.b_begin += (region.begin[d] - to_box.begin[d]) * to_steps[d];
  }
  return walk;
}

void CheckBoxes(ConstValues from, const Box& from_box, ConstValues to, const Box& to_box) {
  CHECK(from.type() == to.type());
  CHECK_EQ(Size(from), from_box.shape().elements()) << from_box.ToString();
  CHECK_EQ(Size(to), to_box.shape().elements()) << to_box.ToString();
}

void CheckChannels(const RowsDims& d, std::initializer_list<std::span<const float>> spans) {
  for (const auto span : spans) CheckSize("a value by channel", span.size(), d.channels);
}

}  // namespace

CudaKernels::CudaKernels(CudaDevice& device, std::unique_ptr<DenseMath> math)
    : device_(device),
      math_(std::move(math)),
      scratch_(device),
      copies_(device),
      numbers_(device, 1, "numbers of a step"),
      results_(device, 1, "numbers of a step") {}

absl::Status CudaKernels::SetPrecision(Precision precision) {
  if (precision != Precision::kFp32 && device_.capability() < kLeastCapability) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision ", precision == Precision::kTf32 ? "TF32" : "BF16", " needs compute capability ",
        kLeastCapability / 10, ".", kLeastCapability % 10, "; ", device_.name(), " has ",
        device_.capability() / 10, ".", device_.capability() % 10));
  }
  precision_ = precision;
  math_->set_tf32(precision == Precision::kTf32);
  copies_.Clear();
  return absl::OkStatus();
}

void CudaKernels::SetPosition(int64_t first_position) {
  CHECK(!device_.recording()) << "the recording would keep this position";
  LaunchSetPosition(device_, first_position, numbers_.data());
}

void CudaKernels::SetUpdate(float rate, int64_t updates) {
  CHECK(!device_.recording()) << "the recording would keep this update";
  LaunchSetUpdate(device_, rate, updates, numbers_.data());
}

void CudaKernels::WeightsChanged(std::span<const float> weights) {
  if (precision_ == Precision::kBf16) copies_.Renew(weights);
}

std::unique_ptr<Kernels> CudaKernels::OneThread() const {
  LOG(FATAL) << "a device has no kernels for one thread";
}

// --- copies
// ----------------------------------------------------------------------------------------

void CudaKernels::Copy(ConstValues x, Values y) {
  CHECK_EQ(x.size(), y.size());
  if (x.empty() || x.data() == y.data()) return;
  if (x.type() == y.type()) {
    device_.Copy(x.data(), y.data(), x.bytes());
  } else {
    LaunchConvert(device_, x, y);
  }
}

void CudaKernels::Zero(Values y) {
  if (!y.empty()) device_.Zero(y.data(), y.bytes());
}

void CudaKernels::CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                           int64_t y_step) {
  CHECK(x.type() == y.type());
  if (rows <= 0 || run <= 0) return;
  CHECK_LE((rows - 1) * x_step + run, Size(x)) << "elements of x";
  CHECK_LE((rows - 1) * y_step + run, Size(y)) << "elements of y";
  LaunchCopyNest(device_, {.loops = {{rows, x_step, y_step}, {run, 1, 1}}}, x, y);
}

void CudaKernels::CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                          const Box& region) {
  CheckBoxes(from, from_box, to, to_box);
  if (!region.empty()) LaunchCopyNest(device_, WalkOf(from_box, to_box, region), from, to);
}

void CudaKernels::AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                         const Box& region) {
  CheckBoxes(from, from_box, to, to_box);
  if (!region.empty()) LaunchAddNest(device_, WalkOf(from_box, to_box, region), from, to);
}

void CudaKernels::AddArrived(DType type, std::span<std::byte> sum,
                             std::span<const std::byte> values) {
  CHECK_EQ(sum.size(), values.size());
  if (!sum.empty()) LaunchAddArrived(device_, type, sum, values);
}

bool CudaKernels::AllFinite(ConstValues x) {
  if (x.empty() || results_.data() == nullptr) return true;
  int32_t* const found = &results_.data()->found;
  device_.Zero(found, sizeof(*found));
  LaunchFindNotFinite(device_, x, found);
  int32_t answer = 0;
  device_.CopyOut(found, &answer, sizeof(answer)).IgnoreError();  // status() has it
  return answer == 0;
}

// --- pooling
// ---------------------------------------------------------------------------------------

void CudaKernels::PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                                 std::span<int32_t> argmax) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("y", y.size(), sizes.y);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  if (!y.empty()) LaunchPoolingForward(device_, dims, x, y, argmax);
}

void CudaKernels::PoolingBackward(const PoolingDims& dims, ConstValues dy,
                                  std::span<const int32_t> argmax, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dx", dx.size(), sizes.x);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  if (!dx.empty()) LaunchPoolingBackward(device_, dims, dy, argmax, dx);
}

void CudaKernels::GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                           int64_t divisor, ConstValues x, Values y) {
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * channels);
  CHECK_GE(divisor, 1);
  if (y.empty()) return;
  LaunchGlobalAveragePoolForward(device_, batch, positions, channels, divisor, x, y);
}

void CudaKernels::GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                            int64_t divisor, ConstValues dy, Values dx) {
  CheckSize("dy", dy.size(), batch * channels);
  CheckSize("dx", dx.size(), batch * positions * channels);
  CHECK_GE(divisor, 1);
  if (dx.empty()) return;
  LaunchGlobalAveragePoolBackward(device_, batch, positions, channels, divisor, dy, dx);
}

// --- element by element
// ----------------------------------------------------------------------------

void CudaKernels::ActivationForward(Activation kind, ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (!y.empty()) LaunchActivationForward(device_, kind, x, y);
}

void CudaKernels::ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) {
  CheckSize("dy", dy.size(), Size(seen));
  CheckSize("dx", dx.size(), Size(seen));
  if (!dx.empty()) LaunchActivationBackward(device_, kind, seen, dy, dx);
}

void CudaKernels::Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (y.empty()) return;
  LaunchDropout(device_, key, {.loops = {{Size(x), 1, 1}}}, first, /*position=*/nullptr,
                /*sample_elements=*/0, x, y);
}

void CudaKernels::DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box,
                             ConstValues x, Values y) {
  CheckSize("x", x.size(), box.shape().elements());
  CheckSize("y", y.size(), box.shape().elements());
  if (y.empty()) return;
  // Numbers are places in the whole batch, counted on from the position's samples.
  const Box all = Box::Whole(whole);
  NestLoops walk = WalkOf(box, all, box);
  const int64_t first = std::exchange(walk.b_begin, 0);
  const int64_t sample_elements = StepsOf(all)[0];
  LaunchDropout(device_, key, walk, static_cast<uint64_t>(first),
                numbers_.data() == nullptr ? nullptr : &numbers_.data()->position, sample_elements,
                x, y);
}

void CudaKernels::Add(ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (!y.empty()) LaunchAdd(device_, x, y);
}

void CudaKernels::Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                            Values y) {
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * positions * channels);
  if (!y.empty()) LaunchTranspose(device_, batch, positions, channels, x, y);
}

// --- norms
// -----------------------------------------------------------------------------------------

void CudaKernels::BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  if (dims.channels == 0) return;
  const auto scratch = scratch_.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchBatchNormSums(device_, dims, x, scratch.data(), sums);
}

void CudaKernels::BatchNormStatistics(int64_t rows, float epsilon, double share,
                                      std::span<const double> sums, std::span<float> mean,
                                      std::span<float> inverse, std::span<float> running_mean,
                                      std::span<float> running_variance) {
  CheckSize("sums", sums.size(), 2 * Size(mean));
  for (const auto span : {inverse, running_mean, running_variance}) {
    CheckSize("a value by channel", span.size(), Size(mean));
  }
  if (mean.empty()) return;
  LaunchBatchNormStatistics(device_, rows, epsilon, share, sums, mean, inverse, running_mean,
                            running_variance);
}

void CudaKernels::BatchNormInverse(float epsilon, std::span<const float> variance,
                                   std::span<float> inverse) {
  CheckSize("inverse", inverse.size(), Size(variance));
  if (!inverse.empty()) LaunchBatchNormInverse(device_, epsilon, variance, inverse);
}

void CudaKernels::Narrow(double divisor, std::span<const double> sums, std::span<float> y) {
  CHECK_LE(y.size(), sums.size());
  if (!y.empty()) LaunchNarrow(device_, divisor, sums, y);
}

void CudaKernels::BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                                   std::span<const float> inverse, std::span<const float> scale,
                                   std::span<const float> shift, Values y) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, shift});
  if (!y.empty()) LaunchBatchNormForward(device_, dims, x, mean, inverse, scale, shift, y);
}

void CudaKernels::BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                                        std::span<const float> mean, std::span<const float> inverse,
                                        std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  CheckChannels(dims, {mean, inverse});
  if (dims.channels == 0) return;
  const auto scratch = scratch_.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchBatchNormBackwardSums(device_, dims, x, dy, mean, inverse, scratch.data(), sums);
}

void CudaKernels::BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                    std::span<const float> mean, std::span<const float> inverse,
                                    std::span<const float> scale, std::span<const float> mean_dy,
                                    std::span<const float> mean_dy_x, Values dx) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, mean_dy, mean_dy_x});
  if (dx.empty()) return;
  LaunchBatchNormBackward(device_, dims, x, dy, mean, inverse, scale, mean_dy, mean_dy_x, dx);
}

void CudaKernels::LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                                   std::span<const float> scale, std::span<const float> shift,
                                   Values y, std::span<float> mean, std::span<float> inverse) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {scale, shift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  if (dims.rows == 0) return;
  LaunchLayerNormForward(device_, dims, epsilon, x, scale, shift, y, mean, inverse);
}

void CudaKernels::LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                    std::span<const float> mean, std::span<const float> inverse,
                                    std::span<const float> scale, Values dx,
                                    std::span<float> dscale, std::span<float> dshift) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {scale, dscale, dshift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  if (dims.channels == 0) return;
  const auto scratch = scratch_.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchLayerNormBackward(device_, dims, x, dy, mean, inverse, scale, dx, dscale, dshift,
                          scratch.data());
}

void CudaKernels::LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  if (!y.empty()) LaunchLrnForward(device_, dims, x, y, d);
}

void CudaKernels::LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d,
                              ConstValues dy, Values dx) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  if (!dx.empty()) LaunchLrnBackward(device_, dims, x, d, dy, dx);
}

// --- sequences
// -------------------------------------------------------------------------------------

void CudaKernels::EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                                   std::span<const float> w, std::span<const float> positions,
                                   Values y) {
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("w", w.size(), sizes.w);
  CheckPositions("positions", positions.size(), dims);
  CheckSize("y", y.size(), sizes.y);
  if (!y.empty()) LaunchEmbeddingForward(device_, dims, ids, w, positions, y);
}

void CudaKernels::EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                                    ConstValues dy, std::span<float> dw,
                                    std::span<float> dpositions) {
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckPositions("dpositions", dpositions.size(), dims);
  if (dw.empty() && dpositions.empty()) return;
  const auto order = scratch_.Take<int32_t>(2 * ids.size());
  LaunchEmbeddingBackward(device_, dims, ids, dy, dw, dpositions, order);
}

// --- loss
// ------------------------------------------------------------------------------------------

void CudaKernels::SoftmaxCrossEntropyLater(int64_t rows, int64_t classes, float smoothing,
                                           ConstValues x, std::span<const int32_t> labels,
                                           float scale, Values dx, std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(RowsDims{.rows = rows, .channels = classes}));
  CheckSize("labels", labels.size(), rows);
  CheckSizeIfAny("dx", dx.size(), rows * classes);
  CHECK(dx.empty() || dx.type() == x.type());
  CHECK_GE(sums.size(), 2U);
  const auto scratch = scratch_.Take<double>(static_cast<size_t>(2 * rows));
  LaunchSoftmaxCrossEntropy(device_, rows, classes, smoothing, x, labels, scale, dx, scratch, sums);
}

Kernels::LossSums CudaKernels::SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                                   ConstValues x, std::span<const int32_t> labels,
                                                   float scale, Values dx) {
  if (results_.data() == nullptr) return {};
  double* const sums = results_.data()->sums;
  SoftmaxCrossEntropyLater(rows, classes, smoothing, x, labels, scale, dx, {sums, 2});
  double found[2] = {};
  device_.CopyOut(sums, found, sizeof(found)).IgnoreError();  // status() has it
  return {.loss = found[0], .correct = static_cast<int64_t>(found[1])};
}

std::unique_ptr<Kernels> MakeCudaKernels(CudaDevice& device, std::unique_ptr<DenseMath> math) {
  return std::make_unique<CudaKernels>(device, std::move(math));
}

}  // namespace cadre
