#include "member/agreement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/suspects.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// Longer messages of errors are truncated.
constexpr size_t kMaxErrorText = 4096;

}  // namespace

Communicator WholeGroup(Transport& transport, int channel) {
  std::vector<int> ranks(transport.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(transport, std::move(ranks), channel);
}

absl::Status Agree(const absl::Status& mine, Communicator& group) {
  if (group.size() == 1) return mine;
  std::vector<uint64_t> codes(group.size());
  codes[group.index()] = mine.raw_code();
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(codes)));
  const auto first =
      std::find_if(codes.begin(), codes.end(), [](uint64_t code) { return code != 0; });
  if (first == codes.end()) return absl::OkStatus();
  const int root = first - codes.begin();
  CADRE_ASSIGN_OR_RETURN(
      const std::string text,
      BroadcastText(std::string(mine.message().substr(0, kMaxErrorText)), group, root));
  return WithSuspects(
      absl::Status(static_cast<absl::StatusCode>(*first), absl::StrCat("rank ", root, ": ", text)),
      {group.members()[root]});
}

absl::StatusOr<std::string> BroadcastText(std::string text, Communicator& group, int root) {
  uint64_t size = text.size();
  CHECK_LE(size, kMaxSharedText);
  if (group.size() == 1) return text;
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  if (size > kMaxSharedText) {
    return absl::InternalError(
        absl::StrCat("rank ", root, " announces a text of ", size, " bytes"));
  }
  text.resize(size);
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(text)), root));
  return text;
}

absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& mine, Communicator& group) {
  std::vector<uint64_t> sizes(group.size());
  sizes[group.index()] = mine.size();
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(sizes)));
  std::vector<int64_t> offsets = {0};
  for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
  std::string bytes(offsets.back(), '\0');
  mine.copy(bytes.data() + offsets[group.index()], mine.size());
  CADRE_RETURN_IF_ERROR(group.AllGatherBytes(std::as_writable_bytes(std::span(bytes)), offsets));
  std::vector<std::string> texts;
  for (size_t i = 0; i < sizes.size(); ++i) texts.push_back(bytes.substr(offsets[i], sizes[i]));
  return texts;
}

}  // namespace cadre
