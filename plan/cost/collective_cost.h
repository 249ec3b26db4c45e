// The cost of collectives by the alpha-beta-gamma model with measured parameters, and the choice of
// their algorithm. collective_cost.cc explains the model.
//
//   alpha  seconds per message, however short
//   beta   seconds per byte on a rank's link, in each direction
//   gamma  seconds to add a received byte
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "tensor/collective.h"

namespace cadre {

// The links of a group, measured or given by the user.
struct LinkProfile {
  double alpha = 0;
  double beta = 0;
  double gamma = 0;
  // Processor seconds of a rank per byte sent and received; 0: unknown.
  double processor = 0;
  // Timed all-reduces, which take precedence over the formula.
  struct Sample {
    Algorithm algorithm = Algorithm::kRing;
    int ranks = 0;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples;

  bool known() const { return beta > 0; }
  // Whether the ranks have native collectives: whether there are samples of them.
  bool native() const;
};
// Errors: InvalidArgument for negative or infinite numbers, unknown algorithms, and more than
// kMaxLinkSamples.
inline constexpr int kMaxLinkSamples = 256;
absl::StatusOr<LinkProfile> LinkProfileFromProto(const v1::LinkProfile& proto);
v1::LinkProfile LinkProfileToProto(const LinkProfile& profile);

// Unspecified for algorithms that no plan uses; nullopt for values that this build does not have.
v1::Plan::Algorithm AlgorithmToProto(Algorithm algorithm);
std::optional<Algorithm> AlgorithmFromProto(v1::Plan::Algorithm algorithm);

// The longest chain of dependent messages, and the bytes that the busiest rank sends and adds.
// Fractions are kept.
struct CollectiveWork {
  double steps = 0;
  double bytes = 0;
  double added = 0;
};
// The work of an all-reduce, reduce-scatter or all-gather of `bytes` bytes on each rank, for any
// number of ranks. Native counts as the ring; its library chooses the real algorithm, whose cost is
// measured. Requires: ranks >= 1, bytes >= 0.
CollectiveWork WorkOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes);

// alpha steps + beta bytes + gamma added, or an interpolation of samples. 0 for one rank.
double SecondsOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes,
                 const LinkProfile& link);

// The cheapest of ring, butterfly, halving-doubling and, if the link has it, native; the ring if
// the costs are equal.
Algorithm BestAlgorithm(Collective collective, int ranks, int64_t bytes, const LinkProfile& link);

// Bytes at which ring and recursive doubling cost the same on p ranks:
// (alpha / beta) (2 (p - 1) - log2 p) / (log2 p - 2 (p - 1) / p). Infinite for p = 2, for which
// the butterfly is never worse. Requires: p a power of two, >= 2.
double ButterflyLimit(int ranks, const LinkProfile& link);

// Elements of a full bucket of gradients: the smallest number with which latency is a small part of
// the bucket's collective; a small bucket is sent early.
int64_t BucketElements(int ranks, const LinkProfile& link);

}  // namespace cadre
