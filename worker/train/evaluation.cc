#include "worker/train/evaluation.h"

#include <algorithm>

#include "base/status.h"
#include "worker/data/batch_loader.h"
#include "worker/train/batches.h"

namespace cadre {

absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int64_t batch) {
  if (begin < 0 || end > test.size()) {
    return absl::InvalidArgumentError("the samples to evaluate are not in the test split");
  }
  BatchLoader loader(test,
                     TestRows({.begin = begin,
                               .end = end,
                               .batch = batch,
                               .rank = [&](int64_t samples) { return RowsOf(replica, samples); }}),
                     {});
  LossPart mine;
  for (int64_t step = 0; begin + step * batch < end; ++step) {
    const int64_t first = begin + step * batch;
    const int64_t samples = std::min(batch, end - first);
    CADRE_ASSIGN_OR_RETURN(const Batch* loaded, loader.Next(step));
    for (const BatchView& view : ViewsOf(*loaded, replica, samples, first)) {
      CADRE_ASSIGN_OR_RETURN(const LossPart part, replica.Evaluate(view));
      mine.loss += part.loss;
      mine.correct += part.correct;
      mine.samples += part.samples;
    }
  }
  uint64_t counts[] = {static_cast<uint64_t>(mine.correct), static_cast<uint64_t>(mine.samples)};
  double loss[] = {mine.loss};
  CADRE_RETURN_IF_ERROR(replica.comms().All().AllReduceSum(std::span<uint64_t>(counts)));
  CADRE_RETURN_IF_ERROR(replica.comms().All().AllReduceSum(std::span<double>(loss)));
  return LossPart{
      .loss = loss[0], .correct = static_cast<int64_t>(counts[0]), .samples = static_cast<int64_t>(counts[1])};
}

}  // namespace cadre
