// A small model with every role of parameter, divided into slices, for the tests of worker/optim.
#pragma once

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/ownership.h"
#include "tensor/layout.h"
#include "tests/base/expect.h"
#include "worker/optim/slice_optimizer.h"

namespace cadre {

// Positions: conv/weight [3,1,3,3] 0-26, conv/bias [3] 27-29, then four of norm [3] each (see
// the index), fc/weight [2,108], fc/bias [2].
struct SmallModel {
  SmallModel()
      : graph(MakeGraph()),
        index(ParameterIndex::FromGraph(graph)),
        momenta(StatisticMomenta(graph, index)) {}

  static Graph MakeGraph() {
    absl::StatusOr<Graph> graph = Graph::FromModel(Parse<v1::Model>(R"(
      input { channels: 1 height: 6 width: 6 }
      layer { name: "conv" convolution { out_channels: 3 kernel: 3 padding: 1 } }
      layer { name: "norm" batch_norm { momentum: 0.25 } }
      layer { name: "relu" relu {} }
      layer { name: "fc" fully_connected { out_features: 2 } }
      layer { name: "loss" softmax_cross_entropy {} })"));
    CHECK(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  const Parameter& Of(ParameterRole role) const {
    const auto& all = index.parameters();
    return *std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.role == role; });
  }

  Graph graph;
  ParameterIndex index;
  std::vector<float> momenta;
};

// A bucket whose buffer is flat positions [0, index.size()), and whose slice is [begin, end) of it,
// in intervals of at most `longest` elements.
inline BucketOwnership SliceOf(const ParameterIndex& index, int64_t begin, int64_t end,
                               int64_t longest = int64_t{1} << 40) {
  BucketOwnership bucket;
  bucket.size = index.size();
  bucket.borders = {0, begin, end, bucket.size};
  bucket.own_slice = 1;
  for (int p = 0; p < std::ssize(index.parameters()); ++p) {
    const int64_t last = std::min(end, index[p].end());
    for (int64_t at = std::max(begin, index[p].offset); at < last; at += longest) {
      bucket.owned.push_back({p, {at, std::min(last, at + longest)}, at});
    }
  }
  return bucket;
}

// Values whose sums are rounded, without symmetries that could hide errors.
inline std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A model divided into slices, each with its optimizer. Step updates all slices, as the ranks of a
// group do.
class SlicedModel {
 public:
  SlicedModel(Backend& kernels, const v1::Optimizer& optimizer, const SmallModel& model,
              const std::vector<int64_t>& borders, int64_t longest = int64_t{1} << 40)
      : optimizer_(optimizer),
        borders_(borders),
        parameters_(std::ssize(model.index.parameters())) {
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      slices_.emplace_back(kernels, optimizer, model.index, model.momenta,
                           SliceOf(model.index, borders[i], borders[i + 1], longest));
    }
  }

  void Step(float rate, const std::vector<float>& gradients, std::vector<float>& weights) {
    StepNorms norms(optimizer_, parameters_);
    norms.Clear();
    for (size_t i = 0; i < slices_.size(); ++i) {
      slices_[i].AddNorms(Part<const float>(gradients, i), Part<const float>(weights, i), norms);
    }
    for (size_t i = 0; i < slices_.size(); ++i) {
      slices_[i].Update(rate, norms, Part<const float>(gradients, i), Part<float>(weights, i));
    }
  }

  SliceOptimizer& slice(int i) { return slices_[i]; }

 private:
  template <typename T>
  std::span<T> Part(std::span<T> values, size_t i) const {
    return values.subspan(borders_[i], borders_[i + 1] - borders_[i]);
  }

  const v1::Optimizer optimizer_;
  const std::vector<int64_t> borders_;
  const int parameters_;
  std::vector<SliceOptimizer> slices_;
};

inline v1::Optimizer OptimizerFrom(const std::string& text) { return Parse<v1::Optimizer>(text); }

}  // namespace cadre
