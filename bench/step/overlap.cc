// The techniques of Cadre, enabled one at a time; all configurations are interleaved in the same
// run.
//
// A configuration is layouts:collectives:overlap. Layouts are `data` (every weight on every rank),
// `model` (fully connected layers split over all ranks) or DxM (split over M ranks); collectives
// and overlap take the values of the flags of `cadre run`. `exposed_ms` is the time of a step for
// which the computing thread waits for communication other than moves.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/harness.h"
#include "bench/step/step.h"
#include "bench/training.h"
#include "plan/plan_collectives.h"
#include "plan/search/planner.h"
#include "worker/train/group_plan.h"

DECLARE_int32(rounds);
DECLARE_int32(warmup);
DECLARE_string(configs);

namespace cadre {
namespace {

struct Config {
  std::string name;
  int model_ranks = 1;
  v1::Cluster::CollectivePolicy collectives = v1::Cluster::AUTO;
  bool overlap = true;
};

absl::StatusOr<Config> ParseConfig(absl::string_view text, int ranks) {
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("--configs: '", text, "': ", what, "; write layouts:collectives:overlap"));
  };
  const std::vector<std::string> words = absl::StrSplit(text, ':');
  if (words.size() != 3) return bad("it does not have three parts");
  Config config{.name = std::string(text)};
  if (words[0] == "model") {
    config.model_ranks = ranks;
  } else if (words[0] != "data") {
    const std::vector<std::string> grid = absl::StrSplit(words[0], 'x');
    if (grid.size() != 2 || !absl::SimpleAtoi(grid[1], &config.model_ranks)) {
      return bad("the layouts must be data, model or DxM");
    }
  }
  const auto policy = PolicyFromName(words[1]);
  if (!policy) return bad("unknown collectives");
  config.collectives = *policy;
  if (words[2] != "on" && words[2] != "off") return bad("overlap must be on or off");
  config.overlap = words[2] == "on";
  return config;
}

// A replica with one configuration, and its measurements.
class ConfiguredRun {
 public:
  static absl::StatusOr<std::unique_ptr<ConfiguredRun>> Make(const Config& config,
                                                             Transport& transport,
                                                             const v1::LinkProfile& link) {
    CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = FLAGS_model,
                                                        .batch = FLAGS_batch,
                                                        .ranks = transport.size(),
                                                        .model_ranks = config.model_ranks}));
    spec.mutable_cluster()->set_collectives(config.collectives);
    spec.mutable_cluster()->set_overlap(config.overlap ? v1::Cluster::ON : v1::Cluster::OFF);
    v1::Assignment assignment;
    CADRE_ASSIGN_OR_RETURN(*assignment.mutable_plan(), MakePlan(spec, transport.size()));
    *assignment.mutable_plan()->mutable_link() = link;
    auto run = std::make_unique<ConfiguredRun>();
    run->config_ = config;
    run->kernels_ = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(const v1::Plan plan,
                           SettlePlan(spec, assignment, transport, transport, *run->kernels_,
                                      /*cache=*/nullptr));
    CADRE_ASSIGN_OR_RETURN(run->replica_, Replica::Make(spec, plan, *run->kernels_, transport));
    run->loop_ = std::make_unique<StepLoop>(*run->replica_, FLAGS_batch);
    return run;
  }

  // Runs and times `steps` steps. One more step precedes them, because a step waits for operations
  // that the previous step has left in progress.
  absl::Status Round(int steps) {
    // The barrier makes all ranks begin together.
    CADRE_RETURN_IF_ERROR(replica_->comms().All().Barrier());
    CADRE_RETURN_IF_ERROR(loop_->Run(1));
    const uint64_t sent = replica_->comms().bytes_sent();
    const double waited = replica_->flow().seconds_waited();
    const double moving = replica_->network().seconds_moving();
    // The step time is computed from whole rounds, because steps overlap.
    CADRE_ASSIGN_OR_RETURN(const std::vector<double> seconds, loop_->Time(1, steps));
    seconds_.push_back(seconds[0]);
    waited_.push_back((replica_->flow().seconds_waited() - waited) / steps);
    moving_.push_back((replica_->network().seconds_moving() - moving) / steps);
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    // The difference includes the messages that the last step left in progress, but not those of
    // the step before the first.
    sent_ = (replica_->comms().bytes_sent() - sent) / steps;
    return absl::OkStatus();
  }

  const Plan& plan() const { return replica_->plan(); }
  double step_seconds() const { return Median(seconds_); }
  // Forgets the rounds up to now.
  void Forget() {
    for (std::vector<double>* values : {&seconds_, &waited_, &moving_}) values->clear();
  }

  nlohmann::ordered_json Line(double first_seconds) const {
    std::map<std::string, int> buckets;
    for (const Bucket& bucket : plan().buckets) {
      ++buckets[std::string(AlgorithmName(bucket.algorithm))];
    }
    nlohmann::ordered_json line = BenchLine("overlap");
    line.update({{"model", FLAGS_model},
                 {"batch", FLAGS_batch},
                 {"ranks", plan().mesh.ranks()},
                 {"threads", FLAGS_threads},
                 {"config", config_.name},
                 {"step_ms", Rounded(step_seconds() * 1e3, 3)},
                 {"samples_per_s", Rounded(FLAGS_batch / step_seconds(), 3)},
                 {"ratio_to_first", Rounded(step_seconds() / first_seconds, 4)},
                 {"exposed_ms", Rounded(Median(waited_) * 1e3, 3)},
                 {"moves_ms", Rounded(Median(moving_) * 1e3, 3)},
                 {"sent_bytes_per_step", sent_},
                 {"buckets", buckets},
                 {"link", LinkText(plan().link, plan().link_kind)},
                 {"loss", Rounded(loop_->last_loss(), 5)}});
    return line;
  }

 private:
  Config config_;
  std::unique_ptr<Backend> kernels_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<StepLoop> loop_;
  // Seconds of a step in each round.
  std::vector<double> seconds_, waited_, moving_;
  // Bytes per step of the last round.
  uint64_t sent_ = 0;
};

}  // namespace

absl::Status MeasureOverlap(const StepGroup& group) {
  std::vector<std::unique_ptr<ConfiguredRun>> runs;
  // The first configuration measures the links; all choose their algorithms by that measurement.
  v1::LinkProfile link;
  for (const absl::string_view name : absl::StrSplit(FLAGS_configs, ',')) {
    CADRE_ASSIGN_OR_RETURN(const Config config, ParseConfig(name, group.transport.size()));
    CADRE_ASSIGN_OR_RETURN(auto run, ConfiguredRun::Make(config, group.transport, link));
    link = LinkProfileToProto(run->plan().link);
    link.set_kind(run->plan().link_kind);
    CADRE_RETURN_IF_ERROR(run->Round(FLAGS_warmup));
    run->Forget();
    runs.push_back(std::move(run));
  }
  for (int round = 0; round < FLAGS_rounds; ++round) {
    for (const auto& run : runs) CADRE_RETURN_IF_ERROR(run->Round(FLAGS_steps));
  }
  for (const auto& run : runs) {
    if (group.lead()) PrintLine(run->Line(runs[0]->step_seconds()));
  }
  return absl::OkStatus();
}

}  // namespace cadre
