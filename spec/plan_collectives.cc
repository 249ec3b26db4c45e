#include "spec/plan_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

constexpr int64_t kBytesPerElement = sizeof(float);

constexpr v1::CollectivePolicy kPolicies[] = {v1::PAPER, v1::RING, v1::BUTTERFLY,
                                              v1::HALVING_DOUBLING, v1::AUTO};
// Ring first: it is taken where costs are equal.
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                     Algorithm::kButterfly, Algorithm::kNative};

// Batch norms stand behind convolutions and are as small.
bool IsConvolutional(const GraphLayer& layer) {
  return layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kBatchNorm;
}

std::vector<int> KindsOf(const Graph& graph, v1::CollectivePolicy policy) {
  if (policy != v1::PAPER) return {};
  std::vector<int> kinds;
  for (const GraphLayer& layer : graph.layers()) kinds.push_back(IsConvolutional(layer) ? 1 : 0);
  return kinds;
}

// What the policy says whatever it costs; nothing for AUTO.
std::optional<Algorithm> Prescribed(v1::CollectivePolicy policy, const Graph& graph,
                                    const ParameterIndex& index, const Bucket& bucket) {
  switch (policy) {
    case v1::RING:
      return Algorithm::kRing;
    case v1::BUTTERFLY:
      return Algorithm::kButterfly;
    case v1::HALVING_DOUBLING:
      return Algorithm::kHalvingDoubling;
    case v1::NATIVE:
      return Algorithm::kNative;
    case v1::PAPER:
      // Its layers are of one kind.
      return IsConvolutional(graph[index[bucket.parameters.front()].layer]) ? Algorithm::kButterfly
                                                                            : Algorithm::kRing;
    default:
      return std::nullopt;
  }
}

}  // namespace

Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::CollectivePolicy policy, const LinkProfile& link, std::string link_kind,
                     std::optional<int64_t> bucket_elements) {
  return WithCollectives(
      std::move(plan), graph, index, policy, link, std::move(link_kind), bucket_elements,
      [&](const std::vector<std::string>&) -> const LinkProfile& { return link; });
}

Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::CollectivePolicy policy, const LinkProfile& link, std::string link_kind,
                     std::optional<int64_t> bucket_elements, const LinkOfAxes& link_of) {
  BucketRules rules{.kinds = KindsOf(graph, policy)};
  const bool measured =
      link.known() && (policy == v1::AUTO || policy == v1::COLLECTIVE_POLICY_UNSPECIFIED);
  rules.most_elements = [&](int ranks) {
    if (bucket_elements) return *bucket_elements;
    return measured ? BucketElements(ranks, link) : kUnmeasuredBucketElements;
  };
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index, rules);
  for (Bucket& bucket : plan.buckets) {
    const std::optional<Algorithm> prescribed = Prescribed(policy, graph, index, bucket);
    bucket.algorithm = prescribed ? *prescribed
                                  : CheapestFor(plan, index, bucket, link_of(bucket.axes),
                                                link_of(OwnerAxes(bucket)));
  }
  plan.link = link;
  plan.link_kind = std::move(link_kind);
  return plan;
}

int ChunksOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket) {
  const int64_t elements = BufferElements(plan, index, bucket);
  return static_cast<int>(std::max<int64_t>(1, (elements + kChunkElements - 1) / kChunkElements));
}

BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& link) {
  return CostOf(plan, index, bucket, algorithm, link, link);
}

BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& reducing, const LinkProfile& gathering) {
  BucketCost cost{.bytes = kBytesPerElement * BufferElements(plan, index, bucket)};
  const int sum = plan.mesh.Size(bucket.axes);
  const int own = sum * plan.mesh.Size(bucket.same);
  const int chunks = ChunksOf(plan, index, bucket);
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

std::vector<std::string> OwnerAxes(const Bucket& bucket) {
  std::vector<std::string> axes = bucket.axes;
  axes.insert(axes.end(), bucket.same.begin(), bucket.same.end());
  return axes;
}

Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& link) {
  return CheapestFor(plan, index, bucket, link, link);
}

Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& reducing, const LinkProfile& gathering) {
  Algorithm best = Algorithm::kRing;
  double least = CostOf(plan, index, bucket, best, reducing, gathering).seconds();
  const bool native = reducing.native() && gathering.native();
  for (const Algorithm algorithm : kAlgorithms) {
    if (algorithm == Algorithm::kNative && !native) continue;
    const double seconds = CostOf(plan, index, bucket, algorithm, reducing, gathering).seconds();
    if (seconds >= least) continue;
    best = algorithm;
    least = seconds;
  }
  return best;
}

double CommunicationSeconds(const Plan& plan, const ParameterIndex& index) {
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    seconds += CostOf(plan, index, bucket, bucket.algorithm, plan.link).seconds();
  }
  return seconds;
}

double AllReduceSeconds(const Plan& plan, const Graph& graph, const ParameterIndex& index,
                        v1::CollectivePolicy policy) {
  if (!plan.link.known()) return 0;
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    const int ranks = plan.mesh.Size(bucket.axes);
    const int64_t bytes = kBytesPerElement * BufferElements(plan, index, bucket);
    const Algorithm algorithm =
        Prescribed(policy, graph, index, bucket)
            .value_or(BestAlgorithm(Collective::kAllReduce, ranks, bytes, plan.link));
    seconds += SecondsOf(Collective::kAllReduce, algorithm, ranks, bytes, plan.link);
  }
  return seconds;
}

std::string LinkText(const LinkProfile& link, absl::string_view kind) {
  if (!link.known()) return "link not measured";
  return absl::StrFormat("%.1f us a message, %.3g GB/s%s", 1e6 * link.alpha, 1e-9 / link.beta,
                         kind.empty() ? "" : absl::StrCat(", ", kind));
}

absl::Status CheckNative(const Plan& plan, bool has_native) {
  if (has_native) return absl::OkStatus();
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].algorithm != Algorithm::kNative) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", b,
                     " is to be reduced by 'native', which is NCCL's, but the group computes on "
                     "CPUs; set cluster.collectives to AUTO, or cluster.device to CUDA"));
  }
  return absl::OkStatus();
}

std::span<const v1::CollectivePolicy> AllPolicies() { return kPolicies; }

absl::string_view PolicyName(v1::CollectivePolicy policy) {
  switch (policy) {
    case v1::RING:
      return "ring";
    case v1::BUTTERFLY:
      return "butterfly";
    case v1::HALVING_DOUBLING:
      return "halving-doubling";
    case v1::PAPER:
      return "paper";
    case v1::NATIVE:
      return "native";
    default:
      return "auto";
  }
}

std::optional<v1::CollectivePolicy> PolicyFromName(absl::string_view name) {
  for (const v1::CollectivePolicy policy : kPolicies) {
    if (name == PolicyName(policy)) return policy;
  }
  if (name == PolicyName(v1::NATIVE)) return v1::NATIVE;
  return std::nullopt;
}

}  // namespace cadre
