#include "model/ops/activations.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Gelu(double x) { return x * (std::erfc(-x / std::sqrt(2.0)) / 2); }

double ApproximateGelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

double HardSwish(double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }

constexpr ActivationFunction kFunctions[] = {
    {Activation::kRelu, LayerKind::kRelu, 1, "Relu", [](double x) { return std::max(x, 0.0); }},
    {Activation::kRelu6, LayerKind::kRelu6, 3, nullptr,
     [](double x) { return std::clamp(x, 0.0, 6.0); }},
    {Activation::kGelu, LayerKind::kGelu, 8, "Gelu", Gelu},
    {Activation::kApproximateGelu, LayerKind::kGelu, 8, nullptr, ApproximateGelu},
    {Activation::kSilu, LayerKind::kSilu, 5, "Swish", [](double x) { return x * Sigmoid(x); }},
    {Activation::kHardSwish, LayerKind::kHardSwish, 3, "HardSwish", HardSwish},
    {Activation::kHardSigmoid, LayerKind::kHardSigmoid, 3, nullptr,
     [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }},
    {Activation::kSigmoid, LayerKind::kSigmoid, 4, "Sigmoid", Sigmoid},
    {Activation::kTanh, LayerKind::kTanh, 4, "Tanh", [](double x) { return std::tanh(x); }},
};

const ActivationFunction& FirstOf(LayerKind kind) {
  return *std::find_if(std::begin(kFunctions), std::end(kFunctions),
                       [kind](const auto& function) { return function.kind == kind; });
}

bool InferActivation(LayerInference& infer) {
  return infer.OutputLikeInput(FirstOf(infer.layer().kind).flops);
}

}  // namespace

std::span<const ActivationFunction> Activations() { return kFunctions; }

const ActivationFunction& Describe(Activation activation) {
  return *std::find_if(
      std::begin(kFunctions), std::end(kFunctions),
      [activation](const auto& function) { return function.activation == activation; });
}

Activation ActivationOf(const v1::Layer& settings) {
  if (settings.gelu().approximate()) return Activation::kApproximateGelu;
  return FirstOf(settings.op_case()).activation;
}

v1::Layer LayerOf(Activation activation) {
  v1::Layer layer;
  const int field = Describe(activation).kind;
  layer.GetReflection()->MutableMessage(&layer, v1::Layer::descriptor()->FindFieldByNumber(field));
  if (activation == Activation::kApproximateGelu) layer.mutable_gelu()->set_approximate(true);
  return layer;
}

std::span<const Operation> ActivationOperations() {
  // Never destroyed: Describe refers to them.
  static const auto& operations = *new std::vector<Operation>([] {
    std::vector<Operation> made;
    for (const ActivationFunction& function : kFunctions) {
      const bool reads_input = GradientReadsInput(function.activation);
      made.push_back({.kind = function.kind,
                      .infer = InferActivation,
                      .indices = AllDimensions,
                      .saved = {.x = reads_input, .y = !reads_input},
                      .in_place = true,
                      .split_rule = SplitRule::kKeepSplit});
    }
    return made;
  }());
  return operations;
}

}  // namespace cadre
