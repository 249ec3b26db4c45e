#include "worker/train/batches.h"

#include "tensor/layout.h"

namespace cadre {

MicroBatch RowsOf(const Replica& replica, int64_t samples) {
  return {replica.InputRows(samples), replica.LabelRows(samples)};
}

std::vector<BatchView> ViewsOf(const Batch& batch, const Replica& replica, int64_t samples,
                               int64_t first_position) {
  const int64_t elements = replica.graph().input().elements();
  const int64_t labels_per = replica.graph().labels_per_sample();
  const auto parts = std::ssize(batch.rows.micro_batches);
  std::vector<BatchView> views;
  for (int64_t i = 0; i < parts; ++i) {
    const MicroBatch& part = batch.rows.micro_batches[i];
    const int64_t begin = PartBegin(samples, i, parts);
    views.push_back(
        {.samples = PartBegin(samples, i + 1, parts) - begin,
         .inputs = batch.inputs.span().subspan(part.inputs.begin * elements,
                                               part.inputs.size() * elements),
         .labels = std::span(batch.labels)
                       .subspan(part.labels.begin * labels_per, part.labels.size() * labels_per),
         .first_position = first_position + begin});
  }
  return views;
}

}  // namespace cadre
