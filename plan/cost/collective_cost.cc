// Costs of collectives: formulas, corrected by measurements if there are any.
//
// Formulas. The alpha-beta-gamma model charges alpha per step, beta per byte that the busiest rank
// sends, gamma per byte that it adds. Steps and bytes of the algorithms are those of Thakur,
// Rabenseifner and Gropp ("Optimization of collective communication operations in MPICH", 2005),
// with p ranks and n bytes:
//
//   ring              reduce-scatter or all-gather: p - 1 steps, (p - 1) / p n bytes
//   butterfly         all-reduce by recursive doubling: log2 p steps, log2 p n bytes
//   halving-doubling  all-reduce: 2 log2 p steps, 2 (p - 1) / p n bytes
//
// If p is not a power of two, let P be the largest power of two below p. The r = p - P remaining
// ranks "fold": they send their data to a partner first and receive the result last, which adds up
// to two steps and n bytes. comm/README.md has the resulting table; a test compares it with
// the schedules that are executed.
//
// Choice. Latency dominates for small buckets (butterfly), bandwidth for large ones (ring or
// halving-doubling). At ButterflyLimit bytes, ring and butterfly cost the same; Kim, Yeo and Oh
// (2021) apply the same idea by kind of layer.
//
// Measurements. Samples of all-reduces replace the formula. Between two sizes, the logarithm of
// time is interpolated linearly in the logarithm of size, which is exact for a power law and a good
// approximation between latency and bandwidth. Outside the measured sizes the formula is scaled to
// the nearest sample. If latency dominates the largest sample, the difference by the formula is
// added to it instead. The two phases of an all-reduce are scaled by the same factor as the whole.
//
// Limits: no contention, one algorithm at a time, and equal links between all ranks.
#include "plan/cost/collective_cost.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/cost/communication_cost.h"

namespace cadre {
namespace {

constexpr std::pair<Algorithm, v1::Plan::Algorithm> kAlgorithms[] = {
    {Algorithm::kRing, v1::Plan::RING},
    {Algorithm::kButterfly, v1::Plan::BUTTERFLY},
    {Algorithm::kHalvingDoubling, v1::Plan::HALVING_DOUBLING},
    {Algorithm::kNative, v1::Plan::NATIVE}};

// The symbols of the table in comm/README.md.
struct Members {
  // p = P + r, P = 2^q.
  double p = 1;
  double q = 0;
  double P = 1;
  double r = 0;
  // 1 if some members fold, else 0.
  double f = 0;
  // Chunks of folded members that the first member sums while halving, or forwards while doubling.
  double w = 0;
};

Members Count(int ranks) {
  CHECK_GE(ranks, 1);
  Members m;
  m.p = ranks;
  while (2 * m.P <= m.p) {
    m.P *= 2;
    ++m.q;
  }
  m.r = m.p - m.P;
  m.f = m.r > 0 ? 1 : 0;
  for (double block = 1; block < m.P; block *= 2) m.w += std::min(block, m.r);
  return m;
}

CollectiveWork RingWork(Collective collective, const Members& m, double n) {
  const double share = (m.p - 1) / m.p * n;
  if (collective == Collective::kReduceScatter) return {m.p - 1, share, share};
  if (collective == Collective::kAllGather) return {m.p - 1, share, 0};
  return {2 * (m.p - 1), 2 * share, share};
}

// All-gather by recursive doubling, which both algorithms use.
CollectiveWork GatherWork(const Members& m, double n) {
  return {m.q + 2 * m.f, (m.P - 1 + m.w) / m.p * n + m.f * n, 0};
}

CollectiveWork ButterflyWork(Collective collective, const Members& m, double n) {
  if (collective == Collective::kAllGather) return GatherWork(m, n);
  // The folded member receives its chunk, or everything.
  const double back = collective == Collective::kReduceScatter ? n / m.p : n;
  return {m.q + 2 * m.f, m.q * n + m.f * back, (m.q + m.f) * n};
}

CollectiveWork HalvingWork(Collective collective, const Members& m, double n) {
  if (collective == Collective::kAllGather) return GatherWork(m, n);
  if (collective == Collective::kReduceScatter) {
    // A folded member sends all its data.
    return {m.q + 2 * m.f, m.f * n + (1 - m.f) * (m.p - 1) / m.p * n,
            (m.P - 1 + m.w) / m.p * n + m.f * n};
  }
  return {2 * m.q + 2 * m.f, 2 * (m.P - 1) / m.P * n + m.f * n, (m.P - 1) / m.P * n + m.f * n};
}

double FormulaSeconds(Collective collective, Algorithm algorithm, int ranks, int64_t bytes,
                      const LinkProfile& link) {
  const CollectiveWork work = WorkOf(collective, algorithm, ranks, bytes);
  return link.alpha * work.steps + link.beta * work.bytes + link.gamma * work.added;
}

double AllReduceFormula(Algorithm algorithm, int ranks, double bytes, const LinkProfile& link) {
  return FormulaSeconds(Collective::kAllReduce, algorithm, ranks, bytes, link);
}

// The timed sizes next below and above `bytes`; if all are on one side, the nearest one twice.
struct Neighbours {
  LinkProfile::Sample below;
  LinkProfile::Sample above;
};

std::optional<Neighbours> FindNeighbours(Algorithm algorithm, int ranks, int64_t bytes,
                                         const LinkProfile& link) {
  const LinkProfile::Sample* below = nullptr;
  const LinkProfile::Sample* above = nullptr;
  for (const LinkProfile::Sample& sample : link.samples) {
    if (sample.algorithm != algorithm || sample.ranks != ranks) continue;
    if (sample.bytes <= bytes && (below == nullptr || sample.bytes > below->bytes)) {
      below = &sample;
    }
    if (sample.bytes >= bytes && (above == nullptr || sample.bytes < above->bytes)) {
      above = &sample;
    }
  }
  if (below == nullptr && above == nullptr) return std::nullopt;
  if (below == nullptr) below = above;
  if (above == nullptr) above = below;
  return Neighbours{*below, *above};
}

// A sample measures bandwidth if latency is at most this part of its time.
constexpr double kMaxLatencyShare = 0.1;

// Linear in logarithms between two sizes; beyond the measured sizes, scaled by the formula.
std::optional<double> MeasuredAllReduce(Algorithm algorithm, int ranks, int64_t bytes,
                                        const LinkProfile& link) {
  const auto neighbours = FindNeighbours(algorithm, ranks, bytes, link);
  if (!neighbours.has_value()) return std::nullopt;
  const auto& [below, above] = *neighbours;
  if (below.bytes == above.bytes) {
    if (below.bytes == bytes) return below.seconds;
    const double there = AllReduceFormula(algorithm, ranks, below.bytes, link);
    const double here = AllReduceFormula(algorithm, ranks, bytes, link);
    // A sample dominated by latency does not measure what further bytes cost.
    const bool latency_bound =
        AllReduceFormula(algorithm, ranks, 0, link) > kMaxLatencyShare * there;
    if (bytes > below.bytes && latency_bound) return below.seconds + std::max(0.0, here - there);
    return there > 0 ? below.seconds * here / there : below.seconds;
  }
  const double from = std::log(below.bytes);
  const double to = std::log(above.bytes);
  const double part = (std::log(bytes) - from) / (to - from);
  return std::exp((1 - part) * std::log(below.seconds) + part * std::log(above.seconds));
}

absl::Status CheckNumber(double value, absl::string_view name) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", must be finite and not negative"));
}

absl::StatusOr<LinkProfile::Sample> SampleFromProto(const v1::CollectiveSample& proto) {
  const auto algorithm = AlgorithmFromProto(proto.algorithm());
  if (!algorithm.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown algorithm ", proto.algorithm()));
  }
  // Interpolation takes logarithms of seconds and bytes.
  if (!std::isfinite(proto.seconds()) || proto.seconds() <= 0 || proto.bytes() == 0 ||
      proto.bytes() > uint64_t{std::numeric_limits<int64_t>::max()} ||
      proto.ranks() > uint32_t{std::numeric_limits<int>::max()}) {
    return absl::InvalidArgumentError(absl::StrCat("invalid sample: ", proto.seconds(),
                                                   " seconds for ", proto.bytes(), " bytes on ",
                                                   proto.ranks(), " ranks"));
  }
  LinkProfile::Sample sample{.algorithm = *algorithm, .seconds = proto.seconds()};
  sample.ranks = proto.ranks();
  sample.bytes = proto.bytes();
  return sample;
}

}  // namespace

bool LinkProfile::native() const {
  return std::any_of(samples.begin(), samples.end(),
                     [](const Sample& sample) { return sample.algorithm == Algorithm::kNative; });
}

absl::StatusOr<LinkProfile> LinkProfileFromProto(const v1::LinkProfile& proto) {
  for (const auto& [value, name] :
       {std::pair(proto.alpha(), "alpha"), std::pair(proto.beta(), "beta"),
        std::pair(proto.gamma(), "gamma"), std::pair(proto.processor(), "processor")}) {
    CADRE_RETURN_IF_ERROR(CheckNumber(value, name));
  }
  if (proto.samples_size() > kMaxLinkSamples) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", proto.samples_size(), " samples, at most ", kMaxLinkSamples, " are allowed"));
  }
  LinkProfile link{.alpha = proto.alpha(),
                   .beta = proto.beta(),
                   .gamma = proto.gamma(),
                   .processor = proto.processor()};
  for (const v1::CollectiveSample& each : proto.samples()) {
    CADRE_ASSIGN_OR_RETURN(link.samples.emplace_back(), SampleFromProto(each));
  }
  return link;
}

v1::LinkProfile LinkProfileToProto(const LinkProfile& profile) {
  v1::LinkProfile proto;
  proto.set_alpha(profile.alpha);
  proto.set_beta(profile.beta);
  proto.set_gamma(profile.gamma);
  proto.set_processor(profile.processor);
  for (const LinkProfile::Sample& sample : profile.samples) {
    v1::CollectiveSample& each = *proto.add_samples();
    each.set_algorithm(AlgorithmToProto(sample.algorithm));
    each.set_ranks(sample.ranks);
    each.set_bytes(sample.bytes);
    each.set_seconds(sample.seconds);
  }
  return proto;
}

v1::Plan::Algorithm AlgorithmToProto(Algorithm algorithm) {
  for (const auto& [ours, proto] : kAlgorithms) {
    if (ours == algorithm) return proto;
  }
  return v1::Plan::ALGORITHM_UNSPECIFIED;
}

std::optional<Algorithm> AlgorithmFromProto(v1::Plan::Algorithm algorithm) {
  for (const auto& [ours, proto] : kAlgorithms) {
    if (proto == algorithm) return ours;
  }
  return std::nullopt;
}

CollectiveWork WorkOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes) {
  CHECK_GE(bytes, 0);
  CHECK(collective == Collective::kReduceScatter || collective == Collective::kAllGather ||
        collective == Collective::kAllReduce)
      << CollectiveName(collective);
  const Members members = Count(ranks);
  const double n = bytes;
  if (algorithm == Algorithm::kRing || algorithm == Algorithm::kNative) {
    return RingWork(collective, members, n);
  }
  if (algorithm == Algorithm::kButterfly) return ButterflyWork(collective, members, n);
  CHECK(algorithm == Algorithm::kHalvingDoubling) << AlgorithmName(algorithm);
  return HalvingWork(collective, members, n);
}

double SecondsOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes,
                 const LinkProfile& link) {
  if (ranks == 1) return 0;
  const double formula = FormulaSeconds(collective, algorithm, ranks, bytes, link);
  const auto measured = MeasuredAllReduce(algorithm, ranks, bytes, link);
  if (!measured.has_value()) return formula;
  if (collective == Collective::kAllReduce) return *measured;
  // The phases deviate from their formulas by the same factor as the all-reduce.
  const double whole = AllReduceFormula(algorithm, ranks, bytes, link);
  return whole > 0 ? formula * *measured / whole : formula;
}

Algorithm BestAlgorithm(Collective collective, int ranks, int64_t bytes, const LinkProfile& link) {
  Algorithm best = Algorithm::kRing;
  double min_seconds = SecondsOf(collective, best, ranks, bytes, link);
  for (const Algorithm algorithm :
       {Algorithm::kButterfly, Algorithm::kHalvingDoubling, Algorithm::kNative}) {
    if (algorithm == Algorithm::kNative && !link.native()) continue;
    const double seconds = SecondsOf(collective, algorithm, ranks, bytes, link);
    if (seconds >= min_seconds) continue;
    min_seconds = seconds;
    best = algorithm;
  }
  return best;
}

double ButterflyLimit(int ranks, const LinkProfile& link) {
  const Members m = Count(ranks);
  CHECK(m.r == 0 && ranks >= 2) << ranks << " is not a power of two";
  const double fewer_steps = 2 * (m.p - 1) - m.q;
  const double more_bytes = m.q - 2 * (m.p - 1) / m.p;
  if (more_bytes <= 0) return std::numeric_limits<double>::infinity();
  return link.alpha / link.beta * fewer_steps / more_bytes;
}

int64_t BucketElements(int ranks, const LinkProfile& link) {
  // Below a quarter of a MiB the fixed cost of messages shows; above 64 MiB a bucket is the model's
  // largest layer and hardly overlaps with anything.
  constexpr int64_t kMin = int64_t{1} << 16;
  constexpr int64_t kMax = int64_t{1} << 24;
  // Used for an unknown link.
  constexpr int64_t kDefault = int64_t{1} << 20;
  // Latency may take this part of the time.
  constexpr double kLatencyShare = 0.1;
  if (!link.known() || ranks < 2) return kDefault;
  int64_t elements = kMin;
  for (; elements < kMax; elements *= 2) {
    const int64_t bytes = elements * kBytesPerWord;
    const Algorithm best = BestAlgorithm(Collective::kAllReduce, ranks, bytes, link);
    const CollectiveWork work = WorkOf(Collective::kAllReduce, best, ranks, bytes);
    const double moving = link.beta * work.bytes + link.gamma * work.added;
    if (link.alpha * work.steps <= kLatencyShare * (link.alpha * work.steps + moving)) break;
  }
  return elements;
}

}  // namespace cadre
