// Which algorithm reduces which bucket, how large buckets are, and what that is predicted to cost:
// the part of a plan that follows from the links rather than from the model.
//
// A step sums a bucket's gradients with a reduce-scatter over the bucket's `axes`, and, when owners
// have updated their slices, gathers the weights over `axes` and `same`. Both are done by the
// bucket's algorithm. Predictions add these up, one after the other; what of it hides behind
// computation is coordinator/cost/overlap.h's to say.
//
// Policies: `auto` takes for each bucket what costs least, `native` included where the link's
// samples show that the ranks have it; `ring`, `butterfly`, `halving-doubling` and `native` (NCCL's
// own; CUDA devices only) take always the same; `paper` goes by the kind of layer: butterfly for
// convolutions (with their biases, and batch norms), ring for the rest (Kim, Yeo, Oh 2021).
//
// Thread-safe (pure functions). Guarantees: equal arguments give equal plans on every machine of
// one kind, so ranks that share a profile share a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "tensor/collective.h"

namespace cadre {

// Elements at which a bucket is full before anything is known of the links (16 MiB): enough that
// the latency of a collective is small beside its transfer on slow links (10 Gbit/s, 50 us), and
// that a model has a few buckets and not one per layer; little enough that the first bucket is on
// its way early.
inline constexpr int64_t kUnmeasuredBucketElements = 4 << 20;

// Elements of a chunk (4 MiB, 30 ms at 1 Gbit/s): a bucket travels in near-equal chunks of at most
// so many, so that a small bucket that is needed soon does not wait behind a large one.
inline constexpr int64_t kChunkElements = 1 << 20;
// Chunks of a bucket, the same on all ranks although their shards may differ by a row.
int ChunksOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket);

// The plan with its buckets made anew and an algorithm for each. Buckets are of
// BucketElements(ranks that sum them) elements under AUTO where the link is known, of
// kUnmeasuredBucketElements otherwise, so that a policy that is not AUTO gives the same sums to the
// bit whatever was measured; or of `bucket_elements` where that is given (0: no limit); a layer is
// never cut, so with 1 every layer has buckets of its own. Under PAPER convolutional layers share
// no bucket with others. AUTO is ring where the link is not known. Requires: the plan's mesh and
// layers are legal for the graph. Guarantees: so is the result.
Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::CollectivePolicy policy, const LinkProfile& link, std::string link_kind,
                     std::optional<int64_t> bucket_elements = std::nullopt);

// What connects ranks that differ along these axes of the plan's mesh alone.
using LinkOfAxes = std::function<const LinkProfile&(const std::vector<std::string>& axes)>;

// The same where not all links are alike: `link` is what the plan bears and what buckets are sized
// by; algorithms are chosen by what each bucket travels over. Calls `link_of` before it returns.
Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::CollectivePolicy policy, const LinkProfile& link, std::string link_kind,
                     std::optional<int64_t> bucket_elements, const LinkOfAxes& link_of);

// What one bucket costs in a step, chunk after chunk.
struct BucketCost {
  // Of its gradients on the rank that holds most; its weights take as many.
  int64_t bytes = 0;
  double reduce_scatter = 0;
  double all_gather = 0;
  double seconds() const { return reduce_scatter + all_gather; }
};
// Seconds are 0 where the link is not known.
BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& link);
// Gradients are reduced over the bucket's axes, weights gathered over those of its owners.
BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& reducing, const LinkProfile& gathering);
// The bucket's axes and `same`: those along which its weights are gathered.
std::vector<std::string> OwnerAxes(const Bucket& bucket);

// The least of ring, butterfly, halving-doubling and, where both links have it, native for this
// bucket; ring where it is all the same.
Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& link);
Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& reducing, const LinkProfile& gathering);

// Of all buckets, one after the other, by the plan's own link.
double CommunicationSeconds(const Plan& plan, const ParameterIndex& index);
// The same if every bucket's gradients were all-reduced and every rank updated all weights, as data
// parallel training does that shards nothing; the weights are not gathered then. `policy` chooses
// as it would for that: AUTO by the cost of the all-reduce.
double AllReduceSeconds(const Plan& plan, const Graph& graph, const ParameterIndex& index,
                        v1::CollectivePolicy policy);

// "10.0 us a message, 1.25 GB/s, tcp".
std::string LinkText(const LinkProfile& link, absl::string_view kind);

// Whether ranks that have native collectives, or have not, can obey the plan's buckets. Errors:
// InvalidArgument, naming the bucket and what to do.
absl::Status CheckNative(const Plan& plan, bool has_native);

// --- Policies by name: auto, ring, butterfly, halving-doubling, paper, native ---

// Every policy that any devices can obey, once, AUTO last: all but NATIVE.
std::span<const v1::CollectivePolicy> AllPolicies();
// Unspecified is "auto".
absl::string_view PolicyName(v1::CollectivePolicy policy);
std::optional<v1::CollectivePolicy> PolicyFromName(absl::string_view name);

}  // namespace cadre
