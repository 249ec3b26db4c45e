#include "worker/data/dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/graph.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// What a synthetic data set needs beyond what its own fields may be by themselves.
absl::Status CheckSynthetic(const v1::SyntheticData& data, int64_t classes) {
  if (data.classes() < 1 || data.classes() > classes) {
    return absl::InvalidArgumentError(absl::StrCat("data.synthetic.classes is ", data.classes(),
                                                   "; the model tells ", classes, " apart"));
  }
  if (data.train_samples() < 1 || data.test_samples() < 1) {
    return absl::InvalidArgumentError("data.synthetic needs train_samples and test_samples >= 1");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSample(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("no sample ", index, " among ", size));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::RunSpec& spec, Split split) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const v1::Image& input = spec.model().input();
  const Shape shape{input.channels(), input.height(), input.width()};
  switch (spec.data().source_case()) {
    case v1::Data::kIdx:
      return OpenIdxDataset(spec.data().idx(), split, shape, graph.classes());
    case v1::Data::kSynthetic:
      CADRE_RETURN_IF_ERROR(CheckSynthetic(spec.data().synthetic(), graph.classes()));
      return MakeSyntheticDataset(spec.data().synthetic(), split, shape, spec.seed());
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("data: no source is given");
}

}  // namespace cadre
