// Buckets and algorithms for a given link.
//
// Bucket sizes are a trade-off: every collective has a latency, so buckets should be large; but a
// bucket cannot be sent before its last gradient is computed, so the first one should be small.
// AUTO takes the smallest size for which latency is a small part of the time (BucketElements).
// Other policies use a fixed size, so that the order of sums, and thus the bits of a run, do not
// depend on measurements.
#include "plan/plan_collectives.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plan/cost/communication_cost.h"
#include "plan/layer_part.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// NATIVE, which depends on the device, is last.
constexpr v1::Cluster::CollectivePolicy kPolicies[] = {
    v1::Cluster::PAPER, v1::Cluster::RING,  v1::Cluster::BUTTERFLY, v1::Cluster::HALVING_DOUBLING,
    v1::Cluster::AUTO,  v1::Cluster::NATIVE};
constexpr absl::string_view kPolicyNames[] = {"paper", "ring",  "butterfly", "halving-doubling",
                                              "auto",  "native"};
// The ring comes first, so that it is chosen if costs are equal.
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                     Algorithm::kButterfly, Algorithm::kNative};

int ChunksOf(int64_t elements) {
  return std::max<int64_t>(1, LargestPart(elements, kChunkElements));
}

// Batch norms follow convolutions and are as small.
bool IsConvolutional(const GraphLayer& layer) {
  return layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kBatchNorm;
}

std::vector<int> KindsOf(const Graph& graph, v1::Cluster::CollectivePolicy policy) {
  if (policy != v1::Cluster::PAPER) return {};
  std::vector<int> kinds;
  for (const GraphLayer& layer : graph.layers()) kinds.push_back(IsConvolutional(layer) ? 1 : 0);
  return kinds;
}

// The algorithm of a policy; nullopt for AUTO, which decides by cost.
std::optional<Algorithm> PrescribedAlgorithm(v1::Cluster::CollectivePolicy policy,
                                             const GraphLayer& layer) {
  switch (policy) {
    case v1::Cluster::RING:
      return Algorithm::kRing;
    case v1::Cluster::BUTTERFLY:
      return Algorithm::kButterfly;
    case v1::Cluster::HALVING_DOUBLING:
      return Algorithm::kHalvingDoubling;
    case v1::Cluster::NATIVE:
      return Algorithm::kNative;
    case v1::Cluster::PAPER:
      return IsConvolutional(layer) ? Algorithm::kButterfly : Algorithm::kRing;
    default:
      return std::nullopt;
  }
}

// A bucket's layers are of one kind, so any of them decides.
std::optional<Algorithm> PrescribedAlgorithm(v1::Cluster::CollectivePolicy policy,
                                             const Graph& graph, const ParameterIndex& index,
                                             const Bucket& bucket) {
  return PrescribedAlgorithm(policy, graph[index[bucket.parameters.front()].layer]);
}

BucketCost CostOf(Algorithm algorithm, int64_t elements, int sum, int own,
                  const LinkProfile& reducing, const LinkProfile& gathering) {
  BucketCost cost{.bytes = kBytesPerWord * elements};
  const int64_t chunks = ChunksOf(elements);
  const int64_t bytes = cost.bytes / chunks;
  if (reducing.known()) {
    cost.reduce_scatter =
        chunks * SecondsOf(Collective::kReduceScatter, algorithm, sum, bytes, reducing);
  }
  if (gathering.known()) {
    cost.all_gather = chunks * SecondsOf(Collective::kAllGather, algorithm, own, bytes, gathering);
  }
  return cost;
}

// The cheapest algorithm, and its seconds.
std::pair<Algorithm, double> Cheapest(int64_t elements, int sum, int own,
                                      const LinkProfile& reducing, const LinkProfile& gathering) {
  const bool native = reducing.native() && gathering.native();
  std::pair<Algorithm, double> best = {Algorithm::kRing, std::numeric_limits<double>::infinity()};
  for (const Algorithm algorithm : kAlgorithms) {
    if (algorithm == Algorithm::kNative && !native) continue;
    const double seconds = CostOf(algorithm, elements, sum, own, reducing, gathering).seconds();
    if (seconds < best.second) best = {algorithm, seconds};
  }
  return best;
}

}  // namespace

Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::Cluster::CollectivePolicy policy, const LinkProfile& link,
                     v1::LinkProfile::Kind link_kind, std::optional<int64_t> bucket_elements,
                     const LinkOfAxes& link_of) {
  BucketRules rules{.kinds = KindsOf(graph, policy)};
  const bool measured = link.known() && IsAuto(policy);
  rules.max_elements = [&](int ranks) {
    if (bucket_elements) return *bucket_elements;
    return measured ? BucketElements(ranks, link) : kUnmeasuredBucketElements;
  };
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index, rules);
  for (Bucket& bucket : plan.buckets) {
    const std::optional<Algorithm> prescribed = PrescribedAlgorithm(policy, graph, index, bucket);
    bucket.algorithm = prescribed
                           ? *prescribed
                           : CheapestFor(plan, index, bucket, link_of ? link_of(bucket.axes) : link,
                                         link_of ? link_of(bucket.owner_axes()) : link);
  }
  plan.link = link;
  plan.link_kind = link_kind;
  return plan;
}

int ChunksOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket) {
  return ChunksOf(BufferElements(plan, index, bucket));
}

BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& link) {
  return CostOf(plan, index, bucket, algorithm, link, link);
}

BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& reducing, const LinkProfile& gathering) {
  return CostOf(algorithm, BufferElements(plan, index, bucket), plan.mesh.Size(bucket.axes),
                plan.mesh.Size(bucket.owner_axes()), reducing, gathering);
}

Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& reducing, const LinkProfile& gathering) {
  return Cheapest(BufferElements(plan, index, bucket), plan.mesh.Size(bucket.axes),
                  plan.mesh.Size(bucket.owner_axes()), reducing, gathering)
      .first;
}

double MinCollectiveSeconds(v1::Cluster::CollectivePolicy policy, const GraphLayer& layer,
                            int64_t elements, int sum, int own, const LinkProfile& reducing,
                            const LinkProfile& gathering) {
  if (const auto prescribed = PrescribedAlgorithm(policy, layer)) {
    return CostOf(*prescribed, elements, sum, own, reducing, gathering).seconds();
  }
  return Cheapest(elements, sum, own, reducing, gathering).second;
}

double AllReduceSeconds(const Plan& plan, const Graph& graph, const ParameterIndex& index,
                        v1::Cluster::CollectivePolicy policy) {
  if (!plan.link.known()) return 0;
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    const int ranks = plan.mesh.Size(bucket.axes);
    const int64_t bytes = kBytesPerWord * BufferElements(plan, index, bucket);
    const Algorithm algorithm =
        PrescribedAlgorithm(policy, graph, index, bucket)
            .value_or(BestAlgorithm(Collective::kAllReduce, ranks, bytes, plan.link));
    seconds += SecondsOf(Collective::kAllReduce, algorithm, ranks, bytes, plan.link);
  }
  return seconds;
}

std::string LinkKindText(v1::LinkProfile::Kind kind) {
  return kind == v1::LinkProfile::KIND_UNSPECIFIED ? "" : EnumText(kind);
}

std::string LinkText(const LinkProfile& link, v1::LinkProfile::Kind kind) {
  if (!link.known()) return "link not measured";
  return absl::StrFormat("%.1f us a message, %.3g GB/s%s%s", 1e6 * link.alpha, 1e-9 / link.beta,
                         kind == v1::LinkProfile::KIND_UNSPECIFIED ? "" : ", ", LinkKindText(kind));
}

absl::Status CheckNative(const Plan& plan, bool has_native) {
  if (has_native) return absl::OkStatus();
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].algorithm != Algorithm::kNative) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", b,
                     " uses algorithm 'native' (NCCL), but the group computes on CPUs; set "
                     "cluster.collectives to AUTO, or cluster.device to CUDA"));
  }
  return absl::OkStatus();
}

bool IsAuto(v1::Cluster::CollectivePolicy policy) {
  return policy == v1::Cluster::AUTO || policy == v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED;
}

std::span<const v1::Cluster::CollectivePolicy> AllPolicies() {
  return std::span(kPolicies).first(std::size(kPolicies) - 1);
}

absl::string_view PolicyName(v1::Cluster::CollectivePolicy policy) {
  const auto found = std::find(std::begin(kPolicies), std::end(kPolicies), policy);
  return found == std::end(kPolicies) ? "auto" : kPolicyNames[found - std::begin(kPolicies)];
}

std::optional<v1::Cluster::CollectivePolicy> PolicyFromName(absl::string_view name) {
  const auto found = std::find(std::begin(kPolicyNames), std::end(kPolicyNames), name);
  if (found == std::end(kPolicyNames)) return std::nullopt;
  return kPolicies[found - std::begin(kPolicyNames)];
}

}  // namespace cadre
