// Shared by the programs that time training steps: run specs, connected ranks, batches in memory.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/median.h"
#include "comm/transport/tcp_listener.h"
#include "comm/transport/transport.h"
#include "plan/memory.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/batches.h"
#include "worker/train/replica.h"

namespace cadre {

struct BenchModel {
  // Name of a model of the zoo, or path of a run file.
  std::string model;
  // Samples of a step, summed over all ranks.
  int batch = 1;
  // Must divide the batch.
  int micro_batches = 1;
  int ranks = 1;
  int model_ranks = 1;
  int space_ranks = 1;
};
// A run with one group and SGD with momentum 0.9. Errors: those of reading and validating the run
// file.
absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model);

// Repeats the training step of a replica on one random batch.
class StepLoop {
 public:
  // `samples`: of a step, over all ranks; its micro-batches are equal. Borrows the replica.
  StepLoop(Replica& replica, int64_t samples)
      : replica_(replica),
        micro_batches_(MicroBatches(replica.spec())),
        samples_(samples / micro_batches_),
        batch_(replica, samples_) {}

  // Runs `steps` steps. Errors: Replica::Step's.
  absl::Status Run(int steps);
  // Seconds of a step: the mean of each of `rounds` rounds of `steps` steps. Errors: Run's.
  absl::StatusOr<std::vector<double>> Time(int rounds, int steps);

  // Number of the next step. No two steps have the same, because recorded steps read it from
  // memory.
  int64_t step() const { return step_; }
  // Mean over the samples, in the first and in the latest step.
  double first_loss() const { return first_loss_; }
  double last_loss() const { return last_loss_; }

 private:
  Replica& replica_;
  const int micro_batches_;
  // Samples of a micro-batch.
  const int64_t samples_;
  const RandomBatch batch_;
  int64_t step_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
};

// Number of trained parameters, without running statistics.
int64_t ParameterCount(const Replica& replica);

// A rank of a group in which each rank is a process, connected with the others.
struct ConnectedRank {
  std::unique_ptr<TcpListener> listener;
  std::unique_ptr<Transport> transport;
};
// Connects `rank` with the processes at `peers` ("host:port" of every rank, separated by commas)
// within a minute. Errors: InvalidArgument if --peers has no entry for the rank; ConnectGroup's.
absl::StatusOr<ConnectedRank> ConnectRank(int rank, const std::string& peers, bool shared_memory);

}  // namespace cadre
