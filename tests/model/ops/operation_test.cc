#include "model/ops/operation.h"

#include <gtest/gtest.h>

#include "model/ops/activations.h"

namespace cadre {
namespace {

TEST(OperationTest, EveryOperationOfRunFilesIsDescribed) {
  const auto* ops = v1::Layer::descriptor()->FindOneofByName("op");
  for (int i = 0; i < ops->field_count(); ++i) {
    const auto kind = static_cast<LayerKind>(ops->field(i)->number());
    if (kind == v1::Layer::kUse) continue;
    const Operation& operation = Describe(kind);
    EXPECT_EQ(operation.kind, kind);
    EXPECT_NE(operation.infer, nullptr) << LayerKindName(kind);
    EXPECT_NE(operation.indices, nullptr) << LayerKindName(kind);
  }
}

TEST(OperationTest, LayersSelectTheirActivation) {
  for (const ActivationFunction& function : Activations()) {
    const v1::Layer layer = LayerOf(function.activation);
    EXPECT_EQ(layer.op_case(), function.kind);
    EXPECT_EQ(ActivationOf(layer), function.activation);
    const Operation& operation = Describe(function.kind);
    EXPECT_EQ(operation.saved.x, GradientReadsInput(function.activation));
    EXPECT_NE(operation.saved.x, operation.saved.y);
  }
}

}  // namespace
}  // namespace cadre
