// The optimisers' updates: one launch updates a whole slice and reads and writes each array once,
// with the arithmetic of kernels/optimizer_step.h. The file is compiled without contraction
// (--fmad=false), so that a step computes the same bits as on the CPU. (Only the powers in AdamW's
// corrections may differ in the last bit of a double.)
//
// Everything that changes from step to step (rate, number, loss, norm) is read from device memory
// when the kernel runs: a captured graph replays with the current values, and the host never blocks
// to decide whether the loss was finite.
//
// Sums of squares. The bits of a sum by atomic additions depend on the order in which blocks
// finish, but all ranks must compute the same bits of a norm. So the sum has two deterministic
// phases (the scheme of Harris, "Optimizing Parallel Reduction in CUDA", without atomics): a fixed
// number of blocks, chosen by the number of elements and never by the device, write partial sums in
// double; one block then adds them in their order. The second launch costs a few microseconds,
// which is small compared with reading a slice.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"
#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxSquareBlocks = 1024;
// Elements that a thread processes together.
constexpr int kEach = 4;

enum class Kind { kHeavyBall, kNesterov, kAdamW };

// The arguments of one update of a whole slice. See SliceUpdate for loss, squares and clip_norm.
struct Job {
  // Rate, corrections and gradient_scale of these are used unless `numbers` and `squares` replace
  // them.
  SgdStep sgd;
  AdamWStep adamw;
  const CudaNumbers* numbers;
  const double* loss;
  const double* squares;
  float clip_norm;
  // Null: weight decay applies to all elements.
  const SliceSegment* segments;
  int64_t segment_count;
  int64_t n;
  const float* g;
  float* w;
  float* m;
  float* v;
  // The bf16 copy of w, which is updated, too; or null.
  Bf16* copy;
};

// The factors that elements need whose state began after `before` updates. Those of 0 are computed
// by one thread of each block.
template <Kind kKind>
using Factors = std::conditional_t<kKind == Kind::kAdamW, AdamFactors<float>, SgdFactors<float>>;

template <Kind kKind>
__device__ Factors<kKind> FactorsOf(const Job& job, int64_t before) {
  auto step = [&job] {
    if constexpr (kKind == Kind::kAdamW) {
      return job.adamw;
    } else {
      return job.sgd;
    }
  }();
  if (job.numbers != nullptr) {
    step.rate = job.numbers->rate;
    step.gradient_scale = 1;
    if constexpr (kKind == Kind::kAdamW) {
      const double beta1 = step.beta1, beta2 = step.beta2;
      const double updates = job.numbers->updates - before;
      step.correction1 = 1 - pow(beta1, updates);
      step.correction2 = 1 - pow(beta2, updates);
    }
  }
  if (job.squares != nullptr) {
    const double share = job.clip_norm / (sqrt(*job.squares) + 1e-6);
    step.gradient_scale = share < 1.0 ? share : 1.0;
  }
  if constexpr (kKind == Kind::kAdamW) {
    return AdamFactorsOf<float>(step);
  } else {
    return SgdFactorsOf<float>(step);
  }
}

// The segment that contains element i.
__device__ inline SliceSegment SegmentOf(const Job& job, int64_t i) {
  int64_t low = 0;
  int64_t high = job.segment_count;
  // Segments cover the slice in order; some may be empty.
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (job.segments[middle].begin <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return job.segments[low];
}

template <Kind kKind>
__device__ inline void Step(Factors<kKind> f, const SliceSegment& segment, float g, float* w,
                            float* m, float* v) {
  if (segment.statistic) {
    *w += segment.momentum * (g - *w);
  } else if constexpr (kKind == Kind::kAdamW) {
    if (!segment.decays) f.keep = 1;
    AdamElement(f, g, w, m, v);
  } else {
    if (!segment.decays) f.decay = 0;
    SgdElement<kKind == Kind::kNesterov>(f, g, w, v);
  }
}

// Continues with the segment that contains element i, and with its factors. `shared`: those of
// segments whose state began before the first update.
template <Kind kKind>
__device__ inline void EnterSegment(const Job& job, int64_t i, const Factors<kKind>& shared,
                                    SliceSegment* segment, Factors<kKind>* factors) {
  const int64_t before = segment->before;
  *segment = SegmentOf(job, i);
  if (kKind != Kind::kAdamW || segment->before == before) return;
  *factors = segment->before == 0 ? shared : FactorsOf<kKind>(job, segment->before);
}

// A block processes tiles of kThreads * kEach elements. With kWideAccess a thread's elements are
// neighbours and are accessed 16 bytes at a time; otherwise they lie kThreads apart, so that the
// elements of a warp are neighbours.
template <Kind kKind, bool kWideAccess>
__global__ void __launch_bounds__(kThreads) Update(Job job) {
  __shared__ Factors<kKind> shared;
  // Either all threads return or none, so that no thread waits at the barrier below for another.
  if (job.loss != nullptr && !IsFinite(*job.loss)) return;
  if (threadIdx.x == 0) shared = FactorsOf<kKind>(job, /*before=*/0);
  __syncthreads();
  Factors<kKind> f = shared;
  constexpr bool kHasM = kKind == Kind::kAdamW;
  SliceSegment segment;
  segment.before = 0;
  segment.begin = 0;
  segment.end = job.segment_count == 0 ? job.n : 0;
  segment.decays = true;
  const int64_t tile = int64_t{kThreads} * kEach;
  for (int64_t base = blockIdx.x * tile; base < job.n; base += gridDim.x * tile) {
    const int64_t first = base + (kWideAccess ? int64_t{threadIdx.x} * kEach : threadIdx.x);
    constexpr int64_t kApart = kWideAccess ? 1 : kThreads;
    const bool whole = kWideAccess && first + kEach <= job.n;
    float g[kEach] = {}, w[kEach] = {}, m[kEach] = {}, v[kEach] = {};
    if (whole) {
      LoadGroup(job.g + first, g);
      LoadGroup(job.w + first, w);
      LoadGroup(job.v + first, v);
      if (kHasM) LoadGroup(job.m + first, m);
    } else {
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k * kApart;
        if (i >= job.n) continue;
        g[k] = job.g[i];
        w[k] = job.w[i];
        v[k] = job.v[i];
        if (kHasM) m[k] = job.m[i];
      }
    }
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = first + k * kApart;
      if (i >= job.n) continue;
      if (i < segment.begin || i >= segment.end) EnterSegment<kKind>(job, i, shared, &segment, &f);
      Step<kKind>(f, segment, g[k], &w[k], &m[k], &v[k]);
    }
    if (whole) {
      StoreGroup(w, job.w + first);
      StoreGroup(v, job.v + first);
      if (kHasM) StoreGroup(m, job.m + first);
      if (job.copy != nullptr) StoreGroup(w, job.copy + first);
    } else {
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k * kApart;
        if (i >= job.n) continue;
        job.w[i] = w[k];
        job.v[i] = v[k];
        if (kHasM) job.m[i] = m[k];
        if (job.copy != nullptr) FromFloat(w[k], job.copy + i);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    MoveTowards(int64_t n, float momentum, const float* __restrict__ batch, float* __restrict__ w) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) w[i] += momentum * (batch[i] - w[i]);
}

// Sets the numbers that Update reads. The values travel with the launch, so no host memory must
// stay unchanged.
__global__ void StoreUpdate(float rate, int64_t updates, CudaNumbers* numbers) {
  numbers->rate = rate;
  numbers->updates = updates;
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    SumSquares(int64_t n, const float* __restrict__ x, double* __restrict__ partial) {
  __shared__ double shared[32];
  const int64_t groups = n / N;
  double sum = 0;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float values[N];
    LoadGroup(x + i * N, values);
    for (int k = 0; k < N; ++k) {
      const double value = values[k];
      sum += value * value;
    }
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    const double value = x[i];
    sum += value * value;
  }
  sum = OverBlock(sum, Plus(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    AddPartial(int blocks, const double* __restrict__ partial, bool adds, double* sum) {
  __shared__ double shared[32];
  double all = 0;
  for (int i = threadIdx.x; i < blocks; i += kThreads) all += partial[i];
  all = OverBlock(all, Plus(), shared);
  if (threadIdx.x == 0) *sum = adds ? *sum + all : all;
}

void LaunchUpdate(CudaContext& cuda, const SliceUpdate& update, const CudaNumbers* numbers,
                  std::span<const SliceSegment> segments, ConstFloatSpan g, FloatSpan w,
                  FloatSpan m, FloatSpan v) {
  const bool is_adamw = update.rule == SliceUpdate::Rule::kAdamW;
  CheckSizes(std::ssize(w), {{"g", g.size()}, {"v", v.size()}});
  if (is_adamw) CheckSize("m", m.size(), std::ssize(w));
  if (w.empty()) return;
  const Job job{.sgd = update.sgd,
                .adamw = update.adamw,
                .numbers = numbers,
                .loss = update.loss,
                .squares = update.squares,
                .clip_norm = update.clip_norm,
                .segments = segments.data(),
                .segment_count = std::ssize(segments),
                .n = std::ssize(w),
                .g = g.data(),
                .w = w.data(),
                .m = m.data(),
                .v = v.data(),
                .copy = Data<Bf16>(cuda.copies.Find(w))};
  const bool wide =
      Aligned({job.g, job.w, job.m, job.v}) && Aligned({job.copy}, kEach * sizeof(Bf16));
  const auto launch = [&](auto wide_kernel, auto kernel) {
    Launch(cuda.device, "optimizer", wide ? wide_kernel : kernel,
           Strided(cuda.device, (job.n + kEach - 1) / kEach, kThreads), job);
  };
  if (is_adamw) {
    launch(Update<Kind::kAdamW, true>, Update<Kind::kAdamW, false>);
  } else if (update.sgd.nesterov) {
    launch(Update<Kind::kNesterov, true>, Update<Kind::kNesterov, false>);
  } else {
    launch(Update<Kind::kHeavyBall, true>, Update<Kind::kHeavyBall, false>);
  }
}

// *sum = the sum of squares of x; with `add`, *sum += it. Requires: x is not empty.
void LaunchSumOfSquares(CudaContext& cuda, ConstFloatSpan x, bool add, double* sum) {
  // The number of blocks, and with it the order of the sum, depends on the number of elements only.
  const int64_t n = x.size(), per_block = kThreads * 16;
  const int blocks = std::min<int64_t>((n + per_block - 1) / per_block, kMaxSquareBlocks);
  const auto partial = cuda.scratch.Take<double>(kMaxSquareBlocks);
  Launch(cuda.device, "squares", Aligned({x.data()}) ? SumSquares<4> : SumSquares<1>,
         LaunchShape{.grid = dim3(blocks), .block = dim3(kThreads)}, n, x.data(), partial.data());
  Launch(cuda.device, "sum of squares", AddPartial, LaunchShape{.block = dim3(kThreads)}, blocks,
         partial.data(), add, sum);
}

class CudaOptimizer final : public OptimizerKernels {
 public:
  explicit CudaOptimizer(CudaContext& cuda) : cuda_(cuda) {}

  void Sgd(const SgdStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan v) override {
    LaunchUpdate(cuda_, {.rule = SliceUpdate::Rule::kSgd, .sgd = step}, nullptr, {}, g, w, {}, v);
  }
  void AdamW(const AdamWStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan m,
             FloatSpan v) override {
    LaunchUpdate(cuda_, {.rule = SliceUpdate::Rule::kAdamW, .adamw = step}, nullptr, {}, g, w, m,
                 v);
  }

  void DrawTowards(float momentum, ConstFloatSpan batch, FloatSpan w) override {
    const int64_t n = w.size();
    CheckSize("batch", batch.size(), n);
    if (w.empty()) return;
    Launch(cuda_.device, "running statistics", MoveTowards, Strided(cuda_.device, n), n, momentum,
           batch.data(), w.data());
  }

  double SumOfSquares(ConstFloatSpan x) override {
    if (x.empty() || cuda_.results.data() == nullptr) return 0;
    double* const sum = cuda_.results.data()->sums;
    LaunchSumOfSquares(cuda_, x, /*add=*/false, sum);
    double result = std::numeric_limits<double>::quiet_NaN();
    cuda_.device.CopyOut(sum, &result, sizeof(result)).IgnoreError();  // status() has it
    return result;
  }

 private:
  CudaContext& cuda_;
};

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

class CudaSlices final : public SliceKernels {
 public:
  explicit CudaSlices(CudaContext& cuda) : cuda_(cuda) {}

  void SetUpdate(float rate, int64_t updates) override {
    CHECK(!cuda_.device.capturing()) << "the captured graph would keep this update";
    Launch(cuda_.device, "numbers of an update", StoreUpdate, LaunchShape{}, rate, updates,
           cuda_.numbers.data());
  }

  void AddSumOfSquares(ConstFloatSpan x, double* sum) override {
    if (!x.empty()) LaunchSumOfSquares(cuda_, x, /*add=*/true, sum);
  }

  std::unique_ptr<SegmentTable> MakeSegmentTable(std::span<const SliceSegment> segments) override {
    return std::make_unique<DeviceSegments>(cuda_.device, segments);
  }

  void UpdateSlice(const SliceUpdate& update, const SegmentTable& segments, ConstFloatSpan g,
                   FloatSpan w, FloatSpan m, FloatSpan v) override {
    const auto table = static_cast<const DeviceSegments&>(segments).segments();
    if (cuda_.numbers.data() == nullptr || table.data() == nullptr) return;
    LaunchUpdate(cuda_, update, cuda_.numbers.data(), table, g, w, m, v);
  }

 private:
  CudaContext& cuda_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> MakeCudaOptimizer(CudaContext& cuda) {
  return std::make_unique<CudaOptimizer>(cuda);
}

std::unique_ptr<SliceKernels> MakeCudaSlices(CudaContext& cuda) {
  return std::make_unique<CudaSlices>(cuda);
}

}  // namespace cadre
