// One optimiser step on one element. This arithmetic is defined only here; the host's loops, the
// oracle (in double) and the CUDA kernels instantiate it.
//
// Ranks that update the same weights must compute the same bits, on CPUs and on GPUs. So the order
// of operations is part of the contract, and the files that instantiate it in fp32 are compiled
// without contraction of products and sums (-ffp-contract=off, --fmad=false): multiplication,
// addition, division and square roots then round as IEEE 754 defines, everywhere.
//
// Thread-safe (pure functions).
#pragma once

#include <cmath>

#include "kernels/backend.h"
#include "tensor/elements.h"

namespace cadre {

template <typename Real>
struct SgdFactors {
  Real gradient_scale, rate, momentum, decay;
};

template <typename Real>
CADRE_ELEMENT SgdFactors<Real> SgdFactorsOf(const SgdStep& step) {
  return {step.gradient_scale, step.rate, step.momentum, step.weight_decay};
}

// SGD with momentum as in PyTorch: v = momentum v + (g + decay w). The direction of the step is v
// for heavy-ball momentum, and g + decay w + momentum v for Nesterov's.
template <bool kNesterov, typename Real>
CADRE_ELEMENT void SgdElement(const SgdFactors<Real>& f, Real g, Real* w, Real* v) {
  const Real slope = f.gradient_scale * g + f.decay * *w;
  const Real velocity = f.momentum * *v + slope;
  *v = velocity;
  *w -= f.rate * (kNesterov ? slope + f.momentum * velocity : velocity);
}

// AdamWStep with its corrections folded into factors, so that no element divides by them.
template <typename Real>
struct AdamFactors {
  Real gradient_scale, beta1, beta2, rest1, rest2, keep, rate, root, epsilon;
};

template <typename Real>
CADRE_ELEMENT AdamFactors<Real> AdamFactorsOf(const AdamWStep& step) {
  const Real beta1 = step.beta1, beta2 = step.beta2, rate = step.rate, decay = step.weight_decay;
  return {step.gradient_scale,
          beta1,
          beta2,
          1 - beta1,
          1 - beta2,
          1 - rate * decay,
          static_cast<Real>(step.rate / step.correction1),
          static_cast<Real>(1 / sqrt(step.correction2)),
          step.epsilon};
}

CADRE_ELEMENT double SquareRoot(double x) { return sqrt(x); }
CADRE_ELEMENT float SquareRoot(float x) {
#ifdef __CUDA_ARCH__
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// Loshchilov and Hutter 2019, algorithm 2.
template <typename Real>
CADRE_ELEMENT void AdamElement(const AdamFactors<Real>& f, Real g, Real* w, Real* m, Real* v) {
  const Real gradient = f.gradient_scale * g;
  const Real first = f.beta1 * *m + f.rest1 * gradient;
  const Real second = f.beta2 * *v + f.rest2 * gradient * gradient;
  *m = first;
  *v = second;
  *w = f.keep * *w - f.rate * first / (SquareRoot(second) * f.root + f.epsilon);
}

}  // namespace cadre
