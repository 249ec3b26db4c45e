// What a worker or a benchmark computes with (worker/compute.h), on an emulated device and a fake
// NCCL.
//
// Borrows the NCCL. See device/device.h for threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "worker/compute.h"

namespace cadre {

class EmulatedCompute final : public Compute {
 public:
  EmulatedCompute(FakeNccl& nccl, const EmulatedRankOptions& options)
      : nccl_(nccl), rank_(MakeEmulatedRank(options)) {}

  Backend& kernels() override { return *rank_.kernels; }
  std::string name() const override { return rank_.device->name(); }
  std::string libraries() const override { return "emulated"; }
  int64_t memory_bytes() const override { return rank_.device->memory_limit(); }
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data()
      override {
    return [this](Transport& control) {
      return MakeNcclTransport(nccl_.api(), *rank_.device, *rank_.kernels, control, {});
    };
  }
  EmulatedRank& rank() { return rank_; }

 private:
  FakeNccl& nccl_;
  EmulatedRank rank_;
};

}  // namespace cadre
