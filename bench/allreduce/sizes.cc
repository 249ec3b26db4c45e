#include "bench/allreduce/sizes.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre::bench {
namespace {

constexpr int64_t kMaxBytes = int64_t{16} << 30;

}  // namespace

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

absl::StatusOr<std::vector<int64_t>> Sizes(int64_t least, int64_t most, int64_t factor,
                                           int64_t element_bytes) {
  if (factor < 2) return absl::InvalidArgumentError("--factor must be at least 2");
  if (least < element_bytes) return absl::InvalidArgumentError("--min is less than an element");
  if (least > most) return absl::InvalidArgumentError("--min is more than --max");
  std::vector<int64_t> sizes;
  for (int64_t bytes = least; bytes <= most; bytes *= factor) {
    sizes.push_back(bytes / element_bytes * element_bytes);
  }
  return sizes;
}

}  // namespace cadre::bench
