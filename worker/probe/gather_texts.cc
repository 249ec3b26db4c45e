#include "worker/probe/gather_texts.h"

#include <cstdint>
#include <span>

#include "base/status.h"

namespace cadre {

absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& own, Communicator& all) {
  const auto members = static_cast<size_t>(all.size());
  const auto index = static_cast<size_t>(all.index());
  std::vector<uint64_t> sizes(members);
  sizes[index] = own.size();
  CADRE_RETURN_IF_ERROR(all.AllReduceSum(std::span<uint64_t>(sizes)));
  std::vector<int64_t> offsets = {0};
  for (const uint64_t size : sizes) offsets.push_back(offsets.back() + static_cast<int64_t>(size));
  std::string bytes(offsets.back(), '\0');
  own.copy(bytes.data() + offsets[index], own.size());
  CADRE_RETURN_IF_ERROR(all.AllGatherBytes(std::as_writable_bytes(std::span(bytes)), offsets));
  std::vector<std::string> texts;
  for (size_t i = 0; i < members; ++i) {
    texts.push_back(bytes.substr(offsets[i], sizes[i]));
  }
  return texts;
}

}  // namespace cadre
