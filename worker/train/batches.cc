#include "worker/train/batches.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "tensor/layout.h"

namespace cadre {

MicroBatch RowsOf(const Replica& replica, int64_t samples) {
  return {replica.network().batches().InputRows(samples),
          replica.network().batches().LabelRows(samples)};
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

namespace {

// Calls `visit` with this rank's part of every batch of test samples [begin, end).
absl::Status ForEachTestBatch(Replica& replica, const Dataset& test, int64_t begin, int64_t end,
                              int threads, TrainerProgress& progress,
                              const std::function<absl::Status(const BatchView&)>& visit) {
  const int64_t batch = replica.EvaluationSamples();
  BatchLoader loader(test,
                     TestRows({.begin = begin,
                               .end = end,
                               .batch = batch,
                               .rank = [&](int64_t samples) { return RowsOf(replica, samples); }}),
                     {.threads = threads});
  for (int64_t step = 0; begin + step * batch < end; ++step) {
    const int64_t first = begin + step * batch;
    const int64_t samples = std::min(batch, end - first);
    CADRE_ASSIGN_OR_RETURN(const Batch* loaded, loader.Next(step));
    for (const BatchView& view : ViewsOf(*loaded, replica, samples, first)) {
      CADRE_RETURN_IF_ERROR(visit(view));
    }
    progress.Advance();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int threads, TrainerProgress& progress) {
  if (begin < 0 || end > test.size()) {
    return absl::InvalidArgumentError("the samples to evaluate are not in the test split");
  }
  LossPart mine;
  CADRE_RETURN_IF_ERROR(ForEachTestBatch(
      replica, test, begin, end, threads, progress, [&](const BatchView& view) -> absl::Status {
        CADRE_ASSIGN_OR_RETURN(const LossPart part, replica.network().Evaluate(view));
        mine += part;
        return absl::OkStatus();
      }));
  CADRE_ASSIGN_OR_RETURN(const LossPart sum, SumOverGroup(mine, replica.comms().All()));
  if (std::isfinite(sum.loss)) return sum;
  // The sum is equal on all ranks, so together they evaluate again to find the layer.
  uint64_t first = replica.graph().size();
  CADRE_RETURN_IF_ERROR(ForEachTestBatch(
      replica, test, begin, end, threads, progress, [&](const BatchView& view) -> absl::Status {
        CADRE_ASSIGN_OR_RETURN(const int layer,
                               replica.network().FirstNotFinite(view, /*training=*/false));
        first = std::min<uint64_t>(first, layer);
        return absl::OkStatus();
      }));
  return Annotate(replica.NonFiniteLoss(sum.loss, first),
                  absl::StrCat("test samples ", begin, " to ", end));
}

RandomBatch::RandomBatch(const Replica& replica, int64_t samples) {
  const Graph& graph = replica.graph();
  const Interval rows = replica.network().batches().InputRows(samples);
  const int64_t elements = graph.input().elements();
  const uint64_t classes = graph.classes();
  for (int64_t i = rows.begin * elements; i < rows.end * elements; ++i) {
    inputs_.push_back(graph.takes_tokens() ? RandomBits(1, RandomStream::kTest, 0, i) % classes
                                           : RandomNormal(1, RandomStream::kTest, 0, i));
  }
  const Interval label_rows = replica.network().batches().LabelRows(samples);
  for (int64_t i = label_rows.begin * graph.labels_per_sample();
       i < label_rows.end * graph.labels_per_sample(); ++i) {
    labels_.push_back(RandomBits(1, RandomStream::kTest, 1, i) % classes);
  }
}

}  // namespace cadre
