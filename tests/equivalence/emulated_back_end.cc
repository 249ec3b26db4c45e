#include "tests/equivalence/emulated_back_end.h"

#include <utility>

#include "tests/emulator/emulated_rank.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace cadre {
namespace {

class EmulatedBackEnd final : public RankBackEnd {
 public:
  EmulatedBackEnd(EmulatedCuda::Mode mode, const NcclApi& nccl)
      : rank_(MakeEmulatedRank(mode)), nccl_(nccl) {}

  Backend& kernels() override { return *rank_.kernels; }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) override {
    return MakeNcclTransport(nccl_, *rank_.device, *rank_.kernels, control, {});
  }

 private:
  const EmulatedRank rank_;
  const NcclApi& nccl_;
};

}  // namespace

EmulatedGroup::EmulatedGroup(EmulatedCuda::Mode mode)
    : ranks_(BackEndFactory([this, mode](int /*rank*/) {
        return std::make_unique<EmulatedBackEnd>(mode, nccl_.api());
      })) {}

GroupTrainer EmulatedGroup::trainer() {
  return [this](const v1::RunSpec& spec, const v1::Plan& plan, const Training& training) {
    v1::RunSpec on_devices = spec;
    on_devices.mutable_cluster()->set_device(v1::Cluster::CUDA);
    return ranks_.Train(on_devices, plan, training);
  };
}

}  // namespace cadre
