// Ranks differ: where a dimension is not divisible some have larger parts, inner ranks have two
// halos, and stages have different layers. So all ranks count. The rank that exceeds its limit most
// determines the number of blocks, which is then checked on all ranks.
//
// Limits. The number is found by bisection, which assumes that more blocks need less memory.
// Rarely, a block that is small compared with the outputs that it keeps makes that untrue by a few
// percent.
#include "plan/memory_fit.h"

#include <algorithm>
#include <limits>

#include "plan/memory.h"
#include "plan/pipeline.h"

namespace cadre {
namespace {

class Fitter {
 public:
  Fitter(const v1::RunSpec& spec, const Graph& graph, const ParameterIndex& index,
         v1::Cluster::Device device, std::span<const int64_t> limits, const Plan& plan)
      : spec_(spec),
        graph_(graph),
        index_(index),
        device_(device),
        limits_(limits),
        order_(PassOrderOf(spec.cluster().pipeline(), MicroBatches(spec), graph, plan)) {}

  struct Ranks {
    MemoryFit fit;
    // The rank that exceeds its limit most, or has the least memory left.
    int tightest = 0;
  };
  Ranks Check(const Plan& plan) const {
    Ranks ranks;
    int64_t most = std::numeric_limits<int64_t>::min();
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
      const int64_t bytes = BytesOf(plan, rank);
      ranks.fit.bytes = std::max(ranks.fit.bytes, bytes);
      if (limits_[rank] <= 0) continue;
      ranks.fit.fits = ranks.fit.fits && bytes <= limits_[rank];
      if (bytes - limits_[rank] <= most) continue;
      most = bytes - limits_[rank];
      ranks.tightest = rank;
    }
    return ranks;
  }

  bool Fits(const Plan& plan, int rank) const {
    return limits_[rank] <= 0 || BytesOf(plan, rank) <= limits_[rank];
  }

 private:
  int64_t BytesOf(const Plan& plan, int rank) const {
    return DeviceBytes(PlannedMemory(spec_, graph_, index_, plan, rank, device_,
                                     order_.InFlight(StageIn(order_, plan.mesh, rank))),
                       device_);
  }

  const v1::RunSpec& spec_;
  const Graph& graph_;
  const ParameterIndex& index_;
  const v1::Cluster::Device device_;
  const std::span<const int64_t> limits_;
  const PassOrder order_;
};

}  // namespace

MemoryFit FitOf(const v1::RunSpec& spec, const Graph& graph, const ParameterIndex& index,
                const Plan& plan, v1::Cluster::Device device, std::span<const int64_t> limits) {
  return Fitter(spec, graph, index, device, limits, plan).Check(plan).fit;
}

MemoryFit RecomputeAsNeeded(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, v1::Cluster::Device device,
                            std::span<const int64_t> limits, std::span<const Interval> blocks,
                            Plan& plan) {
  const Fitter fitter(spec, graph, index, device, limits, plan);
  const auto with = [&](size_t count) -> const Plan& {
    plan.recomputed.assign(blocks.begin(), blocks.begin() + count);
    return plan;
  };
  size_t count = 0;
  Fitter::Ranks ranks = fitter.Check(with(0));
  while (!ranks.fit.fits && count < blocks.size()) {
    size_t too_few = count;
    count = blocks.size();
    while (count - too_few > 1) {
      const size_t middle = too_few + (count - too_few) / 2;
      (fitter.Fits(with(middle), ranks.tightest) ? count : too_few) = middle;
    }
    ranks = fitter.Check(with(count));
  }
  return ranks.fit;
}

}  // namespace cadre
