#include "tests/equivalence/ranks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status.h"
#include "comm/transport/thread_transport.h"
#include "member/agreement.h"
#include "model/initial_value.h"
#include "plan/plan.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

class HostBackEnd final : public RankBackEnd {
 public:
  explicit HostBackEnd(Backend& kernels) : kernels_(kernels) {}
  Backend& kernels() override { return kernels_; }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& /*control*/) override {
    return nullptr;
  }

 private:
  Backend& kernels_;
};

// The results of a rank, without references to its memory.
struct RankResult {
  int64_t parameters = 0;
  // Owned values, by their first position.
  std::map<int64_t, std::vector<float>> owned;
  std::vector<double> losses;
  LossPart evaluation;
  uint64_t digest = 0;
  uint64_t bytes_sent = 0;
  // After the evaluation.
  v1::MemoryUse memory;
  v1::MemoryUse planned_memory;
  // Before the evaluation.
  int64_t allocated_bytes = 0;
};

class Rank {
 public:
  Rank(const v1::RunSpec& spec, const v1::Plan& plan, const Training& training, Transport& control,
       const BackEndFactory& back_end)
      : spec_(spec), plan_(plan), training_(training), control_(control), factory_(back_end) {}

  void Run() {
    status_ = Train();
    // Without the abort the other ranks would wait for this one.
    if (!status_.ok()) control_.Abort(status_);
    replica_ = nullptr;
    data_ = nullptr;
    back_end_ = nullptr;
  }

  const absl::Status& status() const { return status_; }
  const RankResult& result() const { return result_; }

 private:
  absl::Status Train() {
    back_end_ = factory_(control_.rank());
    CADRE_ASSIGN_OR_RETURN(data_, back_end_->ConnectData(control_));
    const Device& device = back_end_->kernels().device();
    const int64_t allocated_before = device.bytes_in_use();
    CADRE_ASSIGN_OR_RETURN(replica_, Replica::Make(spec_, plan_, back_end_->kernels(), control_,
                                                   data_ != nullptr ? *data_ : control_));
    CADRE_RETURN_IF_ERROR(SetInitial());
    CADRE_RETURN_IF_ERROR(replica_->flow().Gather());
    for (int step = 0; step < training_.steps; ++step) {
      // Steps end in both ways in turn: with a gather, and at a boundary (without a gather).
      const bool boundary = step % 2 == 1;
      CADRE_RETURN_IF_ERROR(Step(training_.batches(step), step, boundary));
      if (boundary) CADRE_RETURN_IF_ERROR(replica_->flow().Gather());
    }
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    result_.bytes_sent = replica_->data_comms().bytes_sent();
    result_.allocated_bytes = device.bytes_in_use() - allocated_before;
    CADRE_RETURN_IF_ERROR(Evaluate(training_.batches(training_.steps - 1)));
    result_.memory = replica_->Memory();
    result_.planned_memory = replica_->PlannedMemory();
    // These ranks have no aggregators.
    result_.planned_memory.clear_exchange();
    CADRE_ASSIGN_OR_RETURN(result_.digest, replica_->GroupDigest());
    result_.parameters = replica_->index().size();
    for (const Owned& owned : replica_->owned()) {
      result_.owned[owned.positions.begin] = {owned.values.begin(), owned.values.end()};
    }
    return absl::OkStatus();
  }

  absl::Status SetInitial() {
    if (training_.initial.empty()) return absl::OkStatus();
    for (const Owned& owned : replica_->owned()) {
      std::copy_n(training_.initial.begin() + owned.positions.begin, owned.values.size(),
                  owned.values.begin());
    }
    return replica_->StoreOwned();
  }

  absl::Status Step(const WholeBatch& batch, int64_t step, bool boundary) {
    const int64_t parts = std::max<int64_t>(1, spec_.micro_batches());
    std::vector<BatchView> views;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t begin = PartBegin(batch.samples, i, parts);
      const int64_t end = PartBegin(batch.samples, i + 1, parts);
      views.push_back(View(batch, begin, end, step * batch.samples));
    }
    CADRE_ASSIGN_OR_RETURN(const LossPart loss, replica_->Step(views, training_.rate, !boundary));
    result_.losses.push_back(loss.loss / loss.samples);
    return absl::OkStatus();
  }

  absl::Status Evaluate(const WholeBatch& batch) {
    const int64_t size = replica_->EvaluationSamples();
    for (int64_t begin = 0; begin < batch.samples; begin += size) {
      const int64_t end = std::min(begin + size, batch.samples);
      CADRE_ASSIGN_OR_RETURN(const LossPart part,
                             replica_->network().Evaluate(View(batch, begin, end, 0)));
      result_.evaluation += part;
    }
    return absl::OkStatus();
  }

  // This rank's rows of samples [begin, end) of the batch.
  BatchView View(const WholeBatch& batch, int64_t begin, int64_t end, int64_t position) const {
    const Interval inputs = replica_->network().batches().InputRows(end - begin);
    const Interval labels = replica_->network().batches().LabelRows(end - begin);
    const int64_t per = std::ssize(batch.inputs) / batch.samples;
    const int64_t labels_per = replica_->graph().labels_per_sample();
    return {.samples = end - begin,
            .inputs =
                std::span(batch.inputs).subspan((begin + inputs.begin) * per, inputs.size() * per),
            .labels = std::span(batch.labels)
                          .subspan((begin + labels.begin) * labels_per, labels.size() * labels_per),
            .first_position = position + begin,
            .first_in_step = begin};
  }

  const v1::RunSpec& spec_;
  const v1::Plan& plan_;
  const Training& training_;
  Transport& control_;
  const BackEndFactory& factory_;
  std::unique_ptr<RankBackEnd> back_end_;
  std::unique_ptr<Transport> data_;
  std::unique_ptr<Replica> replica_;
  RankResult result_;
  absl::Status status_;
};

// Combines the results of ranks; elements that none of them owns are zero.
GroupResult Sum(const std::vector<std::unique_ptr<Rank>>& ranks) {
  GroupResult result;
  result.losses = ranks[0]->result().losses;
  result.digest = ranks[0]->result().digest;
  result.weights.assign(ranks[0]->result().parameters, 0.0F);
  for (const auto& rank : ranks) {
    const RankResult& of_rank = rank->result();
    for (const auto& [begin, values] : of_rank.owned) {
      std::copy(values.begin(), values.end(), result.weights.begin() + begin);
    }
    result.evaluation += of_rank.evaluation;
    result.bytes_sent.push_back(of_rank.bytes_sent);
    result.memory.push_back(of_rank.memory);
    result.planned_memory.push_back(of_rank.planned_memory);
    result.allocated_bytes.push_back(of_rank.allocated_bytes);
  }
  return result;
}

absl::StatusOr<GroupResult> CombineRanks(const std::vector<std::unique_ptr<Rank>>& ranks) {
  const RankResult& first = ranks[0]->result();
  std::vector<int> owners(first.parameters, 0);
  for (const auto& rank : ranks) {
    const RankResult& of_rank = rank->result();
    for (const auto& [begin, values] : of_rank.owned) {
      for (size_t i = 0; i < values.size(); ++i) ++owners[begin + i];
    }
    if (of_rank.digest != first.digest || of_rank.losses != first.losses) {
      return absl::InternalError("digest or loss differ between ranks");
    }
  }
  if (!std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; })) {
    return absl::InternalError("an element has no owner, or several");
  }
  return Sum(ranks);
}

}  // namespace

BatchMaker RandomBatches(const Graph& graph, int64_t samples, uint64_t seed) {
  const int64_t elements = graph.input().elements();
  const bool tokens = graph.takes_tokens();
  // Tokens are below the vocabulary of the layer that takes them.
  const uint64_t vocabulary = tokens ? graph[0].parameters[0].shape[0] : 0;
  const uint64_t classes = graph.classes();
  const int64_t labels = graph.labels_per_sample();
  return [=](int64_t step) {
    const uint64_t stream = step;
    WholeBatch batch{.samples = samples};
    for (int64_t i = 0; i < samples * elements; ++i) {
      batch.inputs.push_back(tokens ? RandomBits(seed, RandomStream::kTest, stream, i) % vocabulary
                                    : RandomNormal(seed, RandomStream::kTest, stream, i));
    }
    for (int64_t i = 0; i < samples * labels; ++i) {
      batch.labels.push_back(RandomBits(seed, RandomStream::kTest, ~stream, i) % classes);
    }
    return batch;
  };
}

absl::StatusOr<GroupResult> TrainAsRank(const v1::RunSpec& spec, const v1::Plan& plan,
                                        const Training& training, Transport& control,
                                        const BackEndFactory& back_end) {
  std::vector<std::unique_ptr<Rank>> own;
  own.push_back(std::make_unique<Rank>(spec, plan, training, control, back_end));
  own[0]->Run();
  CADRE_RETURN_IF_ERROR(own[0]->status());
  GroupResult result = Sum(own);
  Communicator all = WholeGroup(control);
  // Every element has one owner, so adding the zeros of other ranks changes no bit.
  CADRE_RETURN_IF_ERROR(all.AllReduceSum(std::span<float>(result.weights)));
  CADRE_ASSIGN_OR_RETURN(result.evaluation, SumOverGroup(result.evaluation, all));
  return result;
}

BackEndFactory Ranks::FactoryFor(size_t ranks) {
  if (back_ends_ != nullptr) return back_ends_;
  while (kernels_.size() < ranks) kernels_.push_back(factory_());
  return [this](int rank) { return std::make_unique<HostBackEnd>(*kernels_[rank]); };
}

absl::StatusOr<GroupResult> Ranks::Train(const v1::RunSpec& spec, const v1::Plan& plan,
                                         const Training& training) {
  size_t size = 1;
  for (const v1::MeshAxis& axis : plan.mesh()) size *= axis.size();
  const BackEndFactory back_ends = FactoryFor(size);
  std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(size, absl::Seconds(120));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t i = 0; i < size; ++i) {
    ranks.push_back(std::make_unique<Rank>(spec, plan, training, *transports[i], back_ends));
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&rank] { rank->Run(); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < ranks.size(); ++i) {
    // Returns the cause of the failure, not an error that it caused on other ranks.
    if (ranks[i]->status().ok() || ranks[i]->status() != transports[i]->status()) continue;
    return ranks[i]->status();
  }
  for (const auto& rank : ranks) CADRE_RETURN_IF_ERROR(rank->status());
  return CombineRanks(ranks);
}

double RelativeError(const ParameterIndex& index, const std::vector<float>& initial,
                     const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> changes;
  std::vector<double> differences;
  for (const Parameter& parameter : index.parameters()) {
    double max_change = 0;
    double max_difference = 0;
    for (int64_t i = parameter.offset; i < parameter.end(); ++i) {
      const double difference = std::abs(1.0 * a[i] - b[i]);
      // A comparison with NaN is false, so NaN must be handled explicitly.
      if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
      max_difference = std::max(max_difference, difference);
      max_change = std::max(max_change, std::abs(1.0 * a[i] - initial[i]));
    }
    changes.push_back(max_change);
    differences.push_back(max_difference);
  }
  const double min_change = 0.01 * *std::max_element(changes.begin(), changes.end());
  double error = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (differences[i] > 0) {
      error = std::max(error, differences[i] / std::max(changes[i], min_change));
    }
  }
  return error;
}

std::vector<float> InitialWeights(const ParameterIndex& index, uint64_t seed) {
  std::vector<float> weights(index.size());
  FillInitialValues(index, seed, 0, weights);
  return weights;
}

}  // namespace cadre
