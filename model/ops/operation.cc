#include "model/ops/operation.h"

#include <span>

#include "glog/logging.h"
#include "model/ops/families.h"

namespace cadre {
namespace {

std::vector<const Operation*> ByKind() {
  std::vector<const Operation*> operations;
  for (const auto family : {ActivationOperations(), Dense(), Elementwise(), Losses(), Norms(),
                            Sequences(), Shapes(), Tokens(), Windows()}) {
    for (const Operation& operation : family) {
      if (operation.kind >= operations.size()) operations.resize(operation.kind + 1);
      operations[operation.kind] = &operation;
    }
  }
  return operations;
}

}  // namespace

const Operation& Describe(LayerKind kind) {
  // Never destroyed: safe to use during the destruction of static objects.
  static const auto& operations = *new std::vector<const Operation*>(ByKind());
  CHECK(kind < operations.size() && operations[kind] != nullptr) << "no operation " << kind;
  return *operations[kind];
}

}  // namespace cadre
