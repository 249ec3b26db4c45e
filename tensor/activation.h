// The activations that kernels compute; proto/cadre/v1/run.proto defines them.
#pragma once

namespace cadre {

enum class Activation {
  kRelu,
  kGelu,
  kSigmoid,
  kTanh,
  kApproximateGelu,
  kRelu6,
  kHardSwish,
  kHardSigmoid,
  kSilu,
};

// Whether the gradient is computed from the activation's input; otherwise from its output.
constexpr bool GradientReadsInput(Activation kind) {
  return kind == Activation::kGelu || kind == Activation::kApproximateGelu ||
         kind == Activation::kHardSwish || kind == Activation::kSilu;
}

}  // namespace cadre
