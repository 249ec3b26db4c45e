// All benchmarks of training steps use the run files of the zoo, with the optimizer, the batch and
// the mesh replaced: so results are comparable between programs, and a model is defined in one
// place only.
#include "bench/training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "comm/transport/connect_group.h"
#include "model/validate.h"
#include "model/zoo_file.h"

namespace cadre {
namespace {

// The learning rate. The time of a step does not depend on it, but training repeatedly on the same
// batch would soon diverge with a larger one.
constexpr float kRate = 1e-6F;

}  // namespace

absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model) {
  CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpecOrZoo(model.model));
  v1::RunSpec& spec = file.spec;
  if (model.batch % model.micro_batches != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", model.batch,
                                                   " cannot be divided into ", model.micro_batches,
                                                   " equal micro-batches"));
  }
  spec.set_batch_per_group(static_cast<uint32_t>(model.batch));
  spec.set_micro_batches(static_cast<uint32_t>(model.micro_batches));
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  // Large batches leave fewer steps than the model's schedule warms up for; the rate is kRate.
  spec.mutable_schedule()->clear_warmup_steps();
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_ranks_per_group(static_cast<uint32_t>(model.ranks));
  cluster.set_model_ranks(static_cast<uint32_t>(model.model_ranks));
  cluster.set_space_ranks(static_cast<uint32_t>(model.space_ranks));
  CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(spec)));
  return std::move(file.spec);
}

absl::Status StepLoop::Run(int steps) {
  for (int i = 0; i < steps; ++i, ++step_) {
    const std::vector<BatchView> views(micro_batches_, batch_.View(samples_, step_));
    CADRE_ASSIGN_OR_RETURN(const LossPart loss, replica_.Step(views, kRate, /*gather=*/true));
    last_loss_ = loss.loss / static_cast<double>(std::max<int64_t>(1, loss.samples));
    if (step_ == 0) first_loss_ = last_loss_;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> StepLoop::Time(int rounds, int steps) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const absl::Time start = absl::Now();
    CADRE_RETURN_IF_ERROR(Run(steps));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start) / steps);
  }
  return seconds;
}

int64_t ParameterCount(const Replica& replica) {
  int64_t count = 0;
  for (const Parameter& parameter : replica.index().parameters()) {
    if (!IsStatistic(parameter.role)) count += parameter.shape.elements();
  }
  return count;
}

absl::StatusOr<ConnectedRank> ConnectRank(int rank, const std::string& peers, bool shared_memory) {
  const std::vector<std::string> addresses = absl::StrSplit(peers, ',');
  if (rank < 0 || rank >= std::ssize(addresses)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank is ", rank, ", but --peers lists ", addresses.size(), " ranks"));
  }
  ConnectedRank connected;
  CADRE_ASSIGN_OR_RETURN(connected.listener, TcpListener::Listen({.address = addresses[rank]}));
  const GroupIdentity group{.protocol = 1, .run = "bench", .generation = 1};
  CADRE_ASSIGN_OR_RETURN(connected.transport,
                         ConnectGroup(*connected.listener, group, rank, addresses,
                                      {.deadline = absl::Now() + absl::Minutes(1),
                                       .timeout = absl::Minutes(5),
                                       .shared_memory = shared_memory}));
  return connected;
}

}  // namespace cadre
