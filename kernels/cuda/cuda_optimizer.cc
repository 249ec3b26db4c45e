// Optimisers' updates and the norms that they clip by.
#include <limits>

#include "glog/logging.h"
#include "kernels/cuda/cuda_kernels_class.h"
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

}  // namespace

std::unique_ptr<SegmentTable> CudaKernels::MakeSegmentTable(
    std::span<const SliceSegment> segments) {
  return std::make_unique<DeviceSegments>(device_, segments);
}

void CudaKernels::Update(const SliceUpdate& update, const CudaNumbers* numbers,
                         std::span<const SliceSegment> segments, std::span<const float> g,
                         std::span<float> w, std::span<float> m, std::span<float> v) {
  const auto n = static_cast<int64_t>(w.size());
  CheckSize("g", g.size(), n);
  CheckSize("v", v.size(), n);
  if (update.rule == SliceUpdate::Rule::kAdamW) CheckSize("m", m.size(), n);
  if (w.empty()) return;
  LaunchUpdate(device_, {.update = update,
                         .numbers = numbers,
                         .segments = segments,
                         .g = g,
                         .w = w,
                         .m = m,
                         .v = v,
                         .copy = copies_.Find(w).data()});
}

void CudaKernels::UpdateSlice(const SliceUpdate& update, const SegmentTable& segments,
                              std::span<const float> g, std::span<float> w, std::span<float> m,
                              std::span<float> v) {
  const auto& table = static_cast<const DeviceSegments&>(segments);
  if (numbers_.data() == nullptr || table.segments().data() == nullptr) return;
  Update(update, numbers_.data(), table.segments(), g, w, m, v);
}

void CudaKernels::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                      std::span<float> v) {
  Update({.rule = SliceUpdate::Rule::kSgd, .sgd = step}, nullptr, {}, g, w, {}, v);
}

void CudaKernels::AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
                        std::span<float> m, std::span<float> v) {
  Update({.rule = SliceUpdate::Rule::kAdamW, .adamw = step}, nullptr, {}, g, w, m, v);
}

void CudaKernels::AddSumOfSquares(std::span<const float> x, double* sum) {
  if (x.empty()) return;
  const auto scratch = scratch_.Take<double>(kSquareBlocks);
  LaunchSumOfSquares(device_, x, /*adds=*/true, scratch.data(), sum);
}

double CudaKernels::SumOfSquares(std::span<const float> x) {
  if (x.empty() || results_.data() == nullptr) return 0;
  double* const sum = results_.data()->sums;
  const auto scratch = scratch_.Take<double>(kSquareBlocks);
  LaunchSumOfSquares(device_, x, /*adds=*/false, scratch.data(), sum);
  double found = std::numeric_limits<double>::quiet_NaN();
  device_.CopyOut(sum, &found, sizeof(found)).IgnoreError();  // status() has it
  return found;
}

}  // namespace cadre
