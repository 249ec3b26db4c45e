// The activations: elementwise functions of one input without parameters.
//
// Thread-safe (values and pure functions).
#pragma once

#include <span>

#include "model/ops/layer.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/activation.h"

namespace cadre {

struct ActivationFunction {
  Activation activation;
  LayerKind kind;
  // Floating-point operations per element.
  int flops;
  // The operator of ONNX that computes it without attributes; null: none.
  const char* onnx;
  double (*value)(double x);
};

// In the order in which messages list them. Forms of one kind follow one another, the default
// first.
std::span<const ActivationFunction> Activations();

const ActivationFunction& Describe(Activation activation);

// The form that the settings of a layer select. Requires: the layer is an activation.
Activation ActivationOf(const v1::Layer& settings);
// Settings that select it.
v1::Layer LayerOf(Activation activation);

}  // namespace cadre
