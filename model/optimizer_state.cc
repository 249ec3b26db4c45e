// The names here are part of the checkpoint format ("conv1/weight@momentum") and must not change.
#include "model/optimizer_state.h"

namespace cadre {

absl::string_view OptimizerKind(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kAdamw:
      return "adamw";
    case v1::Optimizer::kLars:
      return "lars";
    case v1::Optimizer::kSgd:
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return "sgd";
}

std::vector<std::string> OptimizerStateNames(const v1::Optimizer& optimizer) {
  if (optimizer.has_adamw()) return {"m", "v"};
  return {"momentum"};
}

}  // namespace cadre
