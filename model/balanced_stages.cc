// First the least possible maximum of the work of a stage is found, by bisection: under a limit,
// stages that are as long as possible are the fewest. Then borders are chosen from the first to the
// last under a limit that is a tenth higher: of the borders that leave enough stages for the layers
// behind them, each is the one that the fewest elements cross. Cost: linear in layers and edges.
#include "model/balanced_stages.h"

#include <algorithm>
#include <numeric>

#include "glog/logging.h"

namespace cadre {
namespace {

constexpr double kTolerance = 0.1;
constexpr int kBisections = 60;

class Divider {
 public:
  Divider(const Graph& graph, std::span<const double> work, int stages)
      : layers_(graph.size()), stages_(stages), before_(layers_ + 1, 0.0) {
    std::partial_sum(work.begin(), work.end(), before_.begin() + 1);
    CountCrossings(graph);
  }

  std::vector<int> Run() {
    double low = 0;
    double high = before_[layers_];
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (low + high) / 2;
      (Fits(middle) ? high : low) = middle;
    }
    Fits(high * (1 + kTolerance));
    std::vector<int> stage_of;
    for (int stage = 0, begin = 0; stage < stages_; ++stage) {
      const int end = stage + 1 == stages_ ? layers_ : BestEnd(begin, stages_ - stage - 1);
      stage_of.insert(stage_of.end(), end - begin, stage);
      begin = end;
    }
    return stage_of;
  }

 private:
  // A value crosses the borders from its producer to the last layer that reads it.
  void CountCrossings(const Graph& graph) {
    std::vector<double> changes(layers_ + 1, 0.0);
    for (int l = 0; l < layers_; ++l) {
      const std::vector<int>& consumers = graph.consumers(l);
      if (consumers.empty()) continue;
      const auto elements = static_cast<double>(graph[l].output.elements());
      changes[l + 1] += elements;
      changes[consumers.back() + 1] -= elements;
    }
    crossing_.resize(layers_ + 1);
    std::partial_sum(changes.begin(), changes.end(), crossing_.begin());
  }

  // Sets limit_ and fewest_, and returns whether the layers fit in all stages together.
  bool Fits(double limit) {
    limit_ = limit;
    fewest_.assign(layers_ + 1, 0);
    for (int begin = layers_ - 1, end = layers_; begin >= 0; --begin) {
      while (before_[end] - before_[begin] > limit && end > begin) --end;
      if (end == begin) return false;
      fewest_[begin] = 1 + fewest_[end];
    }
    return fewest_[0] <= stages_;
  }

  // The best end of a stage, if so many stages follow, none of which is empty.
  int BestEnd(int begin, int following) const {
    int best = -1;
    for (int end = begin + 1; end <= layers_ - following && before_[end] - before_[begin] <= limit_;
         ++end) {
      if (fewest_[end] > following) continue;
      if (best < 0 || crossing_[end] < crossing_[best]) best = end;
    }
    CHECK_GE(best, 0) << "the limit was checked";
    return best;
  }

  const int layers_;
  const int stages_;
  // before_[l]: the work of the layers before l.
  std::vector<double> before_;
  // By border, which is before the layer of this number: elements that later layers read.
  std::vector<double> crossing_;
  double limit_ = 0;
  // fewest_[l]: the minimum number of stages for layer l and those behind it.
  std::vector<int> fewest_;
};

}  // namespace

std::vector<int> BalancedStages(const Graph& graph, std::span<const double> work, int stages) {
  CHECK(stages >= 1 && stages <= graph.size() && std::ssize(work) == graph.size());
  return Divider(graph, work, stages).Run();
}

// Operations are counted, not measured, so a run file has the same stages wherever it is used.
std::vector<int> BalancedStages(const Graph& graph, int stages) {
  std::vector<double> work;
  for (const GraphLayer& layer : graph.layers()) work.push_back(static_cast<double>(layer.flops));
  return BalancedStages(graph, work, stages);
}

}  // namespace cadre
