// A user names transports and algorithms, but variants are measured. Gloo's "auto" stands for
// several implementations, and a comparison adds variants without a line. So rows refer to variants
// by position, and each variant is measured once even if several rows need it.
#include "bench/allreduce/comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/allreduce/exact_data.h"
#include "bench/allreduce/fabric.h"
#include "tensor/collective.h"

namespace cadre::bench {
namespace {

constexpr int64_t kMaxBytes = int64_t{16} << 30;

bool IsOurs(const std::string& fabric) { return fabric == "shm" || fabric == "tcp"; }

// The implementations for which the name of an algorithm stands. Errors: InvalidArgument for an
// unknown name or an impossible combination; those of GlooAlgorithms.
absl::StatusOr<std::vector<std::string>> AlgorithmsBehind(const Variant& name,
                                                          const ComparisonOptions& options) {
  if (name.fabric == "gloo") {
    return GlooAlgorithms(name.algorithm, options.dtype, options.ranks);
  }
  if (name.fabric == "socket") {
    if (options.ranks == 2) return std::vector<std::string>{"copy"};
    return absl::InvalidArgumentError("the socket transport needs 2 ranks");
  }
  if (!IsOurs(name.fabric)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown transport '", name.fabric, "'; known: shm, tcp, gloo, socket"));
  }
  if (name.algorithm != "auto" && !AlgorithmFromName(name.algorithm).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown algorithm '", name.algorithm,
                     "'; known: auto, ring, butterfly, halving-doubling"));
  }
  return std::vector<std::string>{name.algorithm};
}

// The positions of the variants for which `name` stands. Missing ones are appended to `variants`.
absl::StatusOr<std::vector<int64_t>> Add(const Variant& name, const ComparisonOptions& options,
                                         std::vector<Variant>& variants) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> algorithms,
                         AlgorithmsBehind(name, options));
  std::vector<int64_t> positions;
  for (const std::string& algorithm : algorithms) {
    const Variant variant{name.fabric, algorithm};
    positions.push_back(std::ranges::find(variants, variant) - variants.begin());
    if (positions.back() == std::ssize(variants)) variants.push_back(variant);
  }
  return positions;
}

const Measurement& Fastest(const std::vector<int64_t>& positions,
                           const std::vector<Measurement>& measured) {
  return measured[*std::ranges::min_element(
      positions, {}, [&](int64_t position) { return measured[position].timing.seconds; })];
}

// Variants with a fixed algorithm on the same fabric.
std::vector<int64_t> SinglePolicies(const Comparison& comparison, const std::string& fabric) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < std::ssize(comparison.variants); ++i) {
    const Variant& name = comparison.variants[i];
    if (name.fabric == fabric && name.algorithm != "auto") positions.push_back(i);
  }
  return positions;
}

// Adds the fields that compare the measurement of a row with Gloo, with the plain socket exchange
// and, for "auto", with the best fixed algorithm, if they were measured.
void AddComparisons(const Comparison& comparison, const Row& row,
                    const std::vector<Measurement>& measured, double seconds,
                    nlohmann::ordered_json& line) {
  if (!comparison.gloo.empty()) {
    const Measurement& gloo = Fastest(comparison.gloo, measured);
    line["gloo_seconds"] = gloo.timing.seconds;
    line["gloo_algorithm"] = gloo.algorithm;
    line["ratio_to_gloo"] = gloo.timing.seconds / seconds;
  }
  if (!comparison.socket.empty()) {
    const Measurement& socket = Fastest(comparison.socket, measured);
    line["socket_seconds"] = socket.timing.seconds;
    line["share_of_socket"] = socket.timing.seconds / seconds;
  }
  if (!IsOurs(row.name.fabric) || row.name.algorithm != "auto") return;
  const std::vector<int64_t> singles = SinglePolicies(comparison, row.name.fabric);
  if (singles.empty()) return;
  const Measurement& best = Fastest(singles, measured);
  line["best_single"] = best.algorithm;
  line["ratio_to_best"] = seconds / best.timing.seconds;
}

}  // namespace

absl::StatusOr<Comparison> MakeComparison(const ComparisonOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxExactRanks) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks must be from 1 to ", kMaxExactRanks));
  }
  if (options.transports.empty() || options.algorithms.empty()) {
    return absl::InvalidArgumentError("--transport and --algorithm must name something");
  }
  Comparison comparison;
  for (const std::string& transport : options.transports) {
    for (const std::string& algorithm : options.algorithms) {
      const Variant name{transport, transport == "socket" ? "copy" : algorithm};
      CADRE_ASSIGN_OR_RETURN(std::vector<int64_t> positions,
                             Add(name, options, comparison.variants));
      comparison.rows.push_back({name, std::move(positions)});
      if (transport == "socket") break;
    }
  }
  for (const std::string& other : options.compare) {
    if (other != "gloo" && other != "socket") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown --compare '", other, "'; known: gloo, socket"));
    }
    std::vector<int64_t>& positions = other == "gloo" ? comparison.gloo : comparison.socket;
    CADRE_ASSIGN_OR_RETURN(positions, Add({other, "auto"}, options, comparison.variants));
  }
  return comparison;
}

nlohmann::ordered_json Line(const Comparison& comparison, const Row& row,
                            const std::vector<Measurement>& measured, int ranks, DType dtype,
                            int64_t bytes, bool in_place) {
  const Measurement& own = Fastest(row.variants, measured);
  const double bandwidth = static_cast<double>(bytes) / own.timing.seconds / 1e9;
  nlohmann::ordered_json line = BenchLine("allreduce");
  line.update({{"transport", row.name.fabric},
               {"algorithm", row.name.algorithm},
               {"chosen", own.algorithm},
               {"ranks", ranks},
               {"dtype", std::string(DTypeName(dtype))},
               {"in_place", in_place},
               {"bytes", bytes},
               {"seconds", own.timing.seconds},
               {"min_seconds", own.timing.min_seconds},
               {"algbw", bandwidth},
               {"busbw", bandwidth * 2 * (ranks - 1) / ranks},
               {"errors", own.errors},
               {"rounds", own.timing.rounds},
               {"iterations", own.timing.iterations}});
  AddComparisons(comparison, row, measured, own.timing.seconds, line);
  return line;
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  absl::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const size_t unit = absl::string_view("KMG").find(digits.back());
    if (unit != absl::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      digits.remove_suffix(1);
    }
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number < 1 || number > (kMaxBytes >> shift)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a size from 1 to 16G, such as 64K or 256M"));
  }
  return number << shift;
}

absl::StatusOr<std::vector<int64_t>> Sizes(int64_t min, int64_t max, int64_t factor,
                                           int64_t element_bytes) {
  if (factor < 2) return absl::InvalidArgumentError("--factor must be at least 2");
  if (min < element_bytes) return absl::InvalidArgumentError("--min is less than an element");
  if (min > max) return absl::InvalidArgumentError("--min is more than --max");
  std::vector<int64_t> sizes;
  for (int64_t bytes = min; bytes <= max; bytes *= factor) {
    sizes.push_back(bytes / element_bytes * element_bytes);
  }
  return sizes;
}

}  // namespace cadre::bench
