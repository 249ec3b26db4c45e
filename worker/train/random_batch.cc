#include "worker/train/random_batch.h"

#include "base/random.h"

namespace cadre {

RandomBatch::RandomBatch(const Replica& replica, int64_t samples) {
  const Graph& graph = replica.graph();
  const Interval rows = replica.InputRows(samples);
  const int64_t elements = graph.input().elements();
  for (int64_t i = rows.begin * elements; i < rows.end * elements; ++i) {
    const auto at = static_cast<uint64_t>(i);
    inputs_.push_back(graph.takes_tokens()
                          ? static_cast<float>(RandomBits(1, RandomStream::kTest, 0, at) %
                                               static_cast<uint64_t>(graph.classes()))
                          : RandomNormal(1, RandomStream::kTest, 0, at));
  }
  const Interval label_rows = replica.LabelRows(samples);
  for (int64_t i = label_rows.begin * graph.labels_per_sample();
       i < label_rows.end * graph.labels_per_sample(); ++i) {
    labels_.push_back(static_cast<int32_t>(RandomBits(1, RandomStream::kTest, 1, i) %
                                           static_cast<uint64_t>(graph.classes())));
  }
}

}  // namespace cadre
