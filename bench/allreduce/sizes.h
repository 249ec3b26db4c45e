// Sizes as people write them, and the row of sizes from one to another.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::bench {

// "300", "64K", "256M", "1G": bytes, powers of 1024. Errors: InvalidArgument for other text and for
// less than 1 or more than 16G.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// `least`, and the product with `factor` again and again up to `most`, each rounded down to whole
// elements. Errors: InvalidArgument for an empty row, less than one element, or factor < 2.
absl::StatusOr<std::vector<int64_t>> Sizes(int64_t least, int64_t most, int64_t factor,
                                           int64_t element_bytes);

}  // namespace cadre::bench
