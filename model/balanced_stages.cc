// Two dynamic programs over the borders between consecutive layers: the first finds the least
// possible maximum of the work of a stage, the second the cheapest borders under a limit that is a
// tenth above it. Cost: stages * layers^2.
#include "model/balanced_stages.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "glog/logging.h"

namespace cadre {
namespace {

constexpr double kTolerance = 0.1;
constexpr double kImpossible = std::numeric_limits<double>::infinity();

class Divider {
 public:
  Divider(const Graph& graph, std::span<const double> work, int stages)
      : graph_(graph), stages_(stages), work_(1, 0.0), crossing_(graph.size(), 0.0) {
    for (int l = 0; l < graph.size(); ++l) {
      work_.push_back(work_.back() + work[l]);
      for (const int producer : graph[l].inputs) {
        if (producer == Graph::kInput) continue;
        for (int border = producer + 1; border <= l; ++border) {
          crossing_[border] += static_cast<double>(graph[producer].output.elements());
        }
      }
    }
  }

  std::vector<int> Run() const {
    const double least = Best([this](double before, int begin, int end) {
                           return std::max(before, Work(begin, end));
                         }).cost;
    const double limit = least * (1 + kTolerance);
    const std::vector<int> borders =
        Best([this, limit](double before, int begin, int end) {
          return Work(begin, end) > limit ? kImpossible : before + crossing_[begin];
        }).begins;
    std::vector<int> stage_of;
    for (int l = 0; l < graph_.size(); ++l) {
      stage_of.push_back(std::upper_bound(borders.begin(), borders.end(), l) - borders.begin() - 1);
    }
    return stage_of;
  }

 private:
  struct Division {
    double cost = kImpossible;
    // The first layer of each stage.
    std::vector<int> begins;
  };
  // The cost of stages that end before `end`, of which the last begins at `begin` and the others
  // cost `before`.
  using Cost = std::function<double(double before, int begin, int end)>;

  double Work(int begin, int end) const { return work_[end] - work_[begin]; }

  // The cheapest division of all layers.
  Division Best(const Cost& cost) const {
    const int layers = graph_.size();
    // By end: the cheapest division of the layers before it into as many stages as were added.
    std::vector<Division> best(layers + 1);
    best[0].cost = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      std::vector<Division> longer(layers + 1);
      for (int end = stage + 1; end <= layers; ++end) {
        for (int begin = stage; begin < end; ++begin) {
          if (best[begin].cost == kImpossible) continue;
          const double total = cost(best[begin].cost, begin, end);
          if (total >= longer[end].cost) continue;
          longer[end].cost = total;
          longer[end].begins = best[begin].begins;
          longer[end].begins.push_back(begin);
        }
      }
      best = std::move(longer);
    }
    return best[layers];
  }

  const Graph& graph_;
  const int stages_;
  // work_[l]: of the layers before l.
  std::vector<double> work_;
  // By border, which is before the layer of this number: elements that later layers read.
  std::vector<double> crossing_;
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
