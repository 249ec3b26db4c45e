// The optimisers' updates: a whole slice in one launch, each array read and written once, with the
// arithmetic of kernels/optimizer_step.h. Compiled without contraction (--fmad=false), so that a
// step has the bits of the CPU's. (Powers for AdamW's corrections may differ in the last bit of a
// double between the host and a device.)
//
// Everything that changes from step to step (rate, number, loss, norm) is read from device memory
// when the kernel runs: a captured graph replays with the current values, and the host never blocks
// to decide whether the loss was finite.
#include <cmath>
#include <type_traits>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"
#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

constexpr int kThreads = 256;
// Elements that a thread has under way at once.
constexpr int kEach = 4;

enum class Kind { kHeavyBall, kNesterov, kAdamW };

struct Job {
  // By value, or from `numbers`, `squares`, `loss` where these are not null.
  SgdStep sgd;
  AdamWStep adamw;
  const CudaNumbers* numbers;
  const double* loss;
  const double* squares;
  float clip_norm;
  // None: everything decays.
  const SliceSegment* segments;
  int64_t segment_count;
  int64_t n;
  const float* g;
  float* w;
  float* m;
  float* v;
  Bf16* copy;
};

// What every element needs; computed by one thread of each block.
template <Kind kKind>
using Factors = std::conditional_t<kKind == Kind::kAdamW, AdamFactors<float>, SgdFactors<float>>;

template <Kind kKind>
__device__ Factors<kKind> FactorsOf(const Job& job) {
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
      const auto updates = static_cast<double>(job.numbers->updates);
      step.correction1 = 1 - pow(static_cast<double>(step.beta1), updates);
      step.correction2 = 1 - pow(static_cast<double>(step.beta2), updates);
    }
  }
  if (job.squares != nullptr) {
    const double share = static_cast<double>(job.clip_norm) / (sqrt(*job.squares) + 1e-6);
    step.gradient_scale = share < 1.0 ? static_cast<float>(share) : 1.0F;
  }
  if constexpr (kKind == Kind::kAdamW) {
    return AdamFactorsOf<float>(step);
  } else {
    return SgdFactorsOf<float>(step);
  }
}

// The segment that has element i.
__device__ inline SliceSegment SegmentOf(const Job& job, int64_t i) {
  int64_t low = 0;
  int64_t high = job.segment_count;
  // Segments cover the slice in order; empty ones lie between others.
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

// A block takes tiles of kThreads * kEach elements. kWideAccess: a thread's elements are neighbours
// and move sixteen bytes at a time; else they lie kThreads apart, so that a warp's are neighbours.
template <Kind kKind, bool kWideAccess>
__global__ void __launch_bounds__(kThreads) Update(Job job) {
  __shared__ Factors<kKind> shared;
  // The same for all threads, so that none waits at the barrier below for one that returned.
  if (job.loss != nullptr && !IsFinite(*job.loss)) return;
  if (threadIdx.x == 0) shared = FactorsOf<kKind>(job);
  __syncthreads();
  const Factors<kKind> f = shared;
  constexpr bool kHasM = kKind == Kind::kAdamW;
  SliceSegment segment;
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
      if (i < segment.begin || i >= segment.end) segment = SegmentOf(job, i);
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

template <Kind kKind>
void LaunchKind(CudaDevice& device, const Job& job) {
  const LaunchShape shape = Strided(device, (job.n + kEach - 1) / kEach, kThreads);
  if (Aligned({job.g, job.w, job.m, job.v}) && Aligned({job.copy}, kEach * sizeof(Bf16))) {
    Launch(device, "optimizer", Update<kKind, true>, shape, job);
  } else {
    Launch(device, "optimizer", Update<kKind, false>, shape, job);
  }
}

__global__ void __launch_bounds__(kThreads)
    DrawTowards(int64_t n, float momentum, const float* __restrict__ batch, float* __restrict__ w) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) w[i] += momentum * (batch[i] - w[i]);
}

}  // namespace

void LaunchUpdate(CudaDevice& device, const CudaUpdate& update) {
  const SliceUpdate& step = update.update;
  const Job job{.sgd = step.sgd,
                .adamw = step.adamw,
                .numbers = update.numbers,
                .loss = step.loss,
                .squares = step.squares,
                .clip_norm = step.clip_norm,
                .segments = update.segments.data(),
                .segment_count = static_cast<int64_t>(update.segments.size()),
                .n = static_cast<int64_t>(update.w.size()),
                .g = update.g.data(),
                .w = update.w.data(),
                .m = update.m.data(),
                .v = update.v.data(),
                .copy = static_cast<Bf16*>(update.copy)};
  if (step.rule == SliceUpdate::Rule::kAdamW) {
    LaunchKind<Kind::kAdamW>(device, job);
  } else if (step.sgd.nesterov) {
    LaunchKind<Kind::kNesterov>(device, job);
  } else {
    LaunchKind<Kind::kHeavyBall>(device, job);
  }
}

void LaunchDrawTowards(CudaDevice& device, float momentum, std::span<const float> batch,
                       std::span<float> w) {
  const int64_t n = std::ssize(w);
  Launch(device, "running statistics", DrawTowards, Strided(device, n), n, momentum, batch.data(),
         w.data());
}

}  // namespace cadre
