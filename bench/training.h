// What the programs that time training steps share: run specs, connected ranks, batches in memory.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/median.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/random_batch.h"
#include "worker/train/replica.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/transport.h"

namespace cadre {

// The time of a step does not depend on the rate; with a larger one, training on the same batch
// would soon diverge.
inline constexpr float kBenchRate = 1e-6F;

struct BenchModel {
  // Name of a model of the zoo, or path of a run file.
  std::string model;
  // Samples of a step, over all ranks.
  int batch = 1;
  int ranks = 1;
  int model_ranks = 1;
  int space_ranks = 1;
};
// One group, SGD with momentum 0.9. Errors: those of reading and validating the run file.
absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model);

// Number of trained parameters, without running statistics.
int64_t ParameterCount(const Replica& replica);

// A group with one process for each rank.
struct ConnectedRank {
  std::unique_ptr<TcpListener> listener;
  std::unique_ptr<Transport> transport;
};
// Connects `rank` with the processes at `peers` ("host:port" of every rank, separated by commas)
// within a minute. Errors: InvalidArgument if --peers has no entry for the rank; ConnectGroup's.
absl::StatusOr<ConnectedRank> ConnectRank(int rank, const std::string& peers, bool shared_memory);

}  // namespace cadre
