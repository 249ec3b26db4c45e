#include "tests/equivalence/ranks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status.h"
#include "model/initial_value.h"
#include "plan/plan.h"
#include "tensor/layout.h"
#include "worker/comm/communicator.h"
#include "worker/transport/thread_transport.h"

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

// What a rank leaves behind when its memory is gone.
struct Left {
  struct Piece {
    int64_t begin = 0;
    std::vector<float> values;
  };
  int64_t parameters = 0;
  std::vector<Piece> owned;
  std::vector<double> losses;
  LossPart evaluation;
  uint64_t digest = 0;
  uint64_t bytes_sent = 0;
  // As it was when training was over.
  v1::MemoryUse memory;
  v1::MemoryUse planned_memory;
};

class Rank {
 public:
  Rank(const v1::RunSpec& spec, const v1::Plan& plan, const Training& training, Transport& control,
       const BackEndFactory& back_end)
      : spec_(spec), plan_(plan), training_(training), control_(control), factory_(back_end) {}

  void Run() {
    status_ = Train();
    // The others must not wait for a rank that is gone.
    if (!status_.ok()) control_.Abort(status_);
    replica_ = nullptr;
    data_ = nullptr;
    back_end_ = nullptr;
  }

  const absl::Status& status() const { return status_; }
  const Left& left() const { return left_; }

 private:
  absl::Status Train() {
    back_end_ = factory_(control_.rank());
    CADRE_ASSIGN_OR_RETURN(data_, back_end_->ConnectData(control_));
    CADRE_ASSIGN_OR_RETURN(replica_, Replica::Make(spec_, plan_, back_end_->kernels(), control_,
                                                   data_ != nullptr ? *data_ : control_));
    CADRE_RETURN_IF_ERROR(SetInitial());
    CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
    for (int step = 0; step < training_.steps; ++step) {
      // Both ways of ending a step: in the background of the next, and after a boundary.
      const bool boundary = step % 2 == 1;
      CADRE_RETURN_IF_ERROR(Step(training_.batches(step), step, boundary));
      if (boundary) CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
    }
    CADRE_RETURN_IF_ERROR(replica_->Settle());
    left_.bytes_sent = replica_->data_comms().bytes_sent();
    left_.memory = replica_->Memory();
    left_.planned_memory = replica_->PlannedMemory();
    const WholeBatch batch = training_.batches(training_.steps - 1);
    CADRE_ASSIGN_OR_RETURN(left_.evaluation, replica_->Evaluate(View(batch, 0, batch.samples, 0)));
    CADRE_ASSIGN_OR_RETURN(left_.digest, replica_->GroupDigest());
    Leave();
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

  void Leave() {
    left_.parameters = replica_->index().size();
    for (const Owned& owned : replica_->owned()) {
      left_.owned.push_back({owned.positions.begin, {owned.values.begin(), owned.values.end()}});
    }
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
    left_.losses.push_back(loss.loss / static_cast<double>(loss.samples));
    return absl::OkStatus();
  }

  // This rank's rows of samples [begin, end) of the batch.
  BatchView View(const WholeBatch& batch, int64_t begin, int64_t end, int64_t position) const {
    const Interval inputs = replica_->InputRows(end - begin);
    const Interval labels = replica_->LabelRows(end - begin);
    const auto per = static_cast<int64_t>(batch.inputs.size()) / batch.samples;
    const int64_t labels_per = replica_->graph().labels_per_sample();
    return {.samples = end - begin,
            .inputs = std::span(batch.inputs)
                          .subspan(static_cast<size_t>((begin + inputs.begin) * per),
                                   static_cast<size_t>(inputs.size() * per)),
            .labels = std::span(batch.labels)
                          .subspan(static_cast<size_t>((begin + labels.begin) * labels_per),
                                   static_cast<size_t>(labels.size() * labels_per)),
            .first_position = position + begin};
  }

  const v1::RunSpec& spec_;
  const v1::Plan& plan_;
  const Training& training_;
  Transport& control_;
  const BackEndFactory& factory_;
  std::unique_ptr<RankBackEnd> back_end_;
  std::unique_ptr<Transport> data_;
  std::unique_ptr<Replica> replica_;
  Left left_;
  absl::Status status_;
};

// Adds up what the ranks have; elements that none of them owns are zero.
GroupResult Sum(const std::vector<std::unique_ptr<Rank>>& ranks) {
  GroupResult result;
  result.losses = ranks[0]->left().losses;
  result.digest = ranks[0]->left().digest;
  result.weights.assign(static_cast<size_t>(ranks[0]->left().parameters), 0.0F);
  for (const auto& rank : ranks) {
    const Left& left = rank->left();
    for (const Left::Piece& piece : left.owned) {
      std::copy(piece.values.begin(), piece.values.end(), result.weights.begin() + piece.begin);
    }
    result.evaluation.loss += left.evaluation.loss;
    result.evaluation.correct += left.evaluation.correct;
    result.evaluation.samples += left.evaluation.samples;
    result.bytes_sent.push_back(left.bytes_sent);
    result.memory.push_back(left.memory);
    result.planned_memory.push_back(left.planned_memory);
  }
  return result;
}

absl::StatusOr<GroupResult> PutTogether(const std::vector<std::unique_ptr<Rank>>& ranks) {
  const Left& first = ranks[0]->left();
  std::vector<int> owners(static_cast<size_t>(first.parameters), 0);
  for (const auto& rank : ranks) {
    const Left& left = rank->left();
    for (const Left::Piece& piece : left.owned) {
      for (size_t i = 0; i < piece.values.size(); ++i) {
        ++owners[static_cast<size_t>(piece.begin) + i];
      }
    }
    if (left.digest != first.digest || left.losses != first.losses) {
      return absl::InternalError("ranks disagree on the digest or the loss");
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
  const int64_t vocabulary = tokens ? graph[0].parameters[0].shape[0] : 0;
  const auto classes = static_cast<uint64_t>(graph.classes());
  const int64_t labels = graph.labels_per_sample();
  return [=](int64_t step) {
    const auto stream = static_cast<uint64_t>(step);
    WholeBatch batch{.samples = samples};
    for (int64_t i = 0; i < samples * elements; ++i) {
      const auto at = static_cast<uint64_t>(i);
      batch.inputs.push_back(
          tokens ? static_cast<float>(RandomBits(seed, RandomStream::kTest, stream, at) %
                                      static_cast<uint64_t>(vocabulary))
                 : RandomNormal(seed, RandomStream::kTest, stream, at));
    }
    for (int64_t i = 0; i < samples * labels; ++i) {
      batch.labels.push_back(static_cast<int32_t>(
          RandomBits(seed, RandomStream::kTest, ~stream, static_cast<uint64_t>(i)) % classes));
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
  std::vector<int> members(static_cast<size_t>(control.size()));
  std::iota(members.begin(), members.end(), 0);
  Communicator all(control, members);
  // Every element has one owner, so the others' zeros change no bit.
  CADRE_RETURN_IF_ERROR(all.AllReduceSum(std::span<float>(result.weights)));
  double counts[] = {result.evaluation.loss, static_cast<double>(result.evaluation.correct),
                     static_cast<double>(result.evaluation.samples)};
  CADRE_RETURN_IF_ERROR(all.AllReduceSum(std::span<double>(counts)));
  result.evaluation = {counts[0], static_cast<int64_t>(counts[1]), static_cast<int64_t>(counts[2])};
  return result;
}

BackEndFactory Ranks::FactoryFor(size_t ranks) {
  if (back_ends_ != nullptr) return back_ends_;
  while (kernels_.size() < ranks) kernels_.push_back(factory_());
  return [this](int rank) { return std::make_unique<HostBackEnd>(*kernels_[rank]); };
}

absl::StatusOr<GroupResult> Ranks::Train(const v1::RunSpec& spec, const v1::Plan& plan,
                                         const Training& training) {
  size_t wanted = 1;
  for (const v1::MeshAxis& axis : plan.mesh()) wanted *= axis.size();
  const BackEndFactory back_ends = FactoryFor(wanted);
  std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(static_cast<int>(wanted), absl::Seconds(120));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t i = 0; i < wanted; ++i) {
    ranks.push_back(std::make_unique<Rank>(spec, plan, training, *transports[i], back_ends));
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&rank] { rank->Run(); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < ranks.size(); ++i) {
    // The first cause, not its echo in the others.
    if (ranks[i]->status().ok() || ranks[i]->status() != transports[i]->status()) continue;
    return ranks[i]->status();
  }
  for (const auto& rank : ranks) CADRE_RETURN_IF_ERROR(rank->status());
  return PutTogether(ranks);
}

double RelativeError(const ParameterIndex& index, const std::vector<float>& initial,
                     const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> moved, apart;
  for (const Parameter& parameter : index.parameters()) {
    double max_moved = 0;
    double max_apart = 0;
    for (auto i = static_cast<size_t>(parameter.offset); i < static_cast<size_t>(parameter.end());
         ++i) {
      const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
      // Not-a-number compares with nothing; it must not pass for equal.
      if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
      max_apart = std::max(max_apart, difference);
      max_moved = std::max(max_moved, std::abs(static_cast<double>(a[i]) - initial[i]));
    }
    moved.push_back(max_moved);
    apart.push_back(max_apart);
  }
  const double least = 0.01 * *std::max_element(moved.begin(), moved.end());
  double error = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    if (apart[i] > 0) error = std::max(error, apart[i] / std::max(moved[i], least));
  }
  return error;
}

std::vector<float> InitialWeights(const ParameterIndex& index, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(index.size()));
  FillInitialValues(index, seed, 0, weights);
  return weights;
}

}  // namespace cadre
