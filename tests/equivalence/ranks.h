// Trains the ranks of one group as threads of this process, and combines what they own.
//
// Not thread-safe. A Ranks object reuses the host's kernels for several groups, because creating
// primitives takes longer than using them once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/transport.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/replica.h"

namespace cadre {

// A batch over the whole group.
struct WholeBatch {
  int64_t samples = 0;
  std::vector<float> inputs;
  std::vector<int32_t> labels;
};

using KernelsFactory = std::function<std::unique_ptr<Backend>()>;

// The back end and the data transport of one rank. Owned by the rank's thread.
class RankBackEnd {
 public:
  virtual ~RankBackEnd() = default;
  virtual Backend& kernels() = 0;
  // Called on all ranks of a group. Null: tensors use `control`, as on the host.
  virtual absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) = 0;
};
// Called on the thread of the rank, once per group.
using BackEndFactory = std::function<std::unique_ptr<RankBackEnd>(int rank)>;

// The batch of a step.
using BatchMaker = std::function<WholeBatch(int64_t step)>;

// Inputs are normally distributed (tokens: uniformly), labels uniformly; a function of seed and
// step.
BatchMaker RandomBatches(const Graph& graph, int64_t samples, uint64_t seed);

struct Training {
  int steps = 5;
  float rate = 0.05F;
  BatchMaker batches;
  // Initial weights in parameter order; empty: those of version 0.
  std::vector<float> initial;
};

struct GroupResult {
  // The model in parameter order.
  std::vector<float> weights;
  // Mean loss of each step.
  std::vector<double> losses;
  // Evaluation of the last batch after the last step.
  LossPart evaluation;
  // Digest that the group computes; equal on all ranks.
  uint64_t digest = 0;
  // By rank: bytes sent in all steps by moves and reductions; memory as used, evaluation included,
  // and as planned; the bytes that were allocated on the device before the evaluation.
  std::vector<uint64_t> bytes_sent;
  std::vector<v1::MemoryUse> memory;
  std::vector<v1::MemoryUse> planned_memory;
  std::vector<int64_t> allocated_bytes;
};

// Trains a group.
using GroupTrainer = std::function<absl::StatusOr<GroupResult>(
    const v1::RunSpec& spec, const v1::Plan& plan, const Training& training)>;

// Trains as one rank of a group that `control` connects, and combines what all ranks own; bytes and
// memory are this rank's. A collective.
absl::StatusOr<GroupResult> TrainAsRank(const v1::RunSpec& spec, const v1::Plan& plan,
                                        const Training& training, Transport& control,
                                        const BackEndFactory& back_end);

class Ranks {
 public:
  // On the host.
  explicit Ranks(KernelsFactory factory) : factory_(std::move(factory)) {}
  explicit Ranks(BackEndFactory back_ends) : back_ends_(std::move(back_ends)) {}

  // Trains `spec` under `plan`, one thread per rank. Errors: those of any rank; Internal if an
  // element does not have exactly one owner, or results differ between ranks.
  absl::StatusOr<GroupResult> Train(const v1::RunSpec& spec, const v1::Plan& plan,
                                    const Training& training);

 private:
  BackEndFactory FactoryFor(size_t ranks);

  const KernelsFactory factory_;
  const BackEndFactory back_ends_;
  std::vector<std::unique_ptr<Backend>> kernels_;
};

// The difference of two models relative to the change by training: for each tensor, the largest
// difference divided by the largest change of `a` from `initial`, or by a hundredth of the largest
// change of the model if that is larger. Infinite for non-finite values.
double RelativeError(const ParameterIndex& index, const std::vector<float>& initial,
                     const std::vector<float>& a, const std::vector<float>& b);

// Version 0 of a model, in parameter order.
std::vector<float> InitialWeights(const ParameterIndex& index, uint64_t seed);

}  // namespace cadre
