// Runs the ranks of one group as threads of this process and puts what they own together again.
//
// Not thread-safe; a Ranks object keeps the host's kernels from group to group, since making
// primitives takes longer than using them once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/replica.h"
#include "worker/transport/transport.h"

namespace cadre {

// A batch over the whole group.
struct WholeBatch {
  int64_t samples = 0;
  std::vector<float> inputs;
  std::vector<int32_t> labels;
};

using KernelsFactory = std::function<std::unique_ptr<Backend>()>;

// What one rank computes with, and what its group's data travels over. Belongs to the rank's
// thread.
class RankBackEnd {
 public:
  virtual ~RankBackEnd() = default;
  virtual Backend& kernels() = 0;
  // All ranks of a group call it. Null: over `control`, as on the host.
  virtual absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) = 0;
};
// Called on the thread of the rank, for one group.
using BackEndFactory = std::function<std::unique_ptr<RankBackEnd>(int rank)>;

// The batch of a step.
using BatchMaker = std::function<WholeBatch(int64_t step)>;

// Inputs are normal (tokens: uniform), labels uniform, all a function of seed and step.
BatchMaker RandomBatches(const Graph& graph, int64_t samples, uint64_t seed);

struct Training {
  int steps = 5;
  float rate = 0.05F;
  BatchMaker batches;
  // Where not empty, the weights to begin with, in flat order.
  std::vector<float> initial;
};

struct GroupResult {
  // The model in flat order.
  std::vector<float> weights;
  // Mean loss of each step.
  std::vector<double> losses;
  // Of an evaluation of the last batch after the last step.
  LossPart evaluation;
  // Digest as the group computes it; the same on every rank.
  uint64_t digest = 0;
  // By rank: payload sent in all steps, moves and reductions together, and memory.
  std::vector<uint64_t> bytes_sent;
  std::vector<v1::MemoryUse> memory;
  std::vector<v1::MemoryUse> planned_memory;
};

// Trains a group.
using GroupTrainer = std::function<absl::StatusOr<GroupResult>(
    const v1::RunSpec& spec, const v1::Plan& plan, const Training& training)>;

// As one rank of a group whose others are elsewhere, joined by `control`: trains, and puts together
// what all have; bytes and memory are this rank's. A collective.
absl::StatusOr<GroupResult> TrainAsRank(const v1::RunSpec& spec, const v1::Plan& plan,
                                        const Training& training, Transport& control,
                                        const BackEndFactory& back_end);

class Ranks {
 public:
  // On the host.
  explicit Ranks(KernelsFactory factory) : factory_(std::move(factory)) {}
  explicit Ranks(BackEndFactory back_ends) : back_ends_(std::move(back_ends)) {}

  // Trains `spec` under `plan`, one thread per rank. Errors: of any rank; Internal where an element
  // does not have exactly one owner, or ranks disagree.
  absl::StatusOr<GroupResult> Train(const v1::RunSpec& spec, const v1::Plan& plan,
                                    const Training& training);

 private:
  BackEndFactory FactoryFor(size_t ranks);

  const KernelsFactory factory_;
  const BackEndFactory back_ends_;
  std::vector<std::unique_ptr<Backend>> kernels_;
};

// How far two models are apart, in units of how far training has moved the tensors: by tensor, the
// largest difference over the largest movement of `a` from `initial`, but tensors that have moved
// less than a hundredth of what the model has are measured by that hundredth. Infinite where
// something is not a number.
double RelativeError(const ParameterIndex& index, const std::vector<float>& initial,
                     const std::vector<float>& a, const std::vector<float>& b);

// Version 0 of a model, in flat order.
std::vector<float> InitialWeights(const ParameterIndex& index, uint64_t seed);

}  // namespace cadre
