#include "tests/cluster/pull_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "absl/time/time.h"
#include "model/parameter_index.h"
#include "server/client/rounds_client.h"
#include "server/client/shard_span.h"

namespace cadre::testing {
namespace {

// Pulls one shard of the last version of the run. The status of an ended run does not state which
// aggregator stores the shard, so all are tried; the others refuse.
absl::Status PullShard(const v1::StatusReply& status, const ParameterIndex& index,
                       const Interval& span, std::span<float> out) {
  v1::PullRequest request;
  request.set_run(status.runs(0).run());
  request.set_lineage(status.runs(0).lineage());
  request.set_version(status.runs(0).version());
  for (const v1::Range& range : index.RangesOf(span.begin, span.end)) {
    *request.add_ranges() = range;
  }
  absl::Status pulled = absl::NotFoundError("no aggregator is connected");
  for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
    RoundsClient client([&] { return aggregator.member().address(); },
                        {.silence = absl::Seconds(20)});
    Traffic traffic;
    pulled = client.Pull(request, out, &traffic);
    if (pulled.ok()) break;
  }
  return pulled;
}

}  // namespace

absl::StatusOr<std::vector<float>> PullModel(const v1::StatusReply& status,
                                             const v1::RunSpec& spec) {
  const absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  if (!index.ok()) return index.status();
  std::vector<float> weights(index->size());
  const int shards = status.aggregators_size();
  for (int shard = 0; shard < shards; ++shard) {
    const Interval span = ShardSpan(index->size(), shard, shards);
    const absl::Status pulled =
        PullShard(status, *index, span, std::span(weights).subspan(span.begin, span.size()));
    if (!pulled.ok()) return pulled;
  }
  return weights;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    // Comparisons with NaN are false; NaN must not count as equal.
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace cadre::testing
