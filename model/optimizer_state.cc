// The names here are part of the checkpoint format ("conv1/weight@momentum") and must not change.
#include "model/optimizer_state.h"

namespace cadre {

namespace {

struct OptimizerFacts {
  absl::string_view kind;
  std::vector<std::string> states;
  bool uses_tensor_norms = false;
};

OptimizerFacts FactsOf(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kAdamw:
      return {"adamw", {"m", "v"}};
    case v1::Optimizer::kLars:
      return {"lars", {"momentum"}, /*uses_tensor_norms=*/true};
    case v1::Optimizer::kSgd:
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return {"sgd", {"momentum"}};
}

}  // namespace

absl::string_view OptimizerKind(const v1::Optimizer& optimizer) { return FactsOf(optimizer).kind; }

std::vector<std::string> OptimizerStateNames(const v1::Optimizer& optimizer) {
  return FactsOf(optimizer).states;
}

bool UsesTensorNorms(const v1::Optimizer& optimizer) {
  return FactsOf(optimizer).uses_tensor_norms;
}

}  // namespace cadre
