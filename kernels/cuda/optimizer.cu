// The optimisers' updates: a whole slice in one launch, each array read and written once.
//
// Built without fusing products into sums, and written in the order of kernels/cpu/optimizer.cc, so
// that the same step rounds alike here and there. (Powers for AdamW's corrections may still differ
// in the last bit of a double between the host and a device.)
#include <cmath>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

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

// What every element needs; worked out by one thread of each block.
struct Factors {
  float gradient_scale, rate, momentum, decay;
  float beta1, beta2, rest1, rest2, keep, keep_without_decay, root, epsilon;
};

template <Kind kKind>
__device__ Factors FactorsOf(const Job& job) {
  Factors f;
  float rate = kKind == Kind::kAdamW ? job.adamw.rate : job.sgd.rate;
  f.gradient_scale = kKind == Kind::kAdamW ? job.adamw.gradient_scale : job.sgd.gradient_scale;
  double correction1 = job.adamw.correction1;
  double correction2 = job.adamw.correction2;
  if (job.numbers != nullptr) {
    rate = job.numbers->rate;
    f.gradient_scale = 1;
    if (kKind == Kind::kAdamW) {
      const auto updates = static_cast<double>(job.numbers->updates);
      correction1 = 1 - pow(static_cast<double>(job.adamw.beta1), updates);
      correction2 = 1 - pow(static_cast<double>(job.adamw.beta2), updates);
    }
  }
  if (job.squares != nullptr) {
    const double share = static_cast<double>(job.clip_norm) / (sqrt(*job.squares) + 1e-6);
    f.gradient_scale = share < 1.0 ? static_cast<float>(share) : 1.0F;
  }
  f.momentum = job.sgd.momentum;
  f.decay = job.sgd.weight_decay;
  f.beta1 = job.adamw.beta1;
  f.beta2 = job.adamw.beta2;
  f.rest1 = 1 - f.beta1;
  f.rest2 = 1 - f.beta2;
  f.keep = 1 - rate * job.adamw.weight_decay;
  f.keep_without_decay = 1;
  f.rate = rate;
  f.root = 1;
  f.epsilon = job.adamw.epsilon;
  if (kKind == Kind::kAdamW) {
    f.rate = static_cast<float>(static_cast<double>(rate) / correction1);
    f.root = static_cast<float>(1 / sqrt(correction2));
  }
  return f;
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
__device__ inline void Step(const Factors& f, const SliceSegment& segment, float g, float* w,
                            float* m, float* v) {
  if (segment.statistic) {
    *w += segment.momentum * (g - *w);
    return;
  }
  if constexpr (kKind == Kind::kAdamW) {
    const float gradient = f.gradient_scale * g;
    const float first = f.beta1 * *m + f.rest1 * gradient;
    const float second = f.beta2 * *v + f.rest2 * gradient * gradient;
    const float keep = segment.decays ? f.keep : f.keep_without_decay;
    *m = first;
    *v = second;
    *w = keep * *w - f.rate * first / (sqrtf(second) * f.root + f.epsilon);
  } else {
    const float decay = segment.decays ? f.decay : 0.0F;
    const float slope = f.gradient_scale * g + decay * *w;
    const float velocity = f.momentum * *v + slope;
    *v = velocity;
    *w -= f.rate * (kKind == Kind::kNesterov ? slope + f.momentum * velocity : velocity);
  }
}

// A block takes tiles of kThreads * kEach elements. kWideAccess: a thread's elements are neighbours
// and move sixteen bytes at a time; else they lie kThreads apart, so that a warp's are neighbours.
template <Kind kKind, bool kWideAccess>
__global__ void __launch_bounds__(kThreads) Update(Job job) {
  __shared__ Factors shared;
  // The same for all: nobody waits at the barrier for who has left.
  if (job.loss != nullptr && !IsFinite(*job.loss)) return;
  if (threadIdx.x == 0) shared = FactorsOf<kKind>(job);
  __syncthreads();
  const Factors f = shared;
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

}  // namespace cadre
