// The collectives of Cadre as a fabric (fabric.h). All algorithms of one transport share a
// Communicator, as in a training group. "auto" does the same as a group when it is formed: it
// measures the links with each algorithm at a few sizes (comm/link_probe.h), fits the cost
// model, and then selects the cheapest algorithm for each size. The links are measured once per
// transport, before the first size.
#include "bench/allreduce/fabric.h"

#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "comm/transport/connect_group.h"
#include "nlohmann/json.hpp"
#include "plan/cost/collective_cost.h"

namespace cadre::bench {
namespace {

// The parameters of the cost model and the measurements from which they were fitted, as JSON.
std::string Describe(const LinkProfile& link) {
  nlohmann::json samples = nlohmann::json::array();
  for (const LinkProfile::Sample& sample : link.samples) {
    samples.push_back({std::string(AlgorithmName(sample.algorithm)), sample.bytes, sample.seconds});
  }
  return nlohmann::json{{"alpha", link.alpha},
                        {"beta", link.beta},
                        {"gamma", link.gamma},
                        {"samples", std::move(samples)}}
      .dump();
}

// All-reduce out of place is a copy followed by an all-reduce in place.
class CadreAllReduce final : public AllReduce {
 public:
  // Without a `fixed` algorithm, each task uses the one that has the lowest cost according to
  // `link`.
  CadreAllReduce(Communicator& communicator, std::optional<Algorithm> fixed,
                 const LinkProfile& link)
      : communicator_(communicator), fixed_(fixed), link_(link) {}

  absl::Status Prepare(const Task& task) override {
    task_ = task;
    chosen_ = fixed_.has_value() ? *fixed_
                                 : BestAlgorithm(Collective::kAllReduce, communicator_.size(),
                                                 std::ssize(task.data), link_);
    return absl::OkStatus();
  }
  absl::Status Run() override {
    task_.CopyInput();
    return communicator_.AllReduce(chosen_, task_.dtype, task_.data);
  }
  std::string name() const override { return std::string(AlgorithmName(chosen_)); }
  std::string explanation() const override { return fixed_.has_value() ? "" : Describe(link_); }

 private:
  Communicator& communicator_;
  const std::optional<Algorithm> fixed_;
  const LinkProfile& link_;
  Task task_;
  Algorithm chosen_ = Algorithm::kNone;
};

// The ranks of one transport, and the measurement of their links.
class CadreRanks {
 public:
  explicit CadreRanks(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)),
        communicator_(*transport_, AllRanks(transport_->size())) {}

  absl::StatusOr<std::unique_ptr<AllReduce>> Make(absl::string_view algorithm) {
    const bool choose = algorithm == "auto";
    const std::optional<Algorithm> fixed = AlgorithmFromName(algorithm);
    if (!choose && !fixed.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown algorithm ", algorithm));
    }
    if (choose && !link_.known()) {
      CADRE_ASSIGN_OR_RETURN(link_, MeasureLink(communicator_));
    }
    return std::make_unique<CadreAllReduce>(communicator_, fixed, link_);
  }

 private:
  static std::vector<int> AllRanks(int ranks) {
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  const std::unique_ptr<Transport> transport_;
  Communicator communicator_;
  LinkProfile link_;
};

}  // namespace

absl::StatusOr<Fabric> ConnectCadre(BoardRank& self, bool tcp, int connections) {
  CADRE_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({}));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> peers, self.AllGather(listener->address()));
  const GroupIdentity group{.protocol = 1, .run = "bench", .generation = 1};
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                         ConnectGroup(*listener, group, self.rank(), peers,
                                      {.deadline = absl::Now() + self.timeout(),
                                       .timeout = self.timeout(),
                                       .shared_memory = !tcp,
                                       .connections = connections}));
  // A result labelled "shm" must not be measured over TCP.
  const LinkKind expected = tcp ? LinkKind::kTcp : LinkKind::kSharedMemory;
  for (int peer = 0; peer < transport->size(); ++peer) {
    if (peer == self.rank() || transport->link(peer) == expected) continue;
    return absl::FailedPreconditionError(absl::StrCat("ranks ", self.rank(), " and ", peer,
                                                      " are not connected by ",
                                                      tcp ? "TCP" : "shared memory"));
  }
  return [ranks = std::make_shared<CadreRanks>(std::move(transport))](absl::string_view algorithm) {
    return ranks->Make(algorithm);
  };
}

}  // namespace cadre::bench
