#include "worker/train/evaluation.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/status.h"

namespace cadre {
namespace {

std::vector<int64_t> Indices(int64_t first, const Rows& rows) {
  std::vector<int64_t> indices(static_cast<size_t>(rows.size()));
  std::iota(indices.begin(), indices.end(), first + rows.begin);
  return indices;
}

}  // namespace

absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int64_t batch) {
  if (begin < 0 || end > test.size()) {
    return absl::InvalidArgumentError("the samples to evaluate are not in the test split");
  }
  LossPart mine;
  std::vector<float> images;
  std::vector<int32_t> image_labels;
  std::vector<int32_t> labels;
  for (int64_t first = begin; first < end; first += batch) {
    const int64_t samples = std::min(batch, end - first);
    const std::vector<int64_t> image_rows = Indices(first, replica.ImageRows(samples));
    const std::vector<int64_t> label_rows = Indices(first, replica.LabelRows(samples));
    images.resize(image_rows.size() * static_cast<size_t>(test.sample_shape().elements()));
    image_labels.resize(image_rows.size());
    labels.resize(label_rows.size());
    CADRE_RETURN_IF_ERROR(test.Get(image_rows, images, image_labels));
    CADRE_RETURN_IF_ERROR(test.GetLabels(label_rows, labels));
    CADRE_ASSIGN_OR_RETURN(const LossPart part, replica.Evaluate(samples, images, labels));
    mine.loss += part.loss;
    mine.correct += part.correct;
    mine.samples += part.samples;
  }
  uint64_t counts[] = {static_cast<uint64_t>(mine.correct), static_cast<uint64_t>(mine.samples)};
  double loss[] = {mine.loss};
  CADRE_RETURN_IF_ERROR(replica.comms().All().AllReduceSum(std::span<uint64_t>(counts)));
  CADRE_RETURN_IF_ERROR(replica.comms().All().AllReduceSum(std::span<double>(loss)));
  return LossPart{.loss = loss[0],
                  .correct = static_cast<int64_t>(counts[0]),
                  .samples = static_cast<int64_t>(counts[1])};
}

}  // namespace cadre
