// The device that a worker computes on, from one generation to the next. A device that has failed
// is replaced between two generations. If it was lost, or the replacement fails, the worker ends,
// and its process exits with a code that tells whether to restart it.
#include "worker/worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

// Those besides FP32.
std::vector<v1::RunSpec::Precision> PrecisionsOf(const Backend& kernels) {
  std::vector<v1::RunSpec::Precision> precisions;
  if (kernels.CheckPrecision(Precision::kTf32).ok()) precisions.push_back(v1::RunSpec::TF32);
  if (kernels.CheckPrecision(Precision::kBf16).ok()) precisions.push_back(v1::RunSpec::BF16);
  return precisions;
}

class NativeTrainer final : public GenerationTrainer {
 public:
  NativeTrainer(const WorkerOptions& options, std::unique_ptr<Compute> compute)
      : options_(options),
        compute_(std::move(compute)),
        device_name_(compute_->name()),
        device_kind_(compute_->kernels().device().is_host() ? v1::Cluster::CPU : v1::Cluster::CUDA),
        memory_bytes_(compute_->memory_bytes()),
        precisions_(PrecisionsOf(compute_->kernels())) {}

  void Describe(v1::Hello& hello) const override {
    hello.set_device(device_name_);
    hello.set_device_kind(device_kind_);
    hello.set_memory_bytes(memory_bytes_);
    hello.mutable_precisions()->Add(precisions_.begin(), precisions_.end());
  }

  Result Train(GroupSession& session, const MemberLoopOptions& loop, Counters& counters) override {
    TrainerOptions options{loop};
    options.connect_data = compute_->connect_data();
    options.links = &links_;
    options.loader_threads = options_.loader_threads;
    options.data_files = options_.data_files;
    options.checkpoint_files = options_.checkpoint_files;
    Result result;
    result.outcome = TrainAsMember(session.assignment(), compute_->kernels(), session,
                                   session.cancellation(), counters, options);
    // Read after the trainer was destroyed: until then the group's transports may fail the device.
    const absl::Status device = compute_->kernels().device().status();
    if (!device.ok()) result.end = RenewDevice(device);
    // The error of the device is the cause; the outcome may contain only a consequence of it.
    if (!result.end.ok()) {
      result.outcome = {.status = device, .cause = v1::FAILURE_CAUSE_DEVICE};
    }
    return result;
  }

 private:
  // Replaces a failed device; the failure of a group also makes its ranks' devices fail
  // (Device::Fail). CUDA errors are sticky: after one, every call on the context fails, so the
  // whole device object is replaced. If the hardware itself was lost, a new context would fail,
  // too.
  absl::Status RenewDevice(const absl::Status& failed) {
    LOG(INFO) << "replacing the device: " << failed;
    const bool lost = compute_->kernels().device().lost();
    // Frees the memory of the old device before the new one is created.
    compute_.reset();
    absl::Status end = failed;
    if (!lost) {
      absl::StatusOr<std::unique_ptr<Compute>> made = options_.make_compute();
      if (made.ok()) {
        compute_ = *std::move(made);
        return absl::OkStatus();
      }
      end = Annotate(made.status(), absl::StrCat(failed.message(), "; it cannot be replaced"));
    }
    LOG(ERROR) << "no device is left to train on: " << end;
    return end;
  }

  const WorkerOptions options_;
  LinkCache links_;
  // Null after a device was lost.
  std::unique_ptr<Compute> compute_;
  const std::string device_name_;
  const v1::Cluster::Device device_kind_;
  const uint64_t memory_bytes_;
  const std::vector<v1::RunSpec::Precision> precisions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GroupMember>> StartWorker(WorkerOptions options) {
  options.make_trainer = [options]() -> absl::StatusOr<std::unique_ptr<GenerationTrainer>> {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Compute> compute, options.make_compute());
    LOG(INFO) << "computing on " << compute->name();
    return std::make_unique<NativeTrainer>(options, std::move(compute));
  };
  return GroupMember::Start(options);
}

}  // namespace cadre
