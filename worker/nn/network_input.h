// Loads this rank's part of batches for the network: selects labels and candidates of a sampled
// softmax, checks tokens, and copies all to where the network reads them.
//
// Borrows everything but its memory. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/class_sampler.h"
#include "model/graph.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tensor/interval.h"
#include "tensor/values.h"
#include "worker/nn/batch_upload.h"

namespace cadre {

// This rank's part of a batch, in host memory.
struct BatchView {
  // Samples of the whole batch, over all ranks.
  int64_t samples = 0;
  // The rows InputRows(samples): [rows, height, width, channels] or [rows, tokens].
  std::span<const float> inputs;
  // The labels of the rows LabelRows(samples), labels_per_sample each.
  std::span<const int32_t> labels;
  // Position of sample 0 in the endless sequence of the run's samples.
  int64_t first_position = 0;
  // Number of samples of the step before sample 0: those of earlier micro-batches.
  int64_t first_in_step = 0;
};

// Labels of a batch of the tape on this rank: the rows of the loss's input.
int64_t LabelsIn(const Tape& tape);

class NetworkInput {
 public:
  // `seed`: the run's.
  NetworkInput(const Graph& graph, const Plan& plan, int rank, uint64_t seed, Backend& kernels);

  // Rows of a batch of `samples` whose inputs, or labels, this rank requires.
  Interval InputRows(int64_t samples) const;
  Interval LabelRows(int64_t samples) const;

  // As BatchUpload::Reserve, for batches of the tape.
  bool Reserve(const Tape& tape);
  // As Network::Load. Requires: there is room.
  absl::Status Load(const Tape& tape, const BatchView& batch);

  // The loaded batch, as of BatchUpload.
  ConstValues inputs() const { return upload_.inputs(); }
  std::span<const int32_t> labels() const { return upload_.labels(); }
  std::span<const float> candidates() const { return upload_.candidates(); }

  int64_t bytes() const { return upload_.bytes(); }

 private:
  // Errors: InvalidArgument, naming the layer.
  absl::Status CheckTokens(std::span<const float> tokens) const;
  // The labels of a box of scores on this rank. If tokens are split: those of its tokens.
  std::span<const int32_t> LabelsOf(const Box& scores, const BatchView& batch);
  // The numbers of the candidates of a sampled softmax on this rank, then what is added to their
  // scores. Requires: the rank has candidates.
  std::span<const float> CandidatesHere(const Tape& tape, const BatchView& batch);

  const Graph& graph_;
  const Plan& plan_;
  const int rank_;
  // Only if training samples classes.
  const std::optional<ClassSampler> sampler_;
  Backend& kernels_;
  BatchUpload upload_;
  std::vector<int32_t> labels_here_;
  std::vector<float> candidates_here_;
  // Zeros: in the scores of a sampled softmax the label comes first.
  std::vector<int32_t> first_labels_;
};

}  // namespace cadre
