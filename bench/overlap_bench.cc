// Times training steps of one group over real links, with the techniques of Cadre enabled one at a
// time. Each rank is a process; all configurations are interleaved in the same run, and rank 0
// prints a JSON line for each.
//
//   bench_overlap --model alexnet --batch 32 --rank 0 --peers 10.0.0.1:7100,10.0.0.2:7100
//
// A configuration is layouts:collectives:overlap. Layouts are `data` (every weight on every rank),
// `model` (fully connected layers split over all ranks) or DxM (split over M ranks); collectives
// and overlap take the values of the flags of `cadre run`. For a configuration with overlap, the
// line contains the step time that the model of overlap (plan/cost/overlap.h) predicts from the
// times of the same configuration without overlap, measured in the same run.
//
// The trace of a step names its intervals after what they do: "forward L", "backward L", "move to
// L", "reduce-scatter bucket B part P" and so on. Without overlap no two intervals run at the same
// time, so the duration of an interval is the cost of its operation. The model takes the median of
// each operation over the steps, and divides the time of a bucket evenly among its chunks.
#include <gflags/gflags.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/atomic_file.h"
#include "base/status.h"
#include "base/trace.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "comm/transport/tcp_listener.h"
#include "kernels/cpu/openmp_settings.h"
#include "plan/cost/overlap.h"
#include "plan/plan_collectives.h"
#include "plan/search/planner.h"
#include "worker/train/group_plan.h"
#include "worker/train/replica.h"
#include "worker/train/step_tracer.h"

DEFINE_string(model, "alexnet", "A model of the zoo, or a run file.");
DEFINE_int32(batch, 32, "Samples of a step, over all ranks.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_int32(steps, 3, "Steps of each configuration in each round.");
DEFINE_int32(rounds, 3, "Rounds; each runs all configurations.");
DEFINE_int32(warmup, 1, "Steps of each configuration before the first round.");
DEFINE_int32(rank, 0, "Rank of this process.");
DEFINE_string(peers, "127.0.0.1:0", "host:port of every rank, separated by commas.");
DEFINE_bool(shared_memory, true, "Connect ranks on one host by shared memory; false: TCP.");
DEFINE_string(configs, "data:ring:off,data:ring:on,data:auto:on,model:auto:on",
              "Configurations, separated by commas.");
DEFINE_bool(
    predict, true,
    "Also run configurations with overlap without it, and predict their step times from that.");
DEFINE_string(trace, "",
              "Rank 0: file for a Chrome trace of the last round of the last configuration.");

namespace cadre {
namespace {

// Seconds by step, summed over all intervals with the same name.
using BySteps = std::map<int64_t, double>;

double MedianOf(const BySteps& seconds, size_t steps) {
  std::vector<double> values;
  for (const auto& [step, value] : seconds) values.push_back(value);
  // A step without such an interval counts as zero.
  values.resize(std::max(values.size(), steps), 0.0);
  return Median(std::move(values));
}

// "reduce-scatter bucket 3 part 1" -> 3.
int BucketOf(absl::string_view name) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, ' ');
  int bucket = -1;
  if (words.size() < 3 || words[1] != "bucket" || !absl::SimpleAtoi(words[2], &bucket)) return -1;
  return bucket;
}

// The model of one step of a plan, from traces of steps without overlap: medians over the steps of
// the forward and backward of each layer, including its moves, and of the reduce-scatter, update
// and all-gather of each bucket of parameters. Requires: traces of at least one whole step, with
// the names that worker/train/step_tracer.h assigns.
StepModel StepModelFrom(const Graph& graph, const ParameterIndex& index, const Plan& plan,
                        const std::vector<TraceInterval>& intervals) {
  std::vector<BySteps> forward(graph.size());
  std::vector<BySteps> backward(forward.size());
  std::vector<BySteps> reduce(plan.buckets.size());
  std::vector<BySteps> update(plan.buckets.size());
  std::vector<BySteps> gather(plan.buckets.size());
  BySteps steps;
  for (const TraceInterval& interval : intervals) {
    const double seconds = static_cast<double>(interval.duration_us) * 1e-6;
    steps[interval.step] += seconds;
    const absl::string_view name = interval.name;
    if (const int bucket = BucketOf(name); bucket >= 0) {
      std::vector<BySteps>& phase = absl::StartsWith(name, "reduce") ? reduce
                                    : absl::StartsWith(name, "all")  ? gather
                                                                     : update;
      phase[bucket][interval.step] += seconds;
    }
    // The other operations of a step end with the name of their layer.
    if (interval.category != "compute" && interval.category != "move") continue;
    const bool back =
        absl::StartsWith(name, "backward ") || absl::StartsWith(name, "move gradient of ");
    for (int l = 0; l < graph.size(); ++l) {
      if (!absl::EndsWith(name, absl::StrCat(" ", graph[l].name))) continue;
      (back ? backward : forward)[l][interval.step] += seconds;
    }
  }
  StepModel model;
  for (size_t l = 0; l < forward.size(); ++l) {
    model.layers.push_back({.forward = MedianOf(forward[l], steps.size()),
                            .backward = MedianOf(backward[l], steps.size())});
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const int chunks = ChunksOf(plan, index, plan.buckets[b]);
    const StepModel::Bucket chunk{.layer = index[plan.buckets[b].parameters.front()].layer,
                                  .reduce_scatter = MedianOf(reduce[b], steps.size()) / chunks,
                                  .update = MedianOf(update[b], steps.size()) / chunks,
                                  .all_gather = MedianOf(gather[b], steps.size()) / chunks};
    model.buckets.insert(model.buckets.end(), chunks, chunk);
  }
  return model;
}

// The step time if each step gathered its weights before it ended, by the recurrence for all-reduce
// in plan/cost/overlap.h.
StepTime RecurrenceOf(const StepModel& model) {
  std::vector<LayerTimes> layers;
  for (const LayerSeconds& layer : model.layers) {
    layers.push_back({.forward = layer.forward, .backward = layer.backward});
  }
  for (const StepModel::Bucket& bucket : model.buckets) {
    layers[bucket.layer].communication += bucket.reduce_scatter + bucket.update + bucket.all_gather;
  }
  return OverlapRecurrence(layers);
}

// Seconds of waiting per step: the median over rounds of `steps` steps of each round's mean.
double WaitedSeconds(const std::vector<TraceInterval>& intervals, int steps) {
  // Seconds that the rank's own thread waited for the background.
  BySteps waits;
  for (const TraceInterval& interval : intervals) {
    if (interval.track != 0) continue;
    if (interval.category == "step") waits[interval.step] += 0;
    if (interval.category == "wait") waits[interval.step] += 1e-6 * interval.duration_us;
  }
  std::vector<double> rounds;
  int64_t number = 0;
  for (const auto& [step, seconds] : waits) {
    if (number++ % steps == 0) rounds.push_back(0);
    rounds.back() += seconds / steps;
  }
  if (number % steps != 0) rounds.pop_back();
  return Median(std::move(rounds));
}

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
    run->tape_ = std::make_unique<TapeTrace>(run->trace_, run->replica_->graph());
    return run;
  }

  // Runs `steps` steps, which are timed and traced if `counts`. One more step precedes them,
  // because a step waits for operations that the previous step has left in progress.
  absl::Status Round(int steps, bool counts) {
    // The barrier makes all ranks begin together.
    CADRE_RETURN_IF_ERROR(replica_->comms().All().Barrier());
    CADRE_RETURN_IF_ERROR(Step());
    if (counts) {
      trace_.Start();
      replica_->set_trace(&trace_);
      replica_->set_observer(tape_.get());
    }
    const uint64_t sent = replica_->comms().bytes_sent();
    const double moving = replica_->seconds_moving();
    const absl::Time start = absl::Now();
    for (int i = 0; i < steps; ++i) CADRE_RETURN_IF_ERROR(Step());
    const absl::Time end = absl::Now();
    if (counts) {
      replica_->set_observer(nullptr);
      last_round_ = trace_.Stop();
      intervals_.insert(intervals_.end(), last_round_.begin(), last_round_.end());
      round_seconds_.push_back(absl::ToDoubleSeconds(end - start) / steps);
      moving_.push_back((replica_->seconds_moving() - moving) / steps);
    }
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    if (counts) {
      // The difference includes the messages that the last step left in progress, but not those of
      // the step before the first.
      sent_ += replica_->comms().bytes_sent() - sent;
      counted_ += steps;
    }
    return absl::OkStatus();
  }

  const Config& config() const { return config_; }
  const Plan& plan() const { return replica_->plan(); }
  const std::vector<TraceInterval>& last_round() const { return last_round_; }
  // The step time is computed from whole rounds, because steps overlap.
  double step_seconds() const { return Median(round_seconds_); }
  double moving_seconds() const { return Median(moving_); }
  StepModel Model() const {
    return StepModelFrom(replica_->graph(), replica_->index(), replica_->plan(), intervals_);
  }

  // `parts` are the times of the same configuration without overlap.
  nlohmann::ordered_json Line(const std::optional<StepModel>& parts, double first_seconds) const {
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
                 {"exposed_ms", Rounded(WaitedSeconds(intervals_, FLAGS_steps) * 1e3, 3)},
                 {"moves_ms", Rounded(moving_seconds() * 1e3, 3)},
                 {"sent_bytes_per_step", sent_ / counted_},
                 {"buckets", buckets},
                 {"link", LinkText(plan().link, plan().link_kind)},
                 {"loss", Rounded(loop_->last_loss(), 5)}});
    if (parts.has_value()) {
      const StepTime step = OverlappedStep(*parts);
      line.update({{"predicted_step_ms", Rounded(step.seconds * 1e3, 3)},
                   {"predicted_exposed_ms", Rounded(step.exposed * 1e3, 3)},
                   {"serial_ms", Rounded(step.serial * 1e3, 3)},
                   {"recurrence_exposed_ms", Rounded(RecurrenceOf(*parts).exposed * 1e3, 3)}});
    }
    return line;
  }

 private:
  absl::Status Step() {
    const int64_t step = loop_->step();
    replica_->set_step(step);
    tape_->set_step(step);
    const absl::Time start = absl::Now();
    CADRE_RETURN_IF_ERROR(loop_->Run(1));
    trace_.Add({.name = absl::StrCat("step ", step),
                .category = "step",
                .begin_us = absl::ToUnixMicros(start),
                .duration_us = absl::ToInt64Microseconds(absl::Now() - start),
                .step = step});
    return absl::OkStatus();
  }

  Config config_;
  Trace trace_;
  std::unique_ptr<Backend> kernels_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<StepLoop> loop_;
  std::unique_ptr<TapeTrace> tape_;
  std::vector<double> round_seconds_;
  std::vector<double> moving_;
  uint64_t sent_ = 0;
  uint64_t counted_ = 0;
  std::vector<TraceInterval> intervals_;
  std::vector<TraceInterval> last_round_;
};

// Name of the same configuration without overlap, from which its step time is predicted.
std::string WithoutOverlap(const Config& config) {
  return absl::StrCat(config.name.substr(0, config.name.rfind(':')), ":off");
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch},
                                         {"--threads", FLAGS_threads},
                                         {"--steps", FLAGS_steps},
                                         {"--rounds", FLAGS_rounds},
                                         {"--warmup", FLAGS_warmup}}));
  CADRE_ASSIGN_OR_RETURN(const ConnectedRank connected,
                         ConnectRank(FLAGS_rank, FLAGS_peers, FLAGS_shared_memory));
  Transport& transport = *connected.transport;
  std::vector<std::string> names = absl::StrSplit(FLAGS_configs, ',');
  const int64_t requested = std::ssize(names);
  std::vector<Config> configs;
  // Configurations that are only needed for predictions are appended to the requested ones.
  for (int64_t i = 0; i < std::ssize(names); ++i) {
    CADRE_ASSIGN_OR_RETURN(configs.emplace_back(), ParseConfig(names[i], transport.size()));
    const std::string without = WithoutOverlap(configs.back());
    const bool known = std::find(names.begin(), names.end(), without) != names.end();
    if (FLAGS_predict && !known) names.push_back(without);
  }
  std::vector<std::unique_ptr<ConfiguredRun>> runs;
  // The first configuration measures the links; all choose their algorithms by that measurement.
  v1::LinkProfile link;
  for (const Config& config : configs) {
    CADRE_ASSIGN_OR_RETURN(auto run, ConfiguredRun::Make(config, transport, link));
    link = LinkProfileToProto(run->plan().link);
    link.set_kind(run->plan().link_kind);
    CADRE_RETURN_IF_ERROR(run->Round(FLAGS_warmup, /*counts=*/false));
    runs.push_back(std::move(run));
  }
  for (int round = 0; round < FLAGS_rounds; ++round) {
    for (const auto& run : runs) CADRE_RETURN_IF_ERROR(run->Round(FLAGS_steps, /*counts=*/true));
  }
  if (FLAGS_rank != 0) return absl::OkStatus();
  for (int64_t i = 0; i < requested; ++i) {
    std::optional<StepModel> parts;
    for (const auto& run : runs) {
      if (configs[i].overlap && run->config().name == WithoutOverlap(configs[i])) {
        parts = run->Model();
      }
    }
    PrintLine(runs[i]->Line(parts, runs[0]->step_seconds()));
  }
  if (FLAGS_trace.empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(FLAGS_trace));
  CADRE_RETURN_IF_ERROR(
      file.Append(ChromeTraceJson({{"rank 0", runs[requested - 1]->last_round()}})));
  return file.Commit();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::EnsureOpenMpSettings(argv);
  return cadre::BenchMain(
      argc, argv, "bench/overlap_bench.cc",
      "bench_overlap: measures training steps over real links; rank 0 prints JSON lines.",
      cadre::Run);
}
