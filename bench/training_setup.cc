#include "bench/training_setup.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "model/run_file.h"
#include "model/validate.h"
#include "worker/transport/connect_group.h"

namespace cadre {

absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model) {
  const bool is_file = model.model.find(".textproto") != std::string::npos;
  CADRE_ASSIGN_OR_RETURN(
      RunSpecFile file,
      ReadRunSpec(is_file ? model.model : absl::StrCat(model.zoo, "/", model.model, ".textproto")));
  v1::RunSpec& spec = file.spec;
  spec.set_batch_per_group(static_cast<uint32_t>(model.batch));
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_ranks_per_group(static_cast<uint32_t>(model.ranks));
  cluster.set_model_ranks(static_cast<uint32_t>(model.model_ranks));
  cluster.set_space_ranks(static_cast<uint32_t>(model.space_ranks));
  CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(spec)));
  return std::move(file.spec);
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectRanks(TcpListener& listener, int rank,
                                                        const std::vector<std::string>& peers,
                                                        bool shared_memory) {
  const GroupIdentity group{.schema_hash = 1, .run = "bench", .generation = 1};
  return ConnectGroup(listener, group, rank, peers,
                      {.deadline = absl::Now() + absl::Minutes(1),
                       .timeout = absl::Minutes(5),
                       .shared_memory = shared_memory});
}

}  // namespace cadre
