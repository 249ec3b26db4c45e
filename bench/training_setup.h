// What programs that time training steps share: specs of the zoo, batches that lie in memory,
// ranks that are connected.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/median.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/random_batch.h"
#include "worker/train/replica.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/transport.h"

namespace cadre {

// The work of a step does not depend on it, and one batch over and over would soon diverge.
inline constexpr float kBenchRate = 1e-6F;

struct BenchModel {
  // Folder of the zoo, and a model in it; or a *.textproto run spec.
  std::string zoo;
  std::string model;
  // Samples of a step, over all ranks.
  int batch = 1;
  int ranks = 1;
  int model_ranks = 1;
  int space_ranks = 1;
};
// One group, SGD with momentum 0.9. Errors: those of the spec's reader and validation.
absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model);

// Connects this rank with the processes at `peers` ("host:port", by rank), within a minute. Ranks
// of one host share memory where that is wanted. Errors: ConnectGroup's.
absl::StatusOr<std::unique_ptr<Transport>> ConnectRanks(TcpListener& listener, int rank,
                                                        const std::vector<std::string>& peers,
                                                        bool shared_memory);

}  // namespace cadre
