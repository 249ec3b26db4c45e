// What collectives cost, and which algorithm costs least: the alpha-beta-gamma model on measured
// numbers.
//
//   alpha  seconds that a message takes however short it is
//   beta   seconds that a byte takes on a rank's link, each way
//   gamma  seconds that it takes to add a byte that has arrived to one that is there
//
// worker/comm/README.md has the table of steps and bytes that these functions evaluate; a test
// holds both and the executed schedules together.
//
// Sources: the table is standard (Thakur, Rabenseifner, Gropp 2005); size-based choice between ring
// and butterfly after Kim, Yeo, Oh 2021.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "tensor/collective.h"

namespace cadre {

// What was measured of the links inside a group (or given by a person).
struct LinkProfile {
  double alpha = 0;
  double beta = 0;
  double gamma = 0;
  // Processor seconds that a rank spends for each byte that it sends and the one that it receives
  // meanwhile; 0: not known.
  double processor = 0;
  // All-reduces that were timed; where there are some, they go before the formula.
  struct Sample {
    Algorithm algorithm = Algorithm::kRing;
    int ranks = 0;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples;

  bool known() const { return beta > 0; }
  // Whether the ranks have native collectives: then some were timed.
  bool native() const;
};
// Errors: InvalidArgument for negative or infinite numbers, unknown algorithms, and more than
// kMostLinkSamples.
inline constexpr int kMostLinkSamples = 256;
absl::StatusOr<LinkProfile> LinkProfileFromProto(const v1::LinkProfile& proto);
v1::LinkProfile LinkProfileToProto(const LinkProfile& profile);

// The longest chain of messages that wait for one another, and what the busiest rank sends and
// adds. Fractions are kept.
struct CollectiveWork {
  double steps = 0;
  double bytes = 0;
  double added = 0;
};
// `bytes` of data on each of `ranks`, near-equal pieces. All-reduce, reduce-scatter and all-gather
// by ring, butterfly and halving-doubling; any number of ranks (those beyond a power of two fold
// in first and get the result at the end). Native counts as the ring: what it really does is its
// library's choice, and what it costs is known from samples. Requires: ranks >= 1, bytes >= 0.
CollectiveWork WorkOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes);

// alpha steps + beta bytes + gamma added; or, for an all-reduce whose neighbours in size were
// timed, what lies between them. 0 for one rank.
double SecondsOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes,
                 const LinkProfile& link);

// The least of ring, butterfly, halving-doubling and, where the link has it, native; ring where it
// is all the same.
Algorithm BestAlgorithm(Collective collective, int ranks, int64_t bytes, const LinkProfile& link);

// Bytes at which ring and recursive doubling cost the same on p ranks:
// (alpha / beta) (2 (p - 1) - log2 p) / (log2 p - 2 (p - 1) / p). Infinite for p = 2, where the
// butterfly is never worse. Requires: p a power of two, >= 2.
double ButterflyLimit(int ranks, const LinkProfile& link);

// Elements at which a bucket of gradients is full: so many that starting its collective is little
// beside its transfer, so few that the first is on its way early.
int64_t BucketElements(int ranks, const LinkProfile& link);

}  // namespace cadre
