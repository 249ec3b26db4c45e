// The variants (algorithms on fabrics, see fabric.h) that the benchmark measures, and the lines
// that it prints.
//
// A row is a fabric and an algorithm that the user named, such as ring over shared memory, or
// Gloo's best algorithm. It stands for one or several variants. Each row is printed as one line per
// size, which reports the fastest of its variants at that size.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/harness.h"
#include "nlohmann/json.hpp"
#include "tensor/dtype.h"

namespace cadre::bench {

// Names of an algorithm and of the fabric that it runs on, such as "shm" and "ring".
struct Variant {
  std::string fabric;
  std::string algorithm;

  friend bool operator==(const Variant&, const Variant&) = default;
};

// The result for one variant at one size; equal on all ranks.
struct Measurement {
  // The algorithm that ran; for "auto", the one that was chosen.
  std::string algorithm;
  // Wrong elements, over all ranks.
  int64_t errors = 0;
  // An iteration is one all-reduce. It ends when the slowest rank has the sum.
  Timing timing;
};

struct Row {
  // As the user named it, such as "shm" and "auto".
  Variant name;
  // Positions in Comparison::variants.
  std::vector<int64_t> variants;
};

struct Comparison {
  std::vector<Variant> variants;
  std::vector<Row> rows;
  // Positions of the variants of Gloo and of the plain socket exchange, which adds nothing, with
  // which all rows are compared; empty without such a comparison.
  std::vector<int64_t> gloo;
  std::vector<int64_t> socket;
};

struct ComparisonOptions {
  int ranks = 2;
  DType dtype = DType::kFloat32;
  // "shm", "tcp", "gloo", "socket".
  std::vector<std::string> transports;
  // "auto", "ring", "butterfly", "halving-doubling".
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
