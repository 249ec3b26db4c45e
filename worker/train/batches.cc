#include "worker/train/batches.h"

#include "tensor/layout.h"

namespace cadre {

MicroBatch RowsOf(const Replica& replica, int64_t samples) {
  const Rows inputs = replica.InputRows(samples);
  const Rows labels = replica.LabelRows(samples);
  return {{inputs.begin, inputs.end}, {labels.begin, labels.end}};
}

std::vector<BatchView> ViewsOf(const Batch& batch, const Replica& replica, int64_t samples,
                               int64_t first_position) {
  const int64_t elements = replica.graph().input().elements();
  const int64_t labels_per = replica.graph().labels_per_sample();
  const auto parts = static_cast<int64_t>(batch.rows.micro_batches.size());
  std::vector<BatchView> views;
  for (int64_t i = 0; i < parts; ++i) {
    const MicroBatch& part = batch.rows.micro_batches[static_cast<size_t>(i)];
    const int64_t begin = PartBegin(samples, i, parts);
    views.push_back(
        {.samples = PartBegin(samples, i + 1, parts) - begin,
         .inputs = batch.inputs.span().subspan(static_cast<size_t>(part.inputs.begin * elements),
                                               static_cast<size_t>(part.inputs.size() * elements)),
         .labels = std::span(batch.labels)
                       .subspan(static_cast<size_t>(part.labels.begin * labels_per),
                                static_cast<size_t>(part.labels.size() * labels_per)),
         .first_position = first_position + begin});
  }
  return views;
}

}  // namespace cadre
