#include "worker/train/random_batch.h"

#include "base/random.h"

namespace cadre {

RandomBatch::RandomBatch(const Replica& replica, int64_t samples) {
  const Graph& graph = replica.graph();
  const Interval rows = replica.InputRows(samples);
  const int64_t elements = graph.input().elements();
  const uint64_t classes = graph.classes();
  for (int64_t i = rows.begin * elements; i < rows.end * elements; ++i) {
    inputs_.push_back(graph.takes_tokens() ? RandomBits(1, RandomStream::kTest, 0, i) % classes
                                           : RandomNormal(1, RandomStream::kTest, 0, i));
  }
  const Interval label_rows = replica.LabelRows(samples);
  for (int64_t i = label_rows.begin * graph.labels_per_sample();
       i < label_rows.end * graph.labels_per_sample(); ++i) {
    labels_.push_back(RandomBits(1, RandomStream::kTest, 1, i) % classes);
  }
}

}  // namespace cadre
