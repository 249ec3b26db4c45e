// The variants (algorithms on fabrics, see algorithm.h) that the benchmark measures, and the lines
// that it prints.
//
// A line reports one fabric and algorithm that the user named, such as ring over shared memory, or
// Gloo's best algorithm. It stands for one or several variants and reports the fastest at each
// size.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/allreduce/algorithm.h"
#include "bench/allreduce/runner.h"
#include "nlohmann/json.hpp"

namespace cadre::bench {

struct Row {
  // As the user named it, such as "shm" and "auto".
  Variant name;
  // Positions in Comparison::variants.
  std::vector<int64_t> variants;
};

struct Comparison {
  std::vector<Variant> variants;
  // Each row is printed as one line.
  std::vector<Row> rows;
  // Positions of the variants of Gloo and of the plain copy with which all rows are compared; empty
  // without such a comparison.
  std::vector<int64_t> gloo;
  std::vector<int64_t> socket;
};

struct ComparisonOptions {
  int ranks = 2;
  DType dtype = DType::kFloat32;
  // "shm", "tcp", "threads", "gloo", "socket".
  std::vector<std::string> transports;
  // "auto", "ring", "butterfly", "halving-doubling", "hierarchical".
  std::vector<std::string> algorithms;
  // "gloo", "socket".
  std::vector<std::string> compare;
};

// Errors: InvalidArgument, naming an unknown or impossible option; FailedPrecondition for Gloo if
// the program was built without it.
absl::StatusOr<Comparison> MakeComparison(const ComparisonOptions& options);

// The line of one row, as bench/allreduce/README.md describes it. `measured` has the measurements
// of all variants, in order.
nlohmann::ordered_json Line(const Comparison& comparison, const Row& row,
                            const std::vector<Measurement>& measured, int ranks, DType dtype,
                            int64_t bytes, bool in_place);

// "300", "64K", "256M", "1G": bytes, in powers of 1024. Errors: InvalidArgument for other text and
// for less than 1 or more than 16G.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// `min`, and its products with powers of `factor` up to `max`, each rounded down to whole elements.
// Errors: InvalidArgument if min > max, min is less than an element, or factor < 2.
absl::StatusOr<std::vector<int64_t>> Sizes(int64_t min, int64_t max, int64_t factor,
                                           int64_t element_bytes);

}  // namespace cadre::bench
