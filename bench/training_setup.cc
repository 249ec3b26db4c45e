#include "bench/training_setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "spec/text.h"
#include "spec/validate.h"

namespace cadre {

absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model) {
  const bool is_file = model.model.find(".textproto") != std::string::npos;
  CADRE_ASSIGN_OR_RETURN(
      RunSpecFile file,
      ReadRunSpec(is_file ? model.model : absl::StrCat(model.zoo, "/", model.model, ".textproto")));
  v1::RunSpec& spec = file.spec;
  spec.set_batch_per_group(static_cast<uint32_t>(model.batch));
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_ranks_per_group(static_cast<uint32_t>(model.ranks));
  cluster.set_model_ranks(static_cast<uint32_t>(model.model_ranks));
  cluster.set_space_ranks(static_cast<uint32_t>(model.space_ranks));
  CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(spec)));
  return std::move(file.spec);
}

RandomBatch::RandomBatch(const Replica& replica, int64_t samples) {
  const Graph& graph = replica.graph();
  const Rows rows = replica.InputRows(samples);
  const int64_t elements = graph.input().elements();
  for (int64_t i = rows.begin * elements; i < rows.end * elements; ++i) {
    const auto at = static_cast<uint64_t>(i);
    inputs_.push_back(graph.takes_tokens()
                          ? static_cast<float>(RandomBits(1, RandomStream::kTest, 0, at) %
                                               static_cast<uint64_t>(graph.classes()))
                          : RandomNormal(1, RandomStream::kTest, 0, at));
  }
  const Rows label_rows = replica.LabelRows(samples);
  for (int64_t i = label_rows.begin * graph.labels_per_sample();
       i < label_rows.end * graph.labels_per_sample(); ++i) {
    labels_.push_back(
        static_cast<int32_t>(RandomBits(1, RandomStream::kTest, 1, static_cast<uint64_t>(i)) %
                             static_cast<uint64_t>(graph.classes())));
  }
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace cadre
