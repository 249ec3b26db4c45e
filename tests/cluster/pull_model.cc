#include "tests/cluster/pull_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "absl/time/clock.h"
#include "model/parameter_index.h"
#include "server/client/rounds_client.h"
#include "server/client/shard_span.h"

namespace cadre::testing {
namespace {

// One shard's part of the run's last version, from whichever aggregator has it: the status of a run
// that has ended no longer says which, and the others refuse.
absl::Status PullShard(const v1::StatusReply& status, const ParameterIndex& index,
                       const FlatSpan& span, std::span<float> out) {
  v1::PullRequest request;
  request.set_run(status.runs(0).run());
  request.set_lineage(status.runs(0).lineage());
  request.set_version(status.runs(0).version());
  for (const v1::Range& range :
       index.RangesOf(static_cast<int64_t>(span.begin), static_cast<int64_t>(span.end))) {
    *request.add_ranges() = range;
  }
  absl::Status pulled = absl::NotFoundError("no aggregator is there");
  for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
    RoundsClient client([&] { return aggregator.member().address(); });
    Traffic traffic;
    pulled = client.Pull(request, out, absl::Now() + absl::Seconds(20), &traffic);
    if (pulled.ok()) break;
  }
  return pulled;
}

}  // namespace

absl::StatusOr<std::vector<float>> PullModel(const v1::StatusReply& status,
                                             const v1::RunSpec& spec) {
  const absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  if (!index.ok()) return index.status();
  std::vector<float> weights(static_cast<size_t>(index->size()));
  const auto shards = static_cast<uint32_t>(status.aggregators_size());
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const FlatSpan span = ShardSpan(weights.size(), shard, shards);
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
    // A NaN compares with nothing; it must not pass for equal.
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace cadre::testing
