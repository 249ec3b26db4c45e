#include "spec/collective_cost.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// As the table in worker/comm/README.md names them.
struct Members {
  // p = P + r, P = 2^q.
  double p = 1;
  double q = 0;
  double P = 1;
  double r = 0;
  // 1 where members fold in.
  double f = 0;
  // Pieces of folded members that the first member sums while it halves, or passes on while it
  // doubles.
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

// Recursive doubling of pieces, which both algorithms gather by.
CollectiveWork GatherWork(const Members& m, double n) {
  return {m.q + 2 * m.f, (m.P - 1 + m.w) / m.p * n + m.f * n, 0};
}

CollectiveWork ButterflyWork(Collective collective, const Members& m, double n) {
  if (collective == Collective::kAllGather) return GatherWork(m, n);
  // To the folded member goes its piece, or everything.
  const double back = collective == Collective::kReduceScatter ? n / m.p : n;
  return {m.q + 2 * m.f, m.q * n + m.f * back, (m.q + m.f) * n};
}

CollectiveWork HalvingWork(Collective collective, const Members& m, double n) {
  if (collective == Collective::kAllGather) return GatherWork(m, n);
  if (collective == Collective::kReduceScatter) {
    // A folded member sends everything it has.
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
  return FormulaSeconds(Collective::kAllReduce, algorithm, ranks, static_cast<int64_t>(bytes),
                        link);
}

// The sizes next to `bytes` that were timed; where all are on one side, the nearest twice.
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

// Part of a sample's time that its messages may take for it to count as one of bytes.
constexpr double kFewMessages = 0.1;

// Between two sizes a straight line in logarithms; beyond them the formula's course.
std::optional<double> MeasuredAllReduce(Algorithm algorithm, int ranks, int64_t bytes,
                                        const LinkProfile& link) {
  const auto neighbours = FindNeighbours(algorithm, ranks, bytes, link);
  if (!neighbours.has_value()) return std::nullopt;
  const auto& [below, above] = *neighbours;
  if (below.bytes == above.bytes) {
    if (below.bytes == bytes) return below.seconds;
    const double there = AllReduceFormula(algorithm, ranks, static_cast<double>(below.bytes), link);
    const double here = AllReduceFormula(algorithm, ranks, static_cast<double>(bytes), link);
    // A largest sample that its messages dominate says nothing of what more bytes cost.
    const bool of_messages = AllReduceFormula(algorithm, ranks, 0, link) > kFewMessages * there;
    if (bytes > below.bytes && of_messages) return below.seconds + std::max(0.0, here - there);
    return there > 0 ? below.seconds * here / there : below.seconds;
  }
  const double from = std::log(static_cast<double>(below.bytes));
  const double to = std::log(static_cast<double>(above.bytes));
  const double part = (std::log(static_cast<double>(bytes)) - from) / (to - from);
  return std::exp((1 - part) * std::log(below.seconds) + part * std::log(above.seconds));
}

absl::Status CheckNumber(double value, absl::string_view name) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a link's ", name, " is ", value));
}

absl::StatusOr<LinkProfile::Sample> SampleFromProto(const v1::CollectiveSample& proto) {
  const auto algorithm = AlgorithmFromName(proto.algorithm());
  if (!algorithm.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link was measured with \"", proto.algorithm(), "\", which is unknown"));
  }
  // Logarithms are taken of both.
  if (!std::isfinite(proto.seconds()) || proto.seconds() <= 0 || proto.bytes() == 0 ||
      proto.bytes() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
      proto.ranks() > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("a link took ", proto.seconds(), " seconds for ",
                                                   proto.bytes(), " bytes among ", proto.ranks(),
                                                   " ranks"));
  }
  return LinkProfile::Sample{*algorithm, static_cast<int>(proto.ranks()),
                             static_cast<int64_t>(proto.bytes()), proto.seconds()};
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
    const absl::Status status = CheckNumber(value, name);
    if (!status.ok()) return status;
  }
  if (proto.samples_size() > kMostLinkSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link with ", proto.samples_size(), " samples, at most ", kMostLinkSamples));
  }
  LinkProfile link{.alpha = proto.alpha(),
                   .beta = proto.beta(),
                   .gamma = proto.gamma(),
                   .processor = proto.processor()};
  for (const v1::CollectiveSample& each : proto.samples()) {
    const auto sample = SampleFromProto(each);
    if (!sample.ok()) return sample.status();
    link.samples.push_back(*sample);
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
    each.set_algorithm(std::string(AlgorithmName(sample.algorithm)));
    each.set_ranks(static_cast<uint32_t>(sample.ranks));
    each.set_bytes(static_cast<uint64_t>(sample.bytes));
    each.set_seconds(sample.seconds);
  }
  return proto;
}

CollectiveWork WorkOf(Collective collective, Algorithm algorithm, int ranks, int64_t bytes) {
  CHECK_GE(bytes, 0);
  CHECK(collective == Collective::kReduceScatter || collective == Collective::kAllGather ||
        collective == Collective::kAllReduce)
      << CollectiveName(collective);
  const Members members = Count(ranks);
  const auto n = static_cast<double>(bytes);
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
  // Its parts are as much slower than their formulas as the whole is.
  const double whole = AllReduceFormula(algorithm, ranks, static_cast<double>(bytes), link);
  return whole > 0 ? formula * *measured / whole : formula;
}

Algorithm BestAlgorithm(Collective collective, int ranks, int64_t bytes, const LinkProfile& link) {
  Algorithm best = Algorithm::kRing;
  double least = SecondsOf(collective, best, ranks, bytes, link);
  for (const Algorithm algorithm :
       {Algorithm::kButterfly, Algorithm::kHalvingDoubling, Algorithm::kNative}) {
    if (algorithm == Algorithm::kNative && !link.native()) continue;
    const double seconds = SecondsOf(collective, algorithm, ranks, bytes, link);
    if (seconds >= least) continue;
    least = seconds;
    best = algorithm;
  }
  return best;
}

double ButterflyLimit(int ranks, const LinkProfile& link) {
  const Members m = Count(ranks);
  CHECK(m.r == 0 && ranks >= 2) << ranks << " is no power of two";
  const double fewer_steps = 2 * (m.p - 1) - m.q;
  const double more_bytes = m.q - 2 * (m.p - 1) / m.p;
  if (more_bytes <= 0) return std::numeric_limits<double>::infinity();
  return link.alpha / link.beta * fewer_steps / more_bytes;
}

int64_t BucketElements(int ranks, const LinkProfile& link) {
  // Below a quarter of a MiB the work on a bucket's messages shows; above 64 MiB a bucket is a
  // model's largest layer, and nothing of it overlaps.
  constexpr int64_t kLeast = int64_t{1} << 16;
  constexpr int64_t kMost = int64_t{1} << 24;
  // Where nothing is known.
  constexpr int64_t kUsual = int64_t{1} << 20;
  // Starting may take this part of the time.
  constexpr double kStarting = 0.1;
  constexpr int64_t kBytesPerElement = 4;
  if (!link.known() || ranks < 2) return kUsual;
  int64_t elements = kLeast;
  for (; elements < kMost; elements *= 2) {
    const int64_t bytes = elements * kBytesPerElement;
    const Algorithm best = BestAlgorithm(Collective::kAllReduce, ranks, bytes, link);
    const CollectiveWork work = WorkOf(Collective::kAllReduce, best, ranks, bytes);
    const double moving = link.beta * work.bytes + link.gamma * work.added;
    if (link.alpha * work.steps <= kStarting * (link.alpha * work.steps + moving)) break;
  }
  return elements;
}

}  // namespace cadre
