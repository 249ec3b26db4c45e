#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend() {
    families_ = {.memory = std::make_unique<ReferenceMemory>(),
                 .dense = std::make_unique<ReferenceDense>(),
                 .window = std::make_unique<ReferenceWindow>(),
                 .norm = std::make_unique<ReferenceNorm>(),
                 .pointwise = std::make_unique<ReferencePointwise>(),
                 .optimizer = std::make_unique<ReferenceOptimizer>(),
                 .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return MakeReferenceBackend(); }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace cadre
