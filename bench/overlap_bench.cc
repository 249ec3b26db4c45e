// Whole training steps of one group over real links, with the parts of Cadre switched on one at a
// time: a process for each rank, all configurations in turn in the same run, a JSON line for each.
//
//   bench_overlap --model alexnet --batch 32 --rank 0 --peers 10.0.0.1:7100,10.0.0.2:7100
//
// A configuration is layouts:collectives:overlap, where layouts are `data` (every weight on every
// rank), `model` (fully connected layers cut over all ranks), or DxM (M ranks cut them), and the
// rest are the words of `cadre run`.
// For a configuration with overlap the line has what the model of overlap predicts from the parts'
// times without it, which are measured in the same run.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/atomic_file.h"
#include "base/status.h"
#include "base/trace.h"
#include "bench/overlap/step_times.h"
#include "bench/training_setup.h"
#include "plan/plan_collectives.h"
#include "plan/search/planner.h"
#include "worker/train/group_plan.h"
#include "worker/train/replica.h"
#include "worker/train/tape_trace.h"
#include "worker/transport/tcp_listener.h"

DEFINE_string(model, "alexnet", "A model of the zoo, or a *.textproto run spec.");
DEFINE_string(zoo, "model/zoo", "Folder of the zoo's specs.");
DEFINE_int32(batch, 32, "Samples of a step, over all ranks.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_int32(steps, 3, "Steps of each configuration in each round.");
DEFINE_int32(rounds, 3, "Rounds; in each, all configurations take their turn.");
DEFINE_int32(warmup, 1, "Steps of each configuration before the first round.");
DEFINE_int32(rank, 0, "This process's rank.");
DEFINE_string(peers, "127.0.0.1:0", "host:port of every rank, by rank.");
DEFINE_bool(shared_memory, true, "Ranks of one host share memory; false: TCP.");
DEFINE_string(configs, "data:ring:off,data:ring:on,data:auto:on,model:auto:on",
              "Configurations, comma separated.");
DEFINE_bool(predict, true,
            "Run configurations with overlap once more without, and predict them from that.");
DEFINE_string(trace, "", "Rank 0: write a Chrome trace of the last configuration's last round.");

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
  if (words.size() != 3) return bad("has not three parts");
  Config config{.name = std::string(text)};
  if (words[0] == "model") {
    config.model_ranks = ranks;
  } else if (words[0] != "data") {
    const std::vector<std::string> grid = absl::StrSplit(words[0], 'x');
    if (grid.size() != 2 || !absl::SimpleAtoi(grid[1], &config.model_ranks)) {
      return bad("layouts are data, model or DxM");
    }
  }
  const auto policy = PolicyFromName(words[1]);
  if (!policy) return bad("unknown collectives");
  config.collectives = *policy;
  if (words[2] != "on" && words[2] != "off") return bad("overlap is on or off");
  config.overlap = words[2] == "on";
  return config;
}

// One configuration's replica, and what was seen of it.
class Contestant {
 public:
  static absl::StatusOr<std::unique_ptr<Contestant>> Make(const Config& config,
                                                          Transport& transport,
                                                          const v1::LinkProfile& link) {
    CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.zoo = FLAGS_zoo,
                                                        .model = FLAGS_model,
                                                        .batch = FLAGS_batch,
                                                        .ranks = transport.size(),
                                                        .model_ranks = config.model_ranks}));
    spec.mutable_cluster()->set_collectives(config.collectives);
    spec.mutable_cluster()->set_overlap(config.overlap ? v1::Cluster::ON : v1::Cluster::OFF);
    v1::Assignment assignment;
    CADRE_ASSIGN_OR_RETURN(*assignment.mutable_plan(), MakePlan(spec, transport.size()));
    *assignment.mutable_plan()->mutable_link() = link;
    auto contestant = std::make_unique<Contestant>();
    contestant->config_ = config;
    contestant->kernels_ = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(const v1::Plan plan,
                           SettlePlan(spec, assignment, transport, transport, *contestant->kernels_,
                                      /*cache=*/nullptr));
    CADRE_ASSIGN_OR_RETURN(contestant->replica_,
                           Replica::Make(spec, plan, *contestant->kernels_, transport));
    contestant->batch_ = std::make_unique<RandomBatch>(*contestant->replica_, FLAGS_batch);
    contestant->tape_ =
        std::make_unique<TapeTrace>(contestant->trace_, contestant->replica_->graph());
    return contestant;
  }

  // `steps` steps, timed and traced if they count, behind one that only sets the flow going: what
  // a step leaves for the next to wait for, it finds itself from the one before.
  absl::Status Round(int steps, bool counts) {
    // All begin together, whatever the rounds before did to them.
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
    CADRE_RETURN_IF_ERROR(replica_->Settle());
    if (counts) {
      // With what the last step left under way, and without what the first found.
      sent_ += replica_->comms().bytes_sent() - sent;
      counted_ += steps;
    }
    return absl::OkStatus();
  }

  const Config& config() const { return config_; }
  const Plan& plan() const { return replica_->plan(); }
  const std::vector<TraceInterval>& last_round() const { return last_round_; }
  // Of whole rounds: what overlaps from one step into the next evens out.
  double step_seconds() const { return Median(round_seconds_); }
  double moving_seconds() const { return Median(moving_); }
  StepModel Model() const {
    return StepModelFrom(replica_->graph(), replica_->index(), replica_->plan(), intervals_);
  }

  // Of waiting, a step: the mean of a round, median over rounds.
  double WaitedSeconds(int steps) const {
    std::vector<double> rounds;
    double sum = 0;
    int in_round = 0;
    for (const auto& [step, micros] : WaitsOf(intervals_)) {
      sum += micros * 1e-6;
      if (++in_round < steps) continue;
      rounds.push_back(sum / steps);
      sum = 0;
      in_round = 0;
    }
    return rounds.empty() ? 0 : Median(rounds);
  }

  // `twin`: the parts of the same without overlap.
  std::string Json(const std::optional<StepModel>& twin, double first_seconds) const {
    std::map<std::string, int> algorithms;
    for (const Bucket& bucket : plan().buckets) {
      ++algorithms[std::string(AlgorithmName(bucket.algorithm))];
    }
    std::string buckets;
    for (const auto& [name, count] : algorithms) {
      absl::StrAppend(&buckets, buckets.empty() ? "" : ",", "\"", name, "\":", count);
    }
    std::string line = absl::StrFormat(
        R"({"bench":"overlap","model":"%s","batch":%d,"ranks":%d,"threads":%d,"config":"%s",)"
        R"("step_ms":%.3f,"samples_per_s":%.3f,"ratio_to_first":%.4f,"exposed_ms":%.3f,)"
        R"("moves_ms":%.3f,"sent_bytes_per_step":%d,"buckets":{%s},"link":"%s","loss":%.5f)",
        FLAGS_model, FLAGS_batch, plan().mesh.ranks(), FLAGS_threads, config_.name,
        step_seconds() * 1e3, FLAGS_batch / step_seconds(), step_seconds() / first_seconds,
        WaitedSeconds(FLAGS_steps) * 1e3, moving_seconds() * 1e3, sent_ / counted_, buckets,
        LinkText(plan().link, plan().link_kind), loss_);
    if (twin.has_value()) {
      const StepTime step = OverlappedStep(*twin);
      absl::StrAppendFormat(&line,
                            R"(,"predicted_step_ms":%.3f,"predicted_exposed_ms":%.3f,)"
                            R"("serial_ms":%.3f,"recurrence_exposed_ms":%.3f)",
                            step.seconds * 1e3, step.exposed * 1e3, step.serial * 1e3,
                            RecurrenceOf(*twin).exposed * 1e3);
    }
    return absl::StrCat(line, "}");
  }

 private:
  absl::Status Step() {
    replica_->set_step(step_);
    tape_->set_step(step_);
    const absl::Time start = absl::Now();
    const BatchView view = batch_->View(FLAGS_batch, step_);
    CADRE_ASSIGN_OR_RETURN(const LossPart loss,
                           replica_->Step({&view, 1}, kBenchRate, /*gather=*/true));
    loss_ = loss.loss / static_cast<double>(loss.samples);
    trace_.Add({.name = absl::StrCat("step ", step_),
                .category = "step",
                .begin_us = absl::ToUnixMicros(start),
                .duration_us = absl::ToInt64Microseconds(absl::Now() - start),
                .step = step_});
    ++step_;
    return absl::OkStatus();
  }

  Config config_;
  Trace trace_;
  std::unique_ptr<Backend> kernels_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<RandomBatch> batch_;
  std::unique_ptr<TapeTrace> tape_;
  int64_t step_ = 0;
  double loss_ = 0;
  std::vector<double> round_seconds_;
  std::vector<double> moving_;
  uint64_t sent_ = 0;
  uint64_t counted_ = 0;
  std::vector<TraceInterval> intervals_;
  std::vector<TraceInterval> last_round_;
};

// Without overlap, the same layouts and collectives: what a prediction is made from.
std::string Twin(const Config& config) {
  return absl::StrCat(config.name.substr(0, config.name.rfind(':')), ":off");
}

absl::Status Run() {
  const std::vector<std::string> peers = absl::StrSplit(FLAGS_peers, ',');
  if (FLAGS_rank < 0 || FLAGS_rank >= std::ssize(peers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank is ", FLAGS_rank, ", but --peers names ", peers.size()));
  }
  CADRE_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({.address = peers[FLAGS_rank]}));
  CADRE_ASSIGN_OR_RETURN(const auto transport,
                         ConnectRanks(*listener, FLAGS_rank, peers, FLAGS_shared_memory));
  std::vector<Config> configs;
  for (const absl::string_view text : absl::StrSplit(FLAGS_configs, ',')) {
    CADRE_ASSIGN_OR_RETURN(Config config, ParseConfig(text, transport->size()));
    configs.push_back(std::move(config));
  }
  // What predictions need comes behind what was asked for.
  const std::vector<Config> asked = configs;
  for (const Config& config : asked) {
    const auto same = [&](const Config& other) { return other.name == Twin(config); };
    if (!FLAGS_predict || std::any_of(configs.begin(), configs.end(), same)) continue;
    CADRE_ASSIGN_OR_RETURN(Config twin, ParseConfig(Twin(config), transport->size()));
    configs.push_back(std::move(twin));
  }
  std::vector<std::unique_ptr<Contestant>> contestants;
  // Measured once: all choose by the same.
  v1::LinkProfile link;
  for (const Config& config : configs) {
    CADRE_ASSIGN_OR_RETURN(auto contestant, Contestant::Make(config, *transport, link));
    link = LinkProfileToProto(contestant->plan().link);
    link.set_kind(contestant->plan().link_kind);
    CADRE_RETURN_IF_ERROR(contestant->Round(FLAGS_warmup, /*counts=*/false));
    contestants.push_back(std::move(contestant));
  }
  for (int round = 0; round < FLAGS_rounds; ++round) {
    for (const auto& contestant : contestants) {
      CADRE_RETURN_IF_ERROR(contestant->Round(FLAGS_steps, /*counts=*/true));
    }
  }
  if (FLAGS_rank != 0) return absl::OkStatus();
  for (size_t i = 0; i < asked.size(); ++i) {
    std::optional<StepModel> parts;
    for (const auto& twin : contestants) {
      if (asked[i].overlap && twin->config().name == Twin(asked[i])) parts = twin->Model();
    }
    std::printf("%s\n", contestants[i]->Json(parts, contestants[0]->step_seconds()).c_str());
  }
  if (FLAGS_trace.empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(FLAGS_trace));
  CADRE_RETURN_IF_ERROR(
      file.Append(ChromeTraceJson({{"rank 0", contestants[asked.size() - 1]->last_round()}})));
  return file.Commit();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage("Measures training steps over real links. Rank 0 prints JSON lines.");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_batch < 1 || FLAGS_threads < 1 || FLAGS_steps < 1 || FLAGS_rounds < 1 ||
      FLAGS_warmup < 1) {
    std::fprintf(stderr, "--batch, --threads, --steps, --rounds and --warmup must be at least 1\n");
    return 2;
  }
  const absl::Status status = cadre::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "bench_overlap: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
