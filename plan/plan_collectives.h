// Chooses the part of a plan that depends on the links: the size of buckets, the algorithm that
// reduces each bucket, and its predicted cost.
//
// A step sums a bucket's gradients with a reduce-scatter over the bucket's `axes`. After the owners
// have updated their slices, it gathers the weights over `axes` and `replica_axes`. Both use the
// bucket's algorithm. Seconds in this file are sums without overlap (plan/cost/overlap.h has it).
//
// Policies: `auto` chooses the cheapest algorithm for each bucket, including `native` if the link's
// samples include it; `ring`, `butterfly`, `halving-doubling` and `native` (NCCL; CUDA devices
// only) use the algorithm of that name for all buckets; `paper` uses the butterfly for convolutions
// (with their biases, and batch norms) and the ring for other layers (Kim, Yeo, Oh 2021).
//
// Thread-safe (pure functions). Guarantees: equal arguments give equal plans on all machines of one
// kind, so ranks that share a profile share a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/collective_cost.h"
#include "plan/plan.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/collective.h"

namespace cadre {

// Elements of a full bucket before links are measured (16 MiB): large enough that latency is small
// compared with the transfer on slow links (10 Gbit/s, 50 us) and that a model has few buckets;
// small enough that the first bucket is sent early.
inline constexpr int64_t kUnmeasuredBucketElements = 4 << 20;

// Elements of a chunk (4 MiB, 30 ms at 1 Gbit/s). A bucket is sent in near-equal chunks of at most
// this size, so that a small urgent bucket does not wait for a large one.
inline constexpr int64_t kChunkElements = 1 << 20;
// Chunks of a bucket; equal on all ranks even if their shards differ by a row.
int ChunksOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket);

// The link between ranks that differ only along these axes of the plan's mesh.
using LinkOfAxes = std::function<const LinkProfile&(const std::vector<std::string>& axes)>;

// The plan with new buckets and their algorithms. Under AUTO and with a known link, full buckets
// have BucketElements(ranks that sum them) elements; otherwise kUnmeasuredBucketElements, so that
// the sums under a fixed policy are bitwise equal, independent of measurements. `bucket_elements`
// overrides both (0: no limit). Layers are not divided, so with 1 every layer has its own buckets.
// Under PAPER, convolutional layers share no bucket with others. If the link is unknown, AUTO uses
// the ring. If links differ by axis, `link_of` returns them: `link` is stored in the plan and
// determines the size of buckets; the algorithm of a bucket is chosen for the links that it uses.
// Does not keep `link_of`. Requires: the plan's mesh and layers are legal for the graph.
// Guarantees: so is the result.
Plan WithCollectives(Plan plan, const Graph& graph, const ParameterIndex& index,
                     v1::Cluster::CollectivePolicy policy, const LinkProfile& link,
                     v1::LinkProfile::Kind link_kind,
                     std::optional<int64_t> bucket_elements = std::nullopt,
                     const LinkOfAxes& link_of = nullptr);

// The cost of one bucket in a step, if its chunks are reduced one after the other.
struct BucketCost {
  // Bytes of its gradients (the weights have as many) on the rank that holds the most.
  int64_t bytes = 0;
  // Seconds; 0 if the link is unknown.
  double reduce_scatter = 0;
  double all_gather = 0;
  double seconds() const { return reduce_scatter + all_gather; }
};
BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& link);
// Gradients are reduced over the bucket's axes; weights are gathered over its owner_axes().
BucketCost CostOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                  Algorithm algorithm, const LinkProfile& reducing, const LinkProfile& gathering);

// The cheapest algorithm for this bucket: ring, butterfly, halving-doubling or, if both links have
// it, native; the ring if all cost the same.
Algorithm CheapestFor(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                      const LinkProfile& reducing, const LinkProfile& gathering);

// Seconds to reduce `elements` of a layer's gradients over `sum` ranks and to gather its weights
// over `own` ranks, with the policy's algorithm or the cheapest one.
double MinCollectiveSeconds(v1::Cluster::CollectivePolicy policy, const GraphLayer& layer,
                            int64_t elements, int sum, int own, const LinkProfile& reducing,
                            const LinkProfile& gathering);

// Seconds of all buckets if gradients were all-reduced and every rank updated all weights, as in
// data parallel training without sharding. `policy` determines the algorithms; AUTO chooses the one
// with the cheapest all-reduce.
double AllReduceSeconds(const Plan& plan, const Graph& graph, const ParameterIndex& index,
                        v1::Cluster::CollectivePolicy policy);

// "shared memory and tcp"; empty if unspecified.
std::string LinkKindText(v1::LinkProfile::Kind kind);

// "10.0 us a message, 1.25 GB/s, tcp".
std::string LinkText(const LinkProfile& link, v1::LinkProfile::Kind kind);

// Whether the ranks can execute the plan's buckets. Errors: InvalidArgument, naming the bucket and
// a remedy, if a bucket needs native collectives and there are none.
absl::Status CheckNative(const Plan& plan, bool has_native);

// --- Policies by name: auto, ring, butterfly, halving-doubling, paper, native ---

// Whether the policy is AUTO, which is also the default.
bool IsAuto(v1::Cluster::CollectivePolicy policy);
// The policies that do not depend on the device (all but NATIVE), AUTO last.
std::span<const v1::Cluster::CollectivePolicy> AllPolicies();
// Unspecified is "auto".
absl::string_view PolicyName(v1::Cluster::CollectivePolicy policy);
std::optional<v1::Cluster::CollectivePolicy> PolicyFromName(absl::string_view name);

}  // namespace cadre
