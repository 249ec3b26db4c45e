// Optimisers' updates and the norms that they clip by.
#include <limits>

#include "glog/logging.h"
#include "kernels/cuda/cuda_families.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

class DeviceSegments final : public SegmentTable {
 public:
  DeviceSegments(CudaDevice& device, std::span<const SliceSegment> segments)
      : segments_(device, segments.size(), "segments of a slice") {
    if (segments_.data() == nullptr) return;
    device.CopyIn(segments.data(), segments_.data(), segments.size_bytes());
  }
  std::span<const SliceSegment> segments() const { return segments_.span(); }

 private:
  DeviceArray<SliceSegment> segments_;
};

void Update(CudaContext& cuda, const SliceUpdate& update, const CudaNumbers* numbers,
            std::span<const SliceSegment> segments, std::span<const float> g, std::span<float> w,
            std::span<float> m, std::span<float> v) {
  const auto n = static_cast<int64_t>(w.size());
  CheckSize("g", g.size(), n);
  CheckSize("v", v.size(), n);
  if (update.rule == SliceUpdate::Rule::kAdamW) CheckSize("m", m.size(), n);
  if (w.empty()) return;
  LaunchUpdate(cuda.device, {.update = update,
                             .numbers = numbers,
                             .segments = segments,
                             .g = g,
                             .w = w,
                             .m = m,
                             .v = v,
                             .copy = cuda.copies.Find(w).data()});
}

}  // namespace

void CudaSlice::SetUpdate(float rate, int64_t updates) {
  CHECK(!cuda_.device.capturing()) << "the recording would keep this update";
  LaunchSetUpdate(cuda_.device, rate, updates, cuda_.numbers.data());
}

std::unique_ptr<SegmentTable> CudaSlice::MakeSegmentTable(std::span<const SliceSegment> segments) {
  return std::make_unique<DeviceSegments>(cuda_.device, segments);
}

void CudaSlice::UpdateSlice(const SliceUpdate& update, const SegmentTable& segments,
                            std::span<const float> g, std::span<float> w, std::span<float> m,
                            std::span<float> v) {
  const auto& table = static_cast<const DeviceSegments&>(segments);
  if (cuda_.numbers.data() == nullptr || table.segments().data() == nullptr) return;
  Update(cuda_, update, cuda_.numbers.data(), table.segments(), g, w, m, v);
}

void CudaOptimizer::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                        std::span<float> v) {
  Update(cuda_, {.rule = SliceUpdate::Rule::kSgd, .sgd = step}, nullptr, {}, g, w, {}, v);
}

void CudaOptimizer::AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
                          std::span<float> m, std::span<float> v) {
  Update(cuda_, {.rule = SliceUpdate::Rule::kAdamW, .adamw = step}, nullptr, {}, g, w, m, v);
}

void CudaSlice::AddSumOfSquares(std::span<const float> x, double* sum) {
  if (x.empty()) return;
  const auto scratch = cuda_.scratch.Take<double>(kSquareBlocks);
  LaunchSumOfSquares(cuda_.device, x, /*adds=*/true, scratch.data(), sum);
}

void CudaOptimizer::DrawTowards(float momentum, std::span<const float> batch, std::span<float> w) {
  CheckSize("batch", batch.size(), std::ssize(w));
  if (!w.empty()) LaunchDrawTowards(cuda_.device, momentum, batch, w);
}

double CudaOptimizer::SumOfSquares(std::span<const float> x) {
  if (x.empty() || cuda_.results.data() == nullptr) return 0;
  double* const sum = cuda_.results.data()->sums;
  const auto scratch = cuda_.scratch.Take<double>(kSquareBlocks);
  LaunchSumOfSquares(cuda_.device, x, /*adds=*/false, scratch.data(), sum);
  double found = std::numeric_limits<double>::quiet_NaN();
  cuda_.device.CopyOut(sum, &found, sizeof(found)).IgnoreError();  // status() has it
  return found;
}

}  // namespace cadre
