#include "plan/norm_statistics.h"

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "model/problem.h"
#include "plan/memory.h"

namespace cadre {
namespace {

// Whether some part has one element if n elements are divided into near-equal parts.
bool HasPartOfOne(int64_t n, int64_t parts) { return n > 0 && n < 2 * parts; }

}  // namespace

absl::Status CheckNormStatistics(const v1::RunSpec& spec, const Graph& graph, const Plan& plan) {
  for (size_t l = 0; l < graph.layers().size(); ++l) {
    const GraphLayer& layer = graph.layers()[l];
    if (layer.kind != LayerKind::kBatchNorm || !layer.settings.batch_norm().per_rank()) continue;
    const auto parts = [&](const char* index) {
      return plan.mesh.Size(plan.layers[l].axes(index));
    };
    const int64_t of_samples = parts("samples"), of_rows = parts("height");
    const int64_t of_columns = parts("width");
    const int64_t rows = layer.output[0], columns = layer.output[1];
    if (!HasPartOfOne(rows, of_rows) || !HasPartOfOne(columns, of_columns)) continue;
    for (const int64_t samples : MicroBatchSizes(spec)) {
      if (!HasPartOfOne(samples, of_samples)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", Quoted(layer.name),
          ": batch_norm.per_rank gives a rank one value per channel: ", Counted(samples, "sample"),
          " of a micro-batch over ", Counted(of_samples, "rank"), ", ", rows, " x ", columns,
          " positions over ", Counted(of_rows * of_columns, "rank"),
          "; the output would be the shift, whatever the input. Unset per_rank, increase "
          "batch_per_group, or use fewer micro_batches or ranks_per_group"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
