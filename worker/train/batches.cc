#include "worker/train/batches.h"

#include <algorithm>

#include "base/random.h"
#include "base/status.h"
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
         .first_position = first_position + begin,
         .first_in_step = begin});
  }
  return views;
}

absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int threads, TrainerProgress& progress) {
  const int64_t batch = replica.EvaluationSamples();
  if (begin < 0 || end > test.size()) {
    return absl::InvalidArgumentError("the samples to evaluate are not in the test split");
  }
  BatchLoader loader(test,
                     TestRows({.begin = begin,
                               .end = end,
                               .batch = batch,
                               .rank = [&](int64_t samples) { return RowsOf(replica, samples); }}),
                     {.threads = threads});
  LossPart mine;
  for (int64_t step = 0; begin + step * batch < end; ++step) {
    const int64_t first = begin + step * batch;
    const int64_t samples = std::min(batch, end - first);
    CADRE_ASSIGN_OR_RETURN(const Batch* loaded, loader.Next(step));
    for (const BatchView& view : ViewsOf(*loaded, replica, samples, first)) {
      CADRE_ASSIGN_OR_RETURN(const LossPart part, replica.Evaluate(view));
      mine += part;
    }
    progress.Advance();
  }
  return SumOverGroup(mine, replica.comms().All());
}

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
