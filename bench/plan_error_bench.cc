// How right the planner is about the clock: one process for each rank of a group, over real links.
// For each model all of the papers' strategies and the planner's own plan are predicted from what a
// short probe measured, then run, and set side by side.
//
//   bench_plan_error --rank 0 --peers 10.0.0.1:7100,10.0.0.2:7100 --models lenet:256,alexnet:32
//
// Rank 0 prints a JSON line for each plan, with the parts of the step as they were predicted and
// measured, and one for each model that says what the planner picked and what was fastest.
// plan_error.py makes hosts and runs it.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/training_setup.h"
#include "plan/search/prediction.h"
#include "plan/search/search.h"
#include "worker/comm/communicator.h"
#include "worker/comm/link_probe.h"
#include "worker/probe/layer_probe.h"
#include "worker/train/agreement.h"
#include "worker/train/measured_link.h"
#include "worker/train/replica.h"
#include "worker/transport/tcp_listener.h"

DEFINE_string(models, "lenet:256",
              "model:batch of the zoo, comma separated; batch over all ranks.");
DEFINE_string(zoo, "model/zoo", "Folder of the zoo's specs.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_double(cores, 0, "Cores that one rank has for itself; 0: as many as it wants.");
DEFINE_double(seconds, 4, "Steps of a plan are timed for about so long, three at least.");
DEFINE_int32(rank, 0, "This process's rank.");
DEFINE_string(peers, "127.0.0.1:0", "host:port of every rank, by rank.");
DEFINE_string(link, "", "What the links are, for the output.");

namespace cadre {
namespace {

// One plan, what was expected of it and what came.
struct Entry {
  std::string strategy;
  v1::Plan plan;
  v1::StepTimes predicted;
  v1::StepTimes measured;

  double error() const { return predicted.step() / measured.step() - 1; }
};

std::string MeshText(const v1::Plan& plan) {
  return absl::StrJoin(plan.mesh(), " ", [](std::string* out, const v1::MeshAxis& axis) {
    absl::StrAppend(out, axis.name(), "=", axis.size());
  });
}

// What the own thread does: all that is measured from outside.
std::string OwnThreadJson(const v1::StepTimes& times) {
  return absl::StrFormat(R"("step_ms":%.3f,"compute_ms":%.3f,"moves_ms":%.3f,"exposed_ms":%.3f)",
                         times.step() * 1e3, times.compute() * 1e3, times.moves() * 1e3,
                         times.exposed() * 1e3);
}

std::string PredictedJson(const v1::StepTimes& times) {
  return absl::StrFormat(R"({%s,"collectives_ms":%.3f,"update_ms":%.3f})", OwnThreadJson(times),
                         times.collectives() * 1e3, times.update() * 1e3);
}

// All that concerns one model.
class Trial {
 public:
  Trial(std::string model, v1::RunSpec spec, Graph graph, Transport& transport, Communicator& all,
        const LinkProfile& link)
      : model_(std::move(model)),
        spec_(std::move(spec)),
        graph_(std::move(graph)),
        index_(ParameterIndex::FromGraph(graph_)),
        transport_(transport),
        all_(all) {
    machine_.link = link;
    machine_.cores = FLAGS_cores;
  }

  absl::Status Run() {
    CADRE_RETURN_IF_ERROR(ChooseStrategies());
    CADRE_RETURN_IF_ERROR(Probe());
    CADRE_RETURN_IF_ERROR(ChooseBest());
    for (Entry& entry : entries_) {
      CADRE_RETURN_IF_ERROR(Measure(&entry));
      if (lead()) Print(entry);
    }
    if (lead()) PrintPick();
    return absl::OkStatus();
  }

 private:
  bool lead() const { return transport_.rank() == 0; }

  // Rank 0 decides; all get the same plans.
  absl::Status Share() {
    for (Entry& entry : entries_) {
      CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                             TextOfFirst(entry.plan.SerializeAsString(), all_));
      if (!entry.plan.ParseFromString(bytes)) return absl::InternalError("plan of rank 0");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PlanProblem> ProblemFor(Strategy strategy) const {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem,
                           ProblemOf(spec_, graph_, index_, transport_.size(), machine_));
    problem.strategy = strategy;
    return problem;
  }

  // Every strategy on every mesh that it has, each different plan once.
  absl::Status ChooseStrategies() {
    for (const Strategy strategy : AllStrategies()) {
      if (strategy == Strategy::kAuto || strategy == Strategy::kGroupHybrid) continue;
      CADRE_ASSIGN_OR_RETURN(PlanProblem problem, ProblemFor(strategy));
      for (const Mesh& mesh : MeshesFor(problem)) {
        problem.pins.mesh = mesh.axes();
        const auto found = Search(problem);
        if (found.ok()) AddIfNew(std::string(StrategyName(strategy)), found->best.plan);
      }
    }
    return Share();
  }

  bool AddIfNew(const std::string& strategy, const Plan& plan) {
    v1::Plan proto = PlanToProto(plan, index_);
    const auto same = [&](const Entry& entry) {
      return entry.plan.SerializeAsString() == proto.SerializeAsString();
    };
    if (std::any_of(entries_.begin(), entries_.end(), same)) return false;
    entries_.push_back({.strategy = strategy, .plan = std::move(proto)});
    return true;
  }

  // All ranks at once, as they will compute.
  absl::Status Probe() {
    v1::ProbeRequest request;
    *request.mutable_spec() = spec_;
    for (const Entry& entry : entries_) *request.add_plan() = entry.plan;
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(
        const v1::DeviceProfile device,
        ProbeLayers(request, *kernels, {.before_each_plan = [this] { return all_.Barrier(); }}));
    machine_.flops = device.flops();
    machine_.update_seconds = device.update_seconds();
    machine_.copy_seconds = device.copy_seconds();
    for (const v1::ModelTimes& times : device.model()) {
      machine_.times = MeasuredLayers(times, graph_);
    }
    return absl::OkStatus();
  }

  // What the search finds may cut layers as nobody was timed yet: then it is timed, too, before
  // anything is predicted.
  absl::Status ChooseBest() {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem, ProblemFor(Strategy::kAuto));
    // Ranks have measured a little differently, and might find others.
    if (lead()) {
      CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(problem));
      AddIfNew("auto", found.best.plan);
    }
    auto plans = static_cast<uint32_t>(entries_.size());
    CADRE_RETURN_IF_ERROR(all_.Broadcast(std::as_writable_bytes(std::span(&plans, 1)), 0));
    entries_.resize(plans, {.strategy = "auto"});
    CADRE_RETURN_IF_ERROR(Share());
    CADRE_RETURN_IF_ERROR(Probe());
    CADRE_ASSIGN_OR_RETURN(problem, ProblemFor(Strategy::kAuto));
    for (Entry& entry : entries_) {
      CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(entry.plan, graph_, index_));
      entry.predicted = Predict(problem, plan).times;
    }
    return absl::OkStatus();
  }

  absl::Status Measure(Entry* entry) {
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(const auto replica,
                           Replica::Make(spec_, entry->plan, *kernels, transport_));
    const int64_t batch = spec_.batch_per_group();
    const RandomBatch data(*replica, batch);
    int64_t step = 0;
    const auto steps = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i, ++step) {
        const BatchView view = data.View(batch, step);
        CADRE_RETURN_IF_ERROR(replica->Step({&view, 1}, kBenchRate, /*gather=*/true).status());
      }
      return absl::OkStatus();
    };
    CADRE_RETURN_IF_ERROR(all_.Barrier());
    CADRE_RETURN_IF_ERROR(steps(2));
    absl::Time start = absl::Now();
    CADRE_RETURN_IF_ERROR(steps(1));
    uint32_t count = static_cast<uint32_t>(std::clamp(
        FLAGS_seconds / kRounds / absl::ToDoubleSeconds(absl::Now() - start), 1.0, 200.0));
    CADRE_RETURN_IF_ERROR(all_.Broadcast(std::as_writable_bytes(std::span(&count, 1)), 0));
    std::vector<double> means;
    const double exposed = (replica->seconds_waited() + replica->seconds_moving());
    const double moving = replica->seconds_moving();
    for (int round = 0; round < kRounds; ++round) {
      start = absl::Now();
      CADRE_RETURN_IF_ERROR(steps(static_cast<int>(count)));
      means.push_back(absl::ToDoubleSeconds(absl::Now() - start) / count);
    }
    const double total = kRounds * count;
    entry->measured.set_step(Median(means));
    entry->measured.set_moves((replica->seconds_moving() - moving) / total);
    entry->measured.set_exposed(
        ((replica->seconds_waited() + replica->seconds_moving()) - exposed) / total -
        entry->measured.moves());
    entry->measured.set_compute(entry->measured.step() - entry->measured.moves() -
                                entry->measured.exposed());
    return replica->Settle();
  }

  void Print(const Entry& entry) const {
    std::printf(
        R"({"bench":"plan_error","model":"%s","batch":%u,"ranks":%d,"link":"%s","strategy":"%s",)"
        R"("mesh":"%s","predicted":%s,"measured":{%s},"error":%.4f})"
        "\n",
        model_.c_str(), spec_.batch_per_group(), transport_.size(), FLAGS_link.c_str(),
        entry.strategy.c_str(), MeshText(entry.plan).c_str(),
        PredictedJson(entry.predicted).c_str(), OwnThreadJson(entry.measured).c_str(),
        entry.error());
    std::fflush(stdout);
  }

  void PrintPick() const {
    const auto by = [](v1::StepTimes Entry::*times) {
      return
          [times](const Entry& a, const Entry& b) { return (a.*times).step() < (b.*times).step(); };
    };
    const Entry& picked =
        *std::min_element(entries_.begin(), entries_.end(), by(&Entry::predicted));
    const Entry& fastest =
        *std::min_element(entries_.begin(), entries_.end(), by(&Entry::measured));
    std::printf(
        R"({"bench":"plan_pick","model":"%s","ranks":%d,"link":"%s","plans":%td,)"
        R"("picked":"%s %s","fastest":"%s %s","picked_ms":%.3f,"fastest_ms":%.3f,"ratio":%.4f})"
        "\n",
        model_.c_str(), transport_.size(), FLAGS_link.c_str(), std::ssize(entries_),
        picked.strategy.c_str(), MeshText(picked.plan).c_str(), fastest.strategy.c_str(),
        MeshText(fastest.plan).c_str(), picked.measured.step() * 1e3, fastest.measured.step() * 1e3,
        picked.measured.step() / fastest.measured.step());
    std::fflush(stdout);
  }

  static constexpr int kRounds = 3;

  const std::string model_;
  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  Transport& transport_;
  Communicator& all_;
  HardwareModel machine_;
  std::vector<Entry> entries_;
};

absl::Status Run() {
  const std::vector<std::string> peers = absl::StrSplit(FLAGS_peers, ',');
  if (FLAGS_rank < 0 || FLAGS_rank >= std::ssize(peers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank is ", FLAGS_rank, ", but --peers names ", peers.size()));
  }
  CADRE_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({.address = peers[FLAGS_rank]}));
  CADRE_ASSIGN_OR_RETURN(const auto transport,
                         ConnectRanks(*listener, FLAGS_rank, peers, /*shared_memory=*/true));
  std::vector<int> ranks;
  for (int rank = 0; rank < transport->size(); ++rank) ranks.push_back(rank);
  Communicator all(*transport, ranks);
  LinkProfile link;
  if (transport->size() > 1) {
    CADRE_ASSIGN_OR_RETURN(const LinkMeasure measure, MeasureLink(all));
    link = ProfileOf(measure, transport->size());
  }
  for (const absl::string_view text : absl::StrSplit(FLAGS_models, ',')) {
    const std::vector<std::string> words = absl::StrSplit(text, ':');
    int batch = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &batch) || batch < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--models: '", text, "': write model:batch"));
    }
    CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.zoo = FLAGS_zoo,
                                                        .model = words[0],
                                                        .batch = batch,
                                                        .ranks = transport->size(),
                                                        .model_ranks = 0,
                                                        .space_ranks = 0}));
    CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
    CADRE_RETURN_IF_ERROR(
        Trial(words[0], std::move(spec), std::move(graph), *transport, all, link).Run());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage("Holds the planner's predictions against the clock; prints JSON lines.");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_threads < 1 || FLAGS_seconds <= 0) {
    std::fprintf(stderr, "--threads must be at least 1, --seconds above 0\n");
    return 2;
  }
  const absl::Status status = cadre::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "bench_plan_error: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
