#include "bench/allreduce/cadre_network.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "plan/cost/collective_cost.h"
#include "worker/comm/communicator.h"
#include "worker/comm/link_probe.h"
#include "worker/train/measured_link.h"
#include "worker/transport/connect_group.h"

namespace cadre::bench {
namespace {

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

// Out of place is a copy and then in place.
class CollectiveContestant final : public Contestant {
 public:
  // Nothing for `fixed`: what costs least by `link`.
  CollectiveContestant(Communicator& all, std::optional<Algorithm> fixed, const LinkProfile& link)
      : all_(all), fixed_(fixed), link_(link) {}

  absl::Status Prepare(const Task& task) override {
    task_ = task;
    chosen_ = fixed_.has_value() ? *fixed_
                                 : BestAlgorithm(Collective::kAllReduce, all_.size(),
                                                 std::ssize(task.data), link_);
    return absl::OkStatus();
  }
  absl::Status Run() override {
    if (!task_.in_place()) std::memcpy(task_.data.data(), task_.input.data(), task_.input.size());
    return all_.AllReduce(chosen_, task_.dtype, task_.data);
  }
  std::string algorithm() const override { return std::string(AlgorithmName(chosen_)); }
  std::string explanation() const override { return fixed_.has_value() ? "" : Describe(link_); }

 private:
  Communicator& all_;
  const std::optional<Algorithm> fixed_;
  const LinkProfile& link_;
  Task task_;
  Algorithm chosen_ = Algorithm::kNone;
};

// Everything that needs a transport and nothing else.
class Ground {
 public:
  explicit Ground(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)), all_(*transport_, Everybody(transport_->size())) {}

  absl::StatusOr<std::unique_ptr<Contestant>> Make(absl::string_view algorithm) {
    const bool choose = algorithm == "auto";
    const std::optional<Algorithm> fixed = AlgorithmFromName(algorithm);
    if (!choose && !fixed.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown algorithm ", algorithm));
    }
    if (choose && !link_.known()) {
      CADRE_ASSIGN_OR_RETURN(const LinkMeasure measured, MeasureLink(all_));
      link_ = ProfileOf(measured, all_.size());
    }
    return std::make_unique<CollectiveContestant>(all_, fixed, link_);
  }

 private:
  static std::vector<int> Everybody(int ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    return all;
  }

  const std::unique_ptr<Transport> transport_;
  Communicator all_;
  LinkProfile link_;
};

class GroupNetwork final : public Network {
 public:
  explicit GroupNetwork(const GroupOptions& options) : options_(options) {}

  absl::StatusOr<std::string> Listen() override {
    CADRE_ASSIGN_OR_RETURN(listener_, TcpListener::Listen({}));
    return listener_->address();
  }

  absl::Status Connect(const std::vector<std::string>& peers) override {
    const GroupIdentity group{.schema_hash = 1, .run = "bench", .generation = 1};
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                           ConnectGroup(*listener_, group, options_.rank, peers,
                                        {.deadline = absl::Now() + options_.timeout,
                                         .timeout = options_.timeout,
                                         .shared_memory = !options_.tcp,
                                         .connections = options_.connections}));
    CADRE_RETURN_IF_ERROR(CheckKind(*transport));
    ground_.emplace(std::move(transport));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Contestant>> Make(absl::string_view algorithm) override {
    return ground_->Make(algorithm);
  }

 private:
  // A line that says "shm" must not have measured something else.
  absl::Status CheckKind(const Transport& transport) const {
    const LinkKind wanted = options_.tcp ? LinkKind::kTcp : LinkKind::kSharedMemory;
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank() && transport.link(peer) != wanted) {
        return absl::FailedPreconditionError(absl::StrCat("ranks ", transport.rank(), " and ", peer,
                                                          " are not connected by ",
                                                          options_.tcp ? "TCP" : "shared memory"));
      }
    }
    return absl::OkStatus();
  }

  const GroupOptions options_;
  std::unique_ptr<TcpListener> listener_;
  std::optional<Ground> ground_;
};

class ReadyNetwork final : public Network {
 public:
  explicit ReadyNetwork(std::unique_ptr<Transport> transport) : ground_(std::move(transport)) {}

  absl::StatusOr<std::string> Listen() override { return std::string(); }
  absl::Status Connect(const std::vector<std::string>&) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Contestant>> Make(absl::string_view algorithm) override {
    return ground_.Make(algorithm);
  }

 private:
  Ground ground_;
};

}  // namespace

std::unique_ptr<Network> MakeGroupNetwork(const GroupOptions& options) {
  return std::make_unique<GroupNetwork>(options);
}

std::unique_ptr<Network> MakeReadyNetwork(std::unique_ptr<Transport> transport) {
  return std::make_unique<ReadyNetwork>(std::move(transport));
}

}  // namespace cadre::bench
