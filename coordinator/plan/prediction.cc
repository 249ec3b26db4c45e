#include "coordinator/plan/prediction.h"

#include <algorithm>
#include <utility>

#include "coordinator/cost/communication_cost.h"
#include "coordinator/cost/overlap.h"
#include "coordinator/plan/layer_bytes.h"
#include "coordinator/plan/move_words.h"
#include "spec/layer_part.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

// One bucket's way from gradients to weights, all chunks.
struct BucketTimes {
  double reduce = 0;
  double gather = 0;
  double update = 0;
  double words = 0;
  double processor = 0;
};

class Predictor {
 public:
  Predictor(const PlanProblem& problem, const Plan& plan)
      : problem_(problem), plan_(plan), machine_(problem.machine) {}

  Prediction Run() {
    Layers();
    Moves();
    Buckets();
    Steps();
    Sums();
    return std::move(prediction_);
  }

 private:
  const Graph& graph() const { return *problem_.graph; }
  const ParameterIndex& index() const { return *problem_.index; }
  LayerPrediction& layer(int l) { return prediction_.layers[static_cast<size_t>(l)]; }

  void Layers() {
    prediction_.layers.resize(static_cast<size_t>(graph().size()));
    for (int l = 0; l < graph().size(); ++l) {
      const LayerLayouts& layouts = plan_.layers[static_cast<size_t>(l)];
      const LayerPart part = PartOf(layouts, plan_.mesh, SamplesAtOnce(problem_));
      const LayerSeconds seconds = machine_.SecondsOf(graph()[l], l, part);
      layer(l).compute = {seconds.forward * problem_.micro_batches,
                          seconds.backward * problem_.micro_batches};
      layer(l).memory_bytes = LayerBytes(problem_, plan_.mesh, l, layouts);
    }
  }

  void Moves() {
    const std::vector<LayerMoves> moves = MovesOf(problem_, plan_);
    for (int l = 0; l < graph().size(); ++l) {
      const LayerMoves& of = moves[static_cast<size_t>(l)];
      layer(l).move_forward = of.forward.seconds * problem_.micro_batches;
      layer(l).move_backward = of.backward.seconds * problem_.micro_batches;
      layer(l).move_words = (of.forward.words + of.backward.words) * problem_.micro_batches;
    }
  }

  void Buckets() {
    for (const Bucket& bucket : plan_.buckets) {
      const BucketTimes times = TimesOf(bucket);
      buckets_.push_back(times);
      const auto elements = static_cast<double>(BufferElements(plan_, index(), bucket));
      for (const int p : bucket.parameters) {
        const double share = static_cast<double>(LocalElementsOf(p)) / std::max(1.0, elements);
        LayerPrediction& into = layer(index()[p].layer);
        into.collective += share * (times.reduce + times.gather);
        into.collective_words += share * times.words;
        into.update += share * times.update;
      }
    }
  }

  int64_t LocalElementsOf(int parameter) const {
    return BufferElements(plan_, index(), Bucket{.parameters = {parameter}});
  }

  BucketTimes TimesOf(const Bucket& bucket) const {
    const std::vector<std::string> owners = OwnerAxes(bucket);
    const int sum = plan_.mesh.Size(bucket.axes);
    const int own = plan_.mesh.Size(owners);
    const int64_t elements = BufferElements(plan_, index(), bucket);
    const int chunks = ChunksOf(plan_, index(), bucket);
    const int64_t bytes = kBytesPerWord * elements / chunks;
    const LinkProfile& reducing = machine_.LinkOf(plan_.mesh, bucket.axes);
    const LinkProfile& gathering = machine_.LinkOf(plan_.mesh, owners);
    const CollectiveWork reduce = WorkOf(Collective::kReduceScatter, bucket.algorithm, sum, bytes);
    const CollectiveWork gather = WorkOf(Collective::kAllGather, bucket.algorithm, own, bytes);
    BucketTimes times;
    times.reduce =
        chunks * SecondsOf(Collective::kReduceScatter, bucket.algorithm, sum, bytes, reducing);
    times.gather =
        chunks * SecondsOf(Collective::kAllGather, bucket.algorithm, own, bytes, gathering);
    times.update = machine_.update_seconds * static_cast<double>(LargestPart(elements, own));
    times.words = chunks * (reduce.bytes + gather.bytes) / kBytesPerWord;
    times.processor = chunks * (reducing.processor * reduce.bytes + reducing.gamma * reduce.added +
                                gathering.processor * gather.bytes) +
                      times.update;
    return times;
  }

  // The layers' times on the own thread, computing stretched by a factor.
  StepModel ModelWith(double stretch) const {
    StepModel model;
    model.update_together = problem_.update_together;
    for (const LayerPrediction& of : prediction_.layers) {
      model.layers.push_back({.forward = of.compute.forward * stretch + of.move_forward,
                              .backward = of.compute.backward * stretch + of.move_backward});
    }
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const int chunks = ChunksOf(plan_, index(), plan_.buckets[b]);
      const StepModel::Bucket chunk{.layer = index()[plan_.buckets[b].parameters.front()].layer,
                                    .reduce_scatter = buckets_[b].reduce / chunks,
                                    .update = buckets_[b].update / chunks,
                                    .all_gather = buckets_[b].gather / chunks};
      model.buckets.insert(model.buckets.end(), static_cast<size_t>(chunks), chunk);
    }
    return model;
  }

  StepTime StepWith(double stretch) const {
    StepModel model = ModelWith(stretch);
    const bool beside = problem_.overlap && problem_.ranks > 1;
    if (beside) return OverlappedStep(model);
    StepTime step;
    for (const StepModel::Layer& of : model.layers) step.serial += of.forward + of.backward;
    const double own_thread = step.serial;
    for (const StepModel::Bucket& of : model.buckets) {
      step.serial += of.reduce_scatter + of.update + of.all_gather;
    }
    step.seconds = step.serial;
    step.exposed = step.serial - own_thread;
    return step;
  }

  // Of a second that the communication thread computes, what the own thread is kept from
  // computing: nothing where each thread has a core, all where a rank has one.
  double Crowding() const {
    if (machine_.cores <= 0 || problem_.ranks == 1) return 0;
    const double each = machine_.cores / std::min(machine_.per_host, problem_.ranks);
    return each >= 1 ? std::clamp(2 - each, 0.0, 1.0) : 1 / each;
  }

  void Steps() {
    double compute = 0;
    double beside = 0;
    double processor = 0;
    for (const LayerPrediction& of : prediction_.layers) {
      compute += of.compute.forward + of.compute.backward;
    }
    for (const BucketTimes& of : buckets_) {
      beside += of.reduce + of.gather + of.update;
      processor += of.processor;
    }
    StepTime step = StepWith(1);
    // What hides behind computing slows it down where they share cores; and then more may hide.
    constexpr int kRounds = 3;
    double stolen = 0;
    for (int round = 0; round < kRounds && compute > 0 && beside > 0 && Crowding() > 0; ++round) {
      const double hidden = std::clamp((beside - step.exposed) / beside, 0.0, 1.0);
      stolen = Crowding() * processor * hidden;
      step = StepWith(1 + stolen / compute);
    }
    // Moves and collectives share the link, whatever threads they are on.
    double link = 0;
    for (const LayerPrediction& of : prediction_.layers) {
      link += of.move_forward + of.move_backward;
    }
    for (const BucketTimes& of : buckets_) link += of.reduce + of.gather;
    const double waits = std::max(0.0, link - step.seconds);
    step.seconds += waits;
    step.exposed += waits;
    prediction_.times.set_step(step.seconds);
    prediction_.times.set_compute(compute + stolen);
    prediction_.times.set_exposed(step.exposed);
    prediction_.serial_seconds = step.serial;
    stolen_ = stolen;
  }

  void Sums() {
    double moves = 0;
    for (const LayerPrediction& of : prediction_.layers) {
      moves += of.move_forward + of.move_backward;
      prediction_.words_per_rank += of.words();
      prediction_.memory_bytes += of.memory_bytes;
    }
    double collectives = 0;
    double update = 0;
    for (const BucketTimes& of : buckets_) {
      collectives += of.reduce + of.gather;
      update += of.update;
    }
    v1::StepTimes& times = prediction_.times;
    times.set_moves(moves);
    times.set_collectives(collectives);
    times.set_update(update);
    const double waits = times.exposed() + moves;
    const double computes = times.compute() - stolen_;
    prediction_.bound = waits > computes && waits > stolen_ ? "link"
                        : stolen_ > computes                ? "processor"
                                                            : "compute";
    prediction_.utilisation = times.step() > 0 ? computes / times.step() : 0;
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  const GroupMachine& machine_;
  Prediction prediction_;
  std::vector<BucketTimes> buckets_;
  double stolen_ = 0;
};

// Elements; 0: no limit.
constexpr int64_t kBucketSizes[] = {1 << 20, 4 << 20, 16 << 20, 0};

Plan Bucketed(const PlanProblem& problem, Plan plan, v1::CollectivePolicy policy,
              std::optional<int64_t> elements) {
  const Mesh mesh = plan.mesh;
  const GroupMachine& machine = problem.machine;
  return WithCollectives(std::move(plan), *problem.graph, *problem.index, policy, machine.link,
                         machine.link_kind, elements,
                         [&](const std::vector<std::string>& axes) -> const LinkProfile& {
                           return machine.LinkOf(mesh, axes);
                         });
}

}  // namespace

Prediction Predict(const PlanProblem& problem, const Plan& plan) {
  return Predictor(problem, plan).Run();
}

Plan WithBuckets(const PlanProblem& problem, Plan plan) {
  return Bucketed(problem, std::move(plan), problem.collectives, problem.bucket_elements);
}

double ObjectiveOf(const PlanProblem& problem, const Prediction& prediction) {
  return problem.machine.computes() ? prediction.times.step() : prediction.communication_seconds();
}

Plan WithBestBuckets(const PlanProblem& problem, Plan plan) {
  Plan best = WithBuckets(problem, std::move(plan));
  const bool automatic =
      problem.collectives == v1::AUTO || problem.collectives == v1::COLLECTIVE_POLICY_UNSPECIFIED;
  if (!automatic || !problem.machine.link.known() || best.buckets.empty()) return best;
  double least = ObjectiveOf(problem, Predict(problem, best));
  const auto consider = [&](v1::CollectivePolicy policy, std::optional<int64_t> elements) {
    Plan candidate = Bucketed(problem, best, policy, elements);
    const double seconds = ObjectiveOf(problem, Predict(problem, candidate));
    if (seconds >= least) return;
    least = seconds;
    best = std::move(candidate);
  };
  // As each policy by itself would.
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    if (policy != v1::AUTO) consider(policy, problem.bucket_elements);
  }
  if (problem.bucket_elements.has_value()) return best;
  for (const int64_t elements : kBucketSizes) consider(v1::AUTO, elements);
  return best;
}

double BucketSeconds(const PlanProblem& problem, const Plan& plan, const Bucket& bucket) {
  const GroupMachine& machine = problem.machine;
  return CostOf(plan, *problem.index, bucket, bucket.algorithm,
                machine.LinkOf(plan.mesh, bucket.axes),
                machine.LinkOf(plan.mesh, OwnerAxes(bucket)))
      .seconds();
}

}  // namespace cadre
