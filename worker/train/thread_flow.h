// The GradientFlow (gradient_flow.h) of ranks that compute on the host: executes the bucket
// operations of a step in the background thread of a CollectiveQueue, while the rank's own thread
// computes. In a group of one rank, they run immediately on the rank's own thread.
//
// Owns its queue. Threads: as GradientFlow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collective_queue.h"
#include "worker/train/gradient_flow.h"

namespace cadre {

class ThreadFlow final : public GradientFlow {
 public:
  // Requires: the communicators of `context` use `transport`.
  ThreadFlow(const Context& context, Transport& transport);

  void BeginStep(float rate, bool gather, int64_t labels) override;
  absl::StatusOr<LossPart> AwaitLoss() override;
  void Fail(const absl::Status& reason) override;
  absl::Status Gather() override;
  absl::Status AwaitOperations() override;

 private:
  absl::Status Start(const BucketOps& ops) override;
  absl::Status WaitForWeights(int bucket) override;
  absl::Status WaitForStep() override { return AwaitOperations(); }
  void ResetLoss() override { mine_ = LossPart(); }
  void AddLoss(std::span<const double> sums, int64_t counted) override;
  absl::StatusOr<int64_t> SumLoss() override;
  absl::StatusOr<int64_t> SumNorms() override;
  void Update(const BucketOp& op) override;

  // Executes `op` and starts the operations that follow it.
  absl::Status Perform(const BucketOp& op);
  // Runs `wait`, adds its time to seconds_waited() and traces it as `what`.
  absl::Status Waited(const char* what, const std::function<absl::Status()>& wait);

  // Written by the rank's own thread before it posts kLoss, and by the queue's thread in kLoss.
  LossPart mine_;
  LossPart group_;
  // By bucket: whether the weights may have changed since the kernels were last informed.
  std::vector<bool> changed_;
  // Null in a group of one rank. Declared last, so that its thread ends first.
  std::unique_ptr<CollectiveQueue> queue_;
};

}  // namespace cadre
