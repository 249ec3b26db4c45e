// What holds for all operations, copies, and operations that are one own kernel.
#include "kernels/cuda/cuda_backend.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/cuda/cuda_families.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// TF32 and bf16 came with this compute capability.
constexpr int kMinCapability = 80;

template <typename T>
int64_t Size(const T& span) {
  return span.size();
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

void CudaPointwise::SetPosition(int64_t first_position) {
  CHECK(!cuda_.device.capturing()) << "the recording would keep this position";
  LaunchSetPosition(cuda_.device, first_position, cuda_.numbers.data());
}

// --- copies --------------------------------------------------------------------------------------

void CudaMemory::Copy(ConstValues x, Values y) { cuda_.Copy(x, y); }

void CudaMemory::Zero(Values y) { cuda_.Zero(y); }

void CudaMemory::CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                          int64_t y_step) {
  CHECK(x.type() == y.type());
  if (rows <= 0 || run <= 0) return;
  CHECK_LE((rows - 1) * x_step + run, Size(x)) << "elements of x";
  CHECK_LE((rows - 1) * y_step + run, Size(y)) << "elements of y";
  LaunchCopyNest(cuda_.device, {.loops = {{rows, x_step, y_step}, {run, 1, 1}}}, x, y);
}

void CudaMemory::CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                         const Box& region) {
  CheckBoxes(from, from_box, to, to_box);
  if (!region.empty()) LaunchCopyNest(cuda_.device, WalkOf(from_box, to_box, region), from, to);
}

void CudaMemory::AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                        const Box& region) {
  CheckBoxes(from, from_box, to, to_box);
  if (!region.empty()) LaunchAddNest(cuda_.device, WalkOf(from_box, to_box, region), from, to);
}

void CudaMemory::AccumulateReceived(DType type, std::span<std::byte> sum,
                                    std::span<const std::byte> values) {
  CHECK_EQ(sum.size(), values.size());
  if (!sum.empty()) LaunchAccumulateReceived(cuda_.device, type, sum, values);
}

bool CudaMemory::AllFinite(ConstValues x) {
  if (x.empty() || cuda_.results.data() == nullptr) return true;
  int32_t* const found = &cuda_.results.data()->found;
  cuda_.device.Zero(found, sizeof(*found));
  LaunchFindNotFinite(cuda_.device, x, found);
  int32_t answer = 0;
  cuda_.device.CopyOut(found, &answer, sizeof(answer)).IgnoreError();  // status() has it
  return answer == 0;
}

// --- pooling -------------------------------------------------------------------------------------

void CudaWindow::PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                                std::span<int32_t> argmax) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("y", y.size(), sizes.y);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  if (!y.empty()) LaunchPoolingForward(cuda_.device, dims, x, y, argmax);
}

void CudaWindow::PoolingBackward(const PoolingDims& dims, ConstValues dy,
                                 std::span<const int32_t> argmax, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dx", dx.size(), sizes.x);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  if (!dx.empty()) LaunchPoolingBackward(cuda_.device, dims, dy, argmax, dx);
}

void CudaWindow::GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                          int64_t divisor, ConstValues x, Values y) {
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * channels);
  CHECK_GE(divisor, 1);
  if (y.empty()) return;
  LaunchGlobalAveragePoolForward(cuda_.device, batch, positions, channels, divisor, x, y);
}

void CudaWindow::GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                           int64_t divisor, ConstValues dy, Values dx) {
  CheckSize("dy", dy.size(), batch * channels);
  CheckSize("dx", dx.size(), batch * positions * channels);
  CHECK_GE(divisor, 1);
  if (dx.empty()) return;
  LaunchGlobalAveragePoolBackward(cuda_.device, batch, positions, channels, divisor, dy, dx);
}

// --- element by element --------------------------------------------------------------------------

void CudaPointwise::ActivationForward(Activation kind, ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (!y.empty()) LaunchActivationForward(cuda_.device, kind, x, y);
}

void CudaPointwise::ActivationBackward(Activation kind, ConstValues seen, ConstValues dy,
                                       Values dx) {
  CheckSize("dy", dy.size(), Size(seen));
  CheckSize("dx", dx.size(), Size(seen));
  if (!dx.empty()) LaunchActivationBackward(cuda_.device, kind, seen, dy, dx);
}

void CudaPointwise::Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (y.empty()) return;
  LaunchDropout(cuda_.device, key, {.loops = {{Size(x), 1, 1}}}, first, /*position=*/nullptr,
                /*sample_elements=*/0, x, y);
}

void CudaPointwise::DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box,
                               ConstValues x, Values y) {
  CheckSize("x", x.size(), box.shape().elements());
  CheckSize("y", y.size(), box.shape().elements());
  if (y.empty()) return;
  // Numbers are places in the whole batch, counted on from the position's samples.
  const Box all = Box::Whole(whole);
  NestLoops walk = WalkOf(box, all, box);
  const int64_t first = std::exchange(walk.b_begin, 0);
  const int64_t sample_elements = StepsOf(all)[0];
  LaunchDropout(cuda_.device, key, walk, first,
                cuda_.numbers.data() == nullptr ? nullptr : &cuda_.numbers.data()->position,
                sample_elements, x, y);
}

void CudaPointwise::Add(ConstValues x, Values y) {
  CheckSize("y", y.size(), Size(x));
  if (!y.empty()) LaunchAdd(cuda_.device, x, y);
}

void CudaMemory::Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                           Values y) {
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * positions * channels);
  if (!y.empty()) LaunchTranspose(cuda_.device, batch, positions, channels, x, y);
}

// --- norms ---------------------------------------------------------------------------------------

void CudaNorm::BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  if (dims.channels == 0) return;
  const auto scratch = cuda_.scratch.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchBatchNormSums(cuda_.device, dims, x, scratch.data(), sums);
}

void CudaNorm::BatchNormStatistics(int64_t rows, float epsilon, double share,
                                   std::span<const double> sums, std::span<float> mean,
                                   std::span<float> inverse, std::span<float> running_mean,
                                   std::span<float> running_variance) {
  CheckSize("sums", sums.size(), 2 * Size(mean));
  for (const auto span : {inverse, running_mean, running_variance}) {
    CheckSize("a value by channel", span.size(), Size(mean));
  }
  if (mean.empty()) return;
  LaunchBatchNormStatistics(cuda_.device, rows, epsilon, share, sums, mean, inverse, running_mean,
                            running_variance);
}

void CudaNorm::BatchNormInverse(float epsilon, std::span<const float> variance,
                                std::span<float> inverse) {
  CheckSize("inverse", inverse.size(), Size(variance));
  if (!inverse.empty()) LaunchBatchNormInverse(cuda_.device, epsilon, variance, inverse);
}

void CudaNorm::DivideToFloat(double divisor, std::span<const double> sums, std::span<float> y) {
  CHECK_LE(y.size(), sums.size());
  if (!y.empty()) LaunchDivideToFloat(cuda_.device, divisor, sums, y);
}

void CudaNorm::BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                                std::span<const float> inverse, std::span<const float> scale,
                                std::span<const float> shift, Values y) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, shift});
  if (!y.empty()) LaunchBatchNormForward(cuda_.device, dims, x, mean, inverse, scale, shift, y);
}

void CudaNorm::BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                                     std::span<const float> mean, std::span<const float> inverse,
                                     std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  CheckChannels(dims, {mean, inverse});
  if (dims.channels == 0) return;
  const auto scratch = cuda_.scratch.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchBatchNormBackwardSums(cuda_.device, dims, x, dy, mean, inverse, scratch.data(), sums);
}

void CudaNorm::BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                 std::span<const float> mean, std::span<const float> inverse,
                                 std::span<const float> scale, std::span<const float> mean_dy,
                                 std::span<const float> mean_dy_x, Values dx) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, mean_dy, mean_dy_x});
  if (dx.empty()) return;
  LaunchBatchNormBackward(cuda_.device, dims, x, dy, mean, inverse, scale, mean_dy, mean_dy_x, dx);
}

void CudaNorm::LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                                std::span<const float> scale, std::span<const float> shift,
                                Values y, std::span<float> mean, std::span<float> inverse) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {scale, shift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  if (dims.rows == 0) return;
  LaunchLayerNormForward(cuda_.device, dims, epsilon, x, scale, shift, y, mean, inverse);
}

void CudaNorm::LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                 std::span<const float> mean, std::span<const float> inverse,
                                 std::span<const float> scale, Values dx, std::span<float> dscale,
                                 std::span<float> dshift) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {scale, dscale, dshift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  if (dims.channels == 0) return;
  const auto scratch = cuda_.scratch.Take<double>(ColumnSumDoubles(dims.channels, 2));
  LaunchLayerNormBackward(cuda_.device, dims, x, dy, mean, inverse, scale, dx, dscale, dshift,
                          scratch.data());
}

void CudaNorm::LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  if (!y.empty()) LaunchLrnForward(cuda_.device, dims, x, y, d);
}

void CudaNorm::LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d,
                           ConstValues dy, Values dx) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  if (!dx.empty()) LaunchLrnBackward(cuda_.device, dims, x, d, dy, dx);
}

// --- sequences -----------------------------------------------------------------------------------

void CudaDense::EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                                 std::span<const float> w, std::span<const float> positions,
                                 Values y) {
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("w", w.size(), sizes.w);
  CheckPositions("positions", positions.size(), dims);
  CheckSize("y", y.size(), sizes.y);
  if (!y.empty()) LaunchEmbeddingForward(cuda_.device, dims, ids, w, positions, y);
}

void CudaDense::EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                                  ConstValues dy, std::span<float> dw,
                                  std::span<float> dpositions) {
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids.size(), sizes.ids);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckPositions("dpositions", dpositions.size(), dims);
  if (dw.empty() && dpositions.empty()) return;
  const auto order = cuda_.scratch.Take<int32_t>(2 * ids.size());
  LaunchEmbeddingBackward(cuda_.device, dims, ids, dy, dw, dpositions, order);
}

// --- loss ----------------------------------------------------------------------------------------

void CudaPointwise::SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing,
                                             ConstValues x, std::span<const int32_t> labels,
                                             float scale, Values dx, std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(RowsDims{.rows = rows, .channels = classes}));
  CheckSize("labels", labels.size(), rows);
  CheckSizeIfAny("dx", dx.size(), rows * classes);
  CHECK(dx.empty() || dx.type() == x.type());
  CHECK_GE(sums.size(), 2U);
  const auto scratch = cuda_.scratch.Take<double>(static_cast<size_t>(2 * rows));
  LaunchSoftmaxCrossEntropy(cuda_.device, rows, classes, smoothing, x, labels, scale, dx, scratch,
                            sums);
}

LossSums CudaPointwise::SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                            ConstValues x, std::span<const int32_t> labels,
                                            float scale, Values dx) {
  if (cuda_.results.data() == nullptr) return {};
  double* const sums = cuda_.results.data()->sums;
  SoftmaxCrossEntropyAsync(rows, classes, smoothing, x, labels, scale, dx, {sums, 2});
  double found[2] = {};
  cuda_.device.CopyOut(sums, found, sizeof(found)).IgnoreError();  // status() has it
  return {.loss = found[0], .correct = static_cast<int64_t>(found[1])};
}

namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaDevice& device, std::unique_ptr<DenseMath> math)
      : context_(device, std::move(math)) {
    families_ = {.memory = std::make_unique<CudaMemory>(context_),
                 .dense = std::make_unique<CudaDense>(context_),
                 .window = std::make_unique<CudaWindow>(context_),
                 .norm = std::make_unique<CudaNorm>(context_),
                 .pointwise = std::make_unique<CudaPointwise>(context_),
                 .optimizer = std::make_unique<CudaOptimizer>(context_),
                 .slices = std::make_unique<CudaSlice>(context_)};
  }

  Device& device() override { return context_.device; }
  DType activation_type() const override {
    return context_.precision == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  absl::Status SetPrecision(Precision precision) override;
  void WeightsChanged(std::span<const float> weights) override {
    if (context_.precision == Precision::kBf16) context_.copies.Renew(weights);
  }
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }

 private:
  CudaContext context_;
};

absl::Status CudaBackend::SetPrecision(Precision precision) {
  const int capability = context_.device.capability();
  if (precision != Precision::kFp32 && capability < kMinCapability) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision ", precision == Precision::kTf32 ? "TF32" : "BF16",
                     " needs compute capability ", kMinCapability / 10, ".", kMinCapability % 10,
                     "; ", context_.device.name(), " has ", capability / 10, ".", capability % 10));
  }
  context_.precision = precision;
  context_.math->set_tf32(precision == Precision::kTf32);
  context_.copies.Clear();
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(CudaDevice& device, std::unique_ptr<DenseMath> math) {
  return std::make_unique<CudaBackend>(device, std::move(math));
}

}  // namespace cadre
