#include "plan/norm_statistics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "model/problem.h"
#include "plan/memory.h"

namespace cadre {
namespace {

// Whether some part has one element if n elements are divided into near-equal parts.
bool HasPartOfOne(int64_t n, int64_t parts) { return n > 0 && n < 2 * parts; }

}  // namespace

bool HasRankWithOneValue(const GraphLayer& layer, const NormParts& parts,
                         std::span<const int64_t> micro_batches) {
  return layer.kind == LayerKind::kBatchNorm && layer.settings.batch_norm().per_rank() &&
         HasPartOfOne(layer.output[0], parts.rows) &&
         HasPartOfOne(layer.output[1], parts.columns) &&
         std::any_of(micro_batches.begin(), micro_batches.end(),
                     [&](int64_t samples) { return HasPartOfOne(samples, parts.samples); });
}

absl::Status CheckNormStatistics(const v1::RunSpec& spec, const Graph& graph, const Plan& plan) {
  return CheckNormStatistics(MicroBatchSizes(spec), graph, plan);
}

absl::Status CheckNormStatistics(std::span<const int64_t> micro_batches, const Graph& graph,
                                 const Plan& plan) {
  for (size_t l = 0; l < graph.layers().size(); ++l) {
    const GraphLayer& layer = graph.layers()[l];
    if (layer.kind != LayerKind::kBatchNorm) continue;
    const auto parts_of = [&](const char* index) {
      return plan.mesh.Size(plan.layers[l].axes(index));
    };
    const NormParts parts{parts_of("samples"), parts_of("height"), parts_of("width")};
    for (const int64_t samples : micro_batches) {
      if (!HasRankWithOneValue(layer, parts, {&samples, 1})) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", Quoted(layer.name),
          ": batch_norm.per_rank gives a rank one value per channel: ", Counted(samples, "sample"),
          " of a micro-batch over ", Counted(parts.samples, "rank"), ", ", layer.output[0], " x ",
          layer.output[1], " positions over ", Counted(parts.rows * parts.columns, "rank"),
          "; the output would be the shift, whatever the input. Unset per_rank, increase "
          "batch_per_group, or use fewer micro_batches or ranks_per_group"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
