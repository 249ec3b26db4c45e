#include "bench/allreduce/contest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/allreduce/exact_data.h"
#include "bench/allreduce/gloo_network.h"
#include "tensor/collective.h"

namespace cadre::bench {
namespace {

bool IsOurs(const std::string& network) {
  return network == "shm" || network == "tcp" || network == "threads";
}

// The position of `name`, which is added if it is not there.
size_t PositionOf(const ContestantName& name, std::vector<ContestantName>& contestants) {
  const auto found = std::find(contestants.begin(), contestants.end(), name);
  if (found != contestants.end()) return found - contestants.begin();
  contestants.push_back(name);
  return contestants.size() - 1;
}

absl::StatusOr<std::vector<std::string>> AlgorithmsBehind(const ContestantName& name,
                                                          const ContestOptions& options) {
  if (name.network == "gloo") {
    return GlooAlgorithms(name.algorithm, options.dtype, options.ranks);
  }
  if (name.network == "socket") {
    if (options.ranks == 2) return std::vector<std::string>{"copy"};
    return absl::InvalidArgumentError("a socket has two ends: compare with it on 2 ranks");
  }
  if (!IsOurs(name.network)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown transport '", name.network,
                                                   "'; known: shm, tcp, threads, gloo, socket"));
  }
  if (name.algorithm != "auto" && !AlgorithmFromName(name.algorithm).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown algorithm '", name.algorithm,
                     "'; known: auto, ring, butterfly, halving-doubling, hierarchical"));
  }
  return std::vector<std::string>{name.algorithm};
}

absl::StatusOr<std::vector<size_t>> Enter(const ContestantName& name, const ContestOptions& options,
                                          std::vector<ContestantName>& contestants) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> algorithms,
                         AlgorithmsBehind(name, options));
  std::vector<size_t> positions;
  for (const std::string& algorithm : algorithms) {
    positions.push_back(PositionOf({name.network, algorithm}, contestants));
  }
  return positions;
}

const Measurement& Fastest(const std::vector<size_t>& positions,
                           const std::vector<Measurement>& measured) {
  const size_t fastest = *std::min_element(
      positions.begin(), positions.end(),
      [&](size_t a, size_t b) { return measured[a].seconds < measured[b].seconds; });
  return measured[fastest];
}

// Contestants with a fixed algorithm on the same transport.
std::vector<size_t> SinglePolicies(const Contest& contest, const std::string& network) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < contest.contestants.size(); ++i) {
    const ContestantName& name = contest.contestants[i];
    if (name.network == network && name.algorithm != "auto") positions.push_back(i);
  }
  return positions;
}

void AddComparisons(const Contest& contest, const Competitor& competitor,
                    const std::vector<Measurement>& measured, double seconds,
                    nlohmann::ordered_json& line) {
  if (!contest.gloo.empty()) {
    const Measurement& gloo = Fastest(contest.gloo, measured);
    line["gloo_seconds"] = gloo.seconds;
    line["gloo_algorithm"] = gloo.algorithm;
    line["ratio_to_gloo"] = gloo.seconds / seconds;
  }
  if (!contest.socket.empty()) {
    const Measurement& socket = Fastest(contest.socket, measured);
    line["socket_seconds"] = socket.seconds;
    line["share_of_socket"] = socket.seconds / seconds;
  }
  if (!IsOurs(competitor.name.network) || competitor.name.algorithm != "auto") return;
  const std::vector<size_t> singles = SinglePolicies(contest, competitor.name.network);
  if (singles.empty()) return;
  const Measurement& best = Fastest(singles, measured);
  line["best_single"] = best.algorithm;
  line["ratio_to_best"] = seconds / best.seconds;
}

}  // namespace

absl::StatusOr<Contest> PlanContest(const ContestOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxExactRanks) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks must be from 1 to ", kMaxExactRanks));
  }
  if (options.transports.empty() || options.algorithms.empty()) {
    return absl::InvalidArgumentError("--transport and --algorithm must name something");
  }
  Contest contest;
  for (const std::string& transport : options.transports) {
    for (const std::string& algorithm : options.algorithms) {
      const ContestantName name{transport, transport == "socket" ? "copy" : algorithm};
      CADRE_ASSIGN_OR_RETURN(std::vector<size_t> positions,
                             Enter(name, options, contest.contestants));
      contest.competitors.push_back({name, std::move(positions)});
      if (transport == "socket") break;
    }
  }
  for (const std::string& rival : options.compare) {
    if (rival != "gloo" && rival != "socket") {
      return absl::InvalidArgumentError(
          absl::StrCat("--compare '", rival, "': known are gloo and socket"));
    }
    std::vector<size_t>& positions = rival == "gloo" ? contest.gloo : contest.socket;
    CADRE_ASSIGN_OR_RETURN(positions, Enter({rival, "auto"}, options, contest.contestants));
  }
  return contest;
}

nlohmann::ordered_json Line(const Contest& contest, const Competitor& competitor,
                            const std::vector<Measurement>& measured, int ranks, DType dtype,
                            int64_t bytes, bool in_place) {
  const Measurement& own = Fastest(competitor.contestants, measured);
  const double bandwidth = static_cast<double>(bytes) / own.seconds / 1e9;
  nlohmann::ordered_json line = {
      {"transport", competitor.name.network},
      {"algorithm", competitor.name.algorithm},
      {"chosen", own.algorithm},
      {"ranks", ranks},
      {"dtype", std::string(DTypeName(dtype))},
      {"in_place", in_place},
      {"bytes", bytes},
      {"seconds", own.seconds},
      {"min_seconds", own.min_seconds},
      {"algbw", bandwidth},
      {"busbw", bandwidth * 2 * (ranks - 1) / ranks},
      {"errors", own.errors},
      {"rounds", own.rounds},
      {"iterations", own.iterations},
  };
  AddComparisons(contest, competitor, measured, own.seconds, line);
  return line;
}

}  // namespace cadre::bench
