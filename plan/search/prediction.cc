// Predicts a step by simulating the threads of one rank (plan/cost/overlap.h).
//
// A rank's compute thread runs layer by layer and moves activations; its communication thread
// reduces, updates and gathers buckets, chunk by chunk. Inputs: compute times are measured or
// follow from work (hardware_model.h), moves are in closed form (move_model.h), and collectives
// follow the alpha-beta-gamma model or timed samples (plan/cost/collective_cost.h). One rank, which
// has the largest part of everything, represents all ranks. Layers and moves count once per
// micro-batch, buckets once per step.
//
// Two effects are added to the simulation:
//
//   cores   If a host has fewer cores than its ranks have threads, communication takes processor
//           time from compute. The lost time is Crowding() times the processor seconds of the
//           hidden communication; it is added to compute, and the step is simulated again.
//   link    Moves and collectives share a rank's link, so the step takes at least as long as both
//           together.
//
// A plan that places layers on some of the ranks is simulated on all of them instead
// (placed_prediction.h); its buckets are then assumed to be reduced and updated after backward,
// without overlap, and the costs of its layers contain no moves.
//
// Layers that are recomputed run and receive their inputs a second time, in backward.
//
// Not modelled: contention between hosts or groups for a switch, and skew between ranks.
#include "plan/search/prediction.h"

#include <algorithm>
#include <utility>

#include "plan/cost/communication_cost.h"
#include "plan/cost/overlap.h"
#include "plan/layer_part.h"
#include "plan/pipeline.h"
#include "plan/recomputation.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/move_model.h"
#include "plan/search/placed_prediction.h"

namespace cadre {
namespace {

// Seconds of the collectives and of the update of one bucket, over all chunks.
struct BucketTimes {
  double reduce = 0;
  double gather = 0;
  double update = 0;
  double elements = 0;
  double processor = 0;
};

class Predictor {
 public:
  Predictor(const PlanProblem& problem, const Plan& plan)
      : problem_(problem),
        plan_(plan),
        recomputed_(RecomputedLayers(*problem.graph, plan.recomputed, plan.layers)),
        order_(PassOrderOf(problem.pipeline, problem.micro_batches, *problem.graph, plan)),
        hardware_(problem.hardware) {}

  Prediction Run() {
    Layers();
    if (PlacesLayers(plan_)) {
      Buckets();
      PlacedSteps();
      return std::move(prediction_);
    }
    Moves();
    Buckets();
    Steps();
    return std::move(prediction_);
  }

 private:
  const Graph& graph() const { return *problem_.graph; }
  const ParameterIndex& index() const { return *problem_.index; }
  LayerPrediction& layer(int l) { return prediction_.layers[l]; }

  void Layers() {
    prediction_.layers.resize(graph().size());
    for (int l = 0; l < graph().size(); ++l) {
      const LayerLayouts& layouts = plan_.layers[l];
      const LayerPart part = PartOf(layouts, plan_.mesh, LargestMicroBatch(problem_));
      const LayerSeconds seconds = hardware_.SecondsOf(graph()[l], l, part);
      layer(l).compute = {seconds.forward * problem_.micro_batches,
                          (seconds.backward + (recomputed_[l].forward ? seconds.forward : 0)) *
                              problem_.micro_batches};
      const int in_flight = order_.InFlight(order_.stages() == 1 ? 0 : StageOf(layouts));
      layer(l).memory_bytes =
          LayerBytes(problem_, plan_.mesh, l, layouts, recomputed_[l], in_flight);
    }
  }

  void Moves() {
    const std::vector<LayerMoves> moves = MovesOf(problem_, plan_);
    for (int l = 0; l < graph().size(); ++l) {
      const auto& [forward, backward] = moves[l];
      layer(l).move_forward = forward.seconds * problem_.micro_batches;
      layer(l).move_backward = backward.seconds * problem_.micro_batches;
      layer(l).move_elements = (forward.elements + backward.elements) * problem_.micro_batches;
    }
  }

  void Buckets() {
    for (const Bucket& bucket : plan_.buckets) {
      const BucketTimes times = TimesOf(bucket);
      buckets_.push_back(times);
      const int64_t elements = std::max<int64_t>(1, BufferElements(plan_, index(), bucket));
      for (const int p : bucket.parameters) {
        const double share = 1.0 * LocalElementsOf(p) / elements;
        LayerPrediction& into = layer(index()[p].layer);
        into.collective += share * (times.reduce + times.gather);
        into.collective_elements += share * times.elements;
        into.update += share * times.update;
      }
    }
  }

  int64_t LocalElementsOf(int parameter) const {
    return BufferElements(plan_, index(), Bucket{.parameters = {parameter}});
  }

  BucketTimes TimesOf(const Bucket& bucket) const {
    const std::vector<std::string> owners = bucket.owner_axes();
    const int sum = plan_.mesh.Size(bucket.axes);
    const int own = plan_.mesh.Size(owners);
    const int64_t elements = BufferElements(plan_, index(), bucket);
    const int chunks = ChunksOf(plan_, index(), bucket);
    const int64_t bytes = kBytesPerWord * elements / chunks;
    const LinkProfile& reducing = hardware_.LinkOf(plan_.mesh, bucket.axes);
    const LinkProfile& gathering = hardware_.LinkOf(plan_.mesh, owners);
    const CollectiveWork reduce = WorkOf(Collective::kReduceScatter, bucket.algorithm, sum, bytes);
    const CollectiveWork gather = WorkOf(Collective::kAllGather, bucket.algorithm, own, bytes);
    const BucketCost cost = CostOf(problem_, plan_, bucket);
    BucketTimes times{.reduce = cost.reduce_scatter, .gather = cost.all_gather};
    times.update = hardware_.update_seconds * LargestPart(elements, own);
    times.elements = chunks * (reduce.bytes + gather.bytes) / kBytesPerWord;
    times.processor = chunks * (reducing.processor * reduce.bytes + reducing.gamma * reduce.added +
                                gathering.processor * gather.bytes) +
                      times.update;
    return times;
  }

  // The step with compute slowed down by a factor.
  StepModel ModelWith(double stretch) const {
    StepModel model;
    model.update_together = problem_.update_together;
    for (const LayerPrediction& each : prediction_.layers) {
      model.layers.push_back({.forward = each.compute.forward * stretch + each.move_forward,
                              .backward = each.compute.backward * stretch + each.move_backward});
    }
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const int chunks = ChunksOf(plan_, index(), plan_.buckets[b]);
      const StepModel::Bucket chunk{.layer = index()[plan_.buckets[b].parameters.front()].layer,
                                    .reduce_scatter = buckets_[b].reduce / chunks,
                                    .update = buckets_[b].update / chunks,
                                    .all_gather = buckets_[b].gather / chunks};
      model.buckets.insert(model.buckets.end(), chunks, chunk);
    }
    return model;
  }

  StepTime StepWith(double stretch) const {
    const StepModel model = ModelWith(stretch);
    return problem_.overlap && problem_.ranks > 1 ? OverlappedStep(model) : SerialStep(model);
  }

  // Seconds that the compute thread loses per second of processor time of the communication thread:
  // 0 with two cores per rank, 1 with one.
  double Crowding() const {
    if (hardware_.cores <= 0 || problem_.ranks == 1) return 0;
    const double each = hardware_.cores / std::min(hardware_.per_host, problem_.ranks);
    return each >= 1 ? std::clamp(2 - each, 0.0, 1.0) : 1 / each;
  }

  void Steps() {
    double compute = 0;
    double moves = 0;
    for (const LayerPrediction& each : prediction_.layers) {
      compute += each.compute.forward + each.compute.backward;
      moves += each.move_forward + each.move_backward;
      prediction_.elements_per_rank += each.elements();
      prediction_.memory_bytes += each.memory_bytes;
    }
    // Moves and collectives share the link, whichever thread they run on.
    double link = moves;
    double collectives = 0;
    double update = 0;
    double communication = 0;
    double processor = 0;
    for (const BucketTimes& bucket : buckets_) {
      link += bucket.reduce + bucket.gather;
      collectives += bucket.reduce + bucket.gather;
      update += bucket.update;
      communication += bucket.reduce + bucket.gather + bucket.update;
      processor += bucket.processor;
    }
    StepTime step = StepWith(1);
    // Hidden communication slows compute down if they share cores, and slower compute may hide more
    // communication, so this is iterated towards a fixed point.
    constexpr int kRounds = 3;
    double interference = 0;
    for (int round = 0; round < kRounds && compute > 0 && communication > 0 && Crowding() > 0;
         ++round) {
      const double hidden = std::clamp((communication - step.exposed) / communication, 0.0, 1.0);
      interference = Crowding() * processor * hidden;
      step = StepWith(1 + interference / compute);
    }
    const double link_waits = std::max(0.0, link - step.seconds);
    v1::StepTimes& times = prediction_.times;
    times.set_step(step.seconds + link_waits);
    times.set_compute(compute + interference);
    times.set_exposed(step.exposed + link_waits);
    times.set_moves(moves);
    times.set_collectives(collectives);
    times.set_update(update);
    prediction_.serial_seconds = step.serial;
    const double waits = times.exposed() + moves;
    const double computes = times.compute() - interference;
    prediction_.bound = waits > computes && waits > interference ? "link"
                        : interference > computes                ? "processor"
                                                                 : "compute";
    prediction_.utilisation = times.step() > 0 ? computes / times.step() : 0;
  }

  // The rank that ends last determines the step.
  void PlacedSteps() {
    const std::vector<PlacedRankTime> passes = SimulatePasses(problem_, plan_, order_);
    v1::StepTimes& times = prediction_.times;
    for (int rank = 0; rank < std::ssize(passes); ++rank) {
      double collectives = 0;
      double update = 0;
      double elements = passes[rank].elements_sent;
      for (size_t b = 0; b < buckets_.size(); ++b) {
        if (!plan_.mesh.IsAt(rank, plan_.buckets[b].at)) continue;
        collectives += buckets_[b].reduce + buckets_[b].gather;
        update += buckets_[b].update;
        elements += buckets_[b].elements;
      }
      int64_t memory = 0;
      for (int l = 0; l < graph().size(); ++l) {
        if (plan_.mesh.IsAt(rank, plan_.layers[l].at)) memory += layer(l).memory_bytes;
      }
      prediction_.memory_bytes = std::max(prediction_.memory_bytes, memory);
      prediction_.elements_per_rank = std::max(prediction_.elements_per_rank, elements);
      const double step = passes[rank].end + collectives + update;
      if (step <= times.step()) continue;
      times.set_step(step);
      times.set_compute(passes[rank].compute);
      times.set_moves(passes[rank].moves);
      times.set_collectives(collectives);
      times.set_exposed(collectives + update);
      times.set_update(update);
    }
    prediction_.serial_seconds = times.step();
    prediction_.bound = times.moves() + times.exposed() > times.compute() ? "link" : "compute";
    prediction_.utilisation = times.step() > 0 ? times.compute() / times.step() : 0;
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  const std::vector<RecomputedLayer> recomputed_;
  const PassOrder order_;
  const HardwareModel& hardware_;
  Prediction prediction_;
  std::vector<BucketTimes> buckets_;
};

// Elements of a full bucket; 0: no limit.
constexpr int64_t kBucketSizes[] = {1 << 20, 4 << 20, 16 << 20, 0};

Plan PlanWithBuckets(const PlanProblem& problem, Plan plan, v1::Cluster::CollectivePolicy policy,
                     std::optional<int64_t> elements) {
  const Mesh mesh = plan.mesh;
  const HardwareModel& hardware = problem.hardware;
  return WithCollectives(std::move(plan), *problem.graph, *problem.index, policy, hardware.link,
                         hardware.link_kind, elements,
                         [&](const std::vector<std::string>& axes) -> const LinkProfile& {
                           return hardware.LinkOf(mesh, axes);
                         });
}

}  // namespace

Prediction Predict(const PlanProblem& problem, const Plan& plan) {
  return Predictor(problem, plan).Run();
}

Plan WithBuckets(const PlanProblem& problem, Plan plan) {
  return PlanWithBuckets(problem, std::move(plan), problem.collectives, problem.bucket_elements);
}

double ObjectiveOf(const PlanProblem& problem, const Prediction& prediction) {
  return problem.hardware.computes() ? prediction.times.step() : prediction.communication_seconds();
}

Plan WithBestBuckets(const PlanProblem& problem, Plan plan) {
  Plan best = WithBuckets(problem, std::move(plan));
  if (!IsAuto(problem.collectives) || !problem.hardware.link.known() || best.buckets.empty())
    return best;
  double minimum = ObjectiveOf(problem, Predict(problem, best));
  const auto consider = [&](v1::Cluster::CollectivePolicy policy, std::optional<int64_t> elements) {
    Plan candidate = PlanWithBuckets(problem, best, policy, elements);
    const double seconds = ObjectiveOf(problem, Predict(problem, candidate));
    if (seconds >= minimum) return;
    minimum = seconds;
    best = std::move(candidate);
  };
  // The buckets that each policy would choose.
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    if (policy != v1::Cluster::AUTO) consider(policy, problem.bucket_elements);
  }
  if (problem.bucket_elements.has_value()) return best;
  for (const int64_t elements : kBucketSizes) consider(v1::Cluster::AUTO, elements);
  return best;
}

BucketCost CostOf(const PlanProblem& problem, const Plan& plan, const Bucket& bucket) {
  const HardwareModel& hardware = problem.hardware;
  return CostOf(plan, *problem.index, bucket, bucket.algorithm,
                hardware.LinkOf(plan.mesh, bucket.axes),
                hardware.LinkOf(plan.mesh, bucket.owner_axes()));
}

}  // namespace cadre
