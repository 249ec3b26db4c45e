// The steps of all optimizers, which every back end instantiates: the host's loops, the oracle (in
// double) and the CUDA kernels. A new optimizer needs no code in a back end, but three definitions
// here: its step, whose fields are the run's settings and what changes from update to update; its
// factors, which FactorsOf computes from the step once per update; and UpdateElement.
//
// Ranks that update the same weights must compute the same bits, on CPUs and on GPUs. So the order
// of operations is part of the contract, and the files that instantiate it in fp32 are compiled
// without contraction of products and sums (-ffp-contract=off, --fmad=false): multiplication,
// addition, division and square roots then round as IEEE 754 defines, everywhere.
//
// Thread-safe (pure functions).
#pragma once

#include <cmath>
#include <variant>

#include "tensor/elements.h"

namespace cadre {

CADRE_ELEMENT double SquareRoot(double x) { return sqrt(x); }
CADRE_ELEMENT float SquareRoot(float x) {
#ifdef __CUDA_ARCH__
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// Every step has these fields and members:
//   kStates         the number of its state tensors (model/optimizer_state.h has their names)
//   rate            of this update
//   weight_decay    0 where it does not apply
//   gradient_scale  gradients are multiplied by this before anything else
//   SetUpdates(n)   n updates have been made since the state was zero, including this one
//   kCountsUpdates  whether SetUpdates has an effect
//
// Factors have OmitDecay(), after which they are those of a step without weight decay.

// --- SGD with momentum as in PyTorch, and LARS, which scales its rate by tensor ------------------

struct SgdStep {
  static constexpr int kStates = 1;
  static constexpr bool kCountsUpdates = false;
  CADRE_ELEMENT void SetUpdates(double /*updates*/) {}

  float rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
  float gradient_scale = 1;
};

template <typename Real>
struct SgdFactors {
  CADRE_ELEMENT void OmitDecay() { decay = 0; }

  Real gradient_scale, rate, momentum, decay;
  bool nesterov;
};

template <typename Real>
CADRE_ELEMENT SgdFactors<Real> FactorsOf(const SgdStep& step) {
  return {step.gradient_scale, step.rate, step.momentum, step.weight_decay, step.nesterov};
}

// v = momentum v + (g + decay w). The direction of the step is v for heavy-ball momentum, and
// g + decay w + momentum v for Nesterov's.
template <typename Real>
CADRE_ELEMENT void UpdateElement(const SgdFactors<Real>& f, Real g, Real* w, Real* states) {
  Real& v = states[0];
  const Real slope = f.gradient_scale * g + f.decay * *w;
  v = f.momentum * v + slope;
  *w -= f.rate * (f.nesterov ? slope + f.momentum * v : v);
}

// --- AdamW: Loshchilov and Hutter 2019, algorithm 2 ----------------------------------------------

struct AdamWStep {
  static constexpr int kStates = 2;
  static constexpr bool kCountsUpdates = true;
  CADRE_ELEMENT void SetUpdates(double updates) {
    correction1 = 1 - pow(double{beta1}, updates);
    correction2 = 1 - pow(double{beta2}, updates);
  }

  float rate = 0;
  float beta1 = 0.9F, beta2 = 0.999F, epsilon = 1e-8F;
  float weight_decay = 0;
  // 1 - beta^t of update t = 1, 2, ...
  double correction1 = 1, correction2 = 1;
  float gradient_scale = 1;
};

// The corrections are folded into the factors, so that no element divides by them.
template <typename Real>
struct AdamWFactors {
  CADRE_ELEMENT void OmitDecay() { keep = 1; }

  Real gradient_scale, beta1, beta2, rest1, rest2, keep, rate, root, epsilon;
};

template <typename Real>
CADRE_ELEMENT AdamWFactors<Real> FactorsOf(const AdamWStep& step) {
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

template <typename Real>
CADRE_ELEMENT void UpdateElement(const AdamWFactors<Real>& f, Real g, Real* w, Real* states) {
  Real& m = states[0];
  Real& v = states[1];
  const Real gradient = f.gradient_scale * g;
  m = f.beta1 * m + f.rest1 * gradient;
  v = f.beta2 * v + f.rest2 * gradient * gradient;
  *w = f.keep * *w - f.rate * m / (SquareRoot(v) * f.root + f.epsilon);
}

// --- all of them ---------------------------------------------------------------------------------

struct OptimizerStep : std::variant<SgdStep, AdamWStep> {
  using variant::variant;
};

template <typename Step, typename Real>
using FactorsFor = decltype(FactorsOf<Real>(Step()));

}  // namespace cadre
