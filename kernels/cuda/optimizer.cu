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
#include <variant>

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

// The arguments of one update of a whole slice.
template <typename Step>
struct Job {
  // Rate, corrections and gradient_scale are used unless `numbers` and `guard` replace them.
  Step step;
  const CudaNumbers* numbers;
  UpdateGuard guard;
  // Null: weight decay applies to all elements.
  const SliceSegment* segments;
  int64_t segment_count;
  int64_t n;
  const float* g;
  float* w;
  float* states[Step::kStates];
  // The bf16 copy of w, which is updated, too; or null.
  Bf16* copy;
};

// The factors that elements need whose state began after `before` updates. Those of 0 are computed
// by one thread of each block.
template <typename Step>
using Factors = FactorsFor<Step, float>;

template <typename Step>
__device__ Factors<Step> FactorsAfter(const Job<Step>& job, int64_t before) {
  Step step = job.step;
  if (job.numbers != nullptr) {
    step.rate = job.numbers->rate;
    step.gradient_scale = 1;
    step.SetUpdates(job.numbers->updates - before);
  }
  if (job.guard.squares != nullptr) {
    const double share = job.guard.clip_norm / (sqrt(*job.guard.squares) + 1e-6);
    step.gradient_scale = share < 1.0 ? share : 1.0;
  }
  return FactorsOf<float>(step);
}

// The segment that contains element i.
template <typename Step>
__device__ inline SliceSegment SegmentOf(const Job<Step>& job, int64_t i) {
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

// Updates element k of the elements that a thread processes together.
template <typename Factors, int kStates>
__device__ inline void UpdateOne(Factors f, const SliceSegment& segment, int k, const float* g,
                                 float* w, float (&states)[kStates][kEach]) {
  if (segment.statistic) {
    w[k] += segment.momentum * (g[k] - w[k]);
    return;
  }
  if (!segment.decays) f.OmitDecay();
  float state[kStates];
  for (int s = 0; s < kStates; ++s) state[s] = states[s][k];
  UpdateElement(f, g[k], &w[k], state);
  for (int s = 0; s < kStates; ++s) states[s][k] = state[s];
}

// Continues with the segment that contains element i, and with its factors. `shared`: those of
// segments whose state began before the first update.
template <typename Step>
__device__ inline void EnterSegment(const Job<Step>& job, int64_t i, const Factors<Step>& shared,
                                    SliceSegment* segment, Factors<Step>* factors) {
  const int64_t before = segment->before;
  *segment = SegmentOf(job, i);
  if (!Step::kCountsUpdates || segment->before == before) return;
  *factors = segment->before == 0 ? shared : FactorsAfter(job, segment->before);
}

// A block processes tiles of kThreads * kEach elements. With kWideAccess a thread's elements are
// neighbours and are accessed 16 bytes at a time; otherwise they lie kThreads apart, so that the
// elements of a warp are neighbours.
template <typename Step, bool kWideAccess>
__global__ void __launch_bounds__(kThreads) Update(Job<Step> job) {
  __shared__ Factors<Step> shared;
  // Either all threads return or none, so that no thread waits at the barrier below for another.
  if (job.guard.loss != nullptr && !IsFinite(*job.guard.loss)) return;
  if (threadIdx.x == 0) shared = FactorsAfter(job, /*before=*/0);
  __syncthreads();
  Factors<Step> f = shared;
  constexpr int kStates = Step::kStates;
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
    float g[kEach] = {}, w[kEach] = {}, states[kStates][kEach] = {};
    if (whole) {
      LoadGroup(job.g + first, g);
      LoadGroup(job.w + first, w);
      for (int s = 0; s < kStates; ++s) LoadGroup(job.states[s] + first, states[s]);
    } else {
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k * kApart;
        if (i >= job.n) continue;
        g[k] = job.g[i];
        w[k] = job.w[i];
        for (int s = 0; s < kStates; ++s) states[s][k] = job.states[s][i];
      }
    }
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = first + k * kApart;
      if (i >= job.n) continue;
      if (i < segment.begin || i >= segment.end) EnterSegment(job, i, shared, &segment, &f);
      UpdateOne(f, segment, k, g, w, states);
    }
    if (whole) {
      StoreGroup(w, job.w + first);
      for (int s = 0; s < kStates; ++s) StoreGroup(states[s], job.states[s] + first);
      if (job.copy != nullptr) StoreGroup(w, job.copy + first);
    } else {
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k * kApart;
        if (i >= job.n) continue;
        job.w[i] = w[k];
        for (int s = 0; s < kStates; ++s) job.states[s][i] = states[s][k];
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

template <typename Step>
void LaunchUpdate(CudaContext& cuda, Job<Step> job, FloatSpan w,
                  std::span<const FloatSpan> states) {
  job.n = std::ssize(w);
  job.w = w.data();
  job.copy = Data<Bf16>(cuda.copies.Find(w));
  bool wide = Aligned({job.g, job.w}) && Aligned({job.copy}, kEach * sizeof(Bf16));
  for (size_t s = 0; s < states.size(); ++s) {
    job.states[s] = states[s].data();
    wide = wide && Aligned({job.states[s]});
  }
  Launch(cuda.device, "optimizer", wide ? Update<Step, true> : Update<Step, false>,
         Strided(cuda.device, (job.n + kEach - 1) / kEach, kThreads), job);
}

void UpdateAll(CudaContext& cuda, const OptimizerStep& step, const UpdateGuard& guard,
               const CudaNumbers* numbers, std::span<const SliceSegment> segments, ConstFloatSpan g,
               FloatSpan w, std::span<const FloatSpan> states) {
  CheckUpdate(step, g.size(), w.size(), states);
  if (w.empty()) return;
  std::visit(
      [&]<typename Step>(const Step& rule) {
        LaunchUpdate<Step>(cuda,
                           {.step = rule,
                            .numbers = numbers,
                            .guard = guard,
                            .segments = segments.data(),
                            .segment_count = std::ssize(segments),
                            .g = g.data()},
                           w, states);
      },
      step);
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

  void Update(const OptimizerStep& step, ConstFloatSpan g, FloatSpan w,
              std::span<const FloatSpan> states) override {
    UpdateAll(cuda_, step, {}, nullptr, {}, g, w, states);
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

  void UpdateSlice(const OptimizerStep& step, const UpdateGuard& guard,
                   const SegmentTable& segments, ConstFloatSpan g, FloatSpan w,
                   std::span<const FloatSpan> states) override {
    const auto table = static_cast<const DeviceSegments&>(segments).segments();
    if (cuda_.numbers.data() == nullptr || table.data() == nullptr) return;
    UpdateAll(cuda_, step, guard, cuda_.numbers.data(), table, g, w, states);
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
