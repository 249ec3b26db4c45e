// Shared by the programs that time training steps: run specs, connected ranks, batches in memory.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/median.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/batches.h"
#include "worker/train/replica.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/transport.h"

namespace cadre {

// The learning rate. The time of a step does not depend on it, but training repeatedly on the same
// batch would soon diverge with a larger one.
inline constexpr float kBenchRate = 1e-6F;

struct BenchModel {
  // Name of a model of the zoo, or path of a run file.
  std::string model;
  // Samples of a step, summed over all ranks.
  int batch = 1;
  int ranks = 1;
  int model_ranks = 1;
  int space_ranks = 1;
};
// A run with one group and SGD with momentum 0.9. Errors: those of reading and validating the run
// file.
absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model);

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
