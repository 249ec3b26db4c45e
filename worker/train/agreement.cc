#include "worker/train/agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// The wire form of a status: code, length, text.
struct Note {
  static constexpr size_t kMaxText = 4096;
  int32_t code = 0;
  uint32_t size = 0;
  std::array<char, kMaxText> text = {};

  Note(int code_in, absl::string_view text_in)
      : code(code_in), size(std::min(text_in.size(), kMaxText)) {
    std::copy_n(text_in.begin(), size, text.begin());
  }
  std::string Text() const { return std::string(text.data(), std::min<size_t>(size, kMaxText)); }
};

}  // namespace

Communicator WholeGroup(Transport& transport, int channel) {
  std::vector<int> ranks(transport.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(transport, std::move(ranks), channel);
}

absl::Status Agree(const absl::Status& mine, Communicator& group) {
  if (group.size() == 1) return mine;
  std::vector<uint64_t> failed(group.size());
  failed[group.index()] = mine.ok() ? 0 : 1;
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(failed)));
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) return absl::OkStatus();
  const int root = first - failed.begin();
  Note note(mine.raw_code(), mine.message());
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&note, 1)), root));
  return absl::Status(static_cast<absl::StatusCode>(note.code),
                      absl::StrCat("rank ", root, ": ", note.Text()));
}

absl::StatusOr<std::string> TextOfFirst(const std::string& mine, Communicator& group) {
  uint64_t size = mine.size();
  CHECK_LE(size, kMaxSharedText);
  if (group.size() == 1) return mine;
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  if (size > kMaxSharedText) {
    return absl::InternalError(absl::StrCat("rank 0 announces a text of ", size, " bytes"));
  }
  std::string text = group.index() == 0 ? mine : std::string();
  text.resize(size);
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(text)), 0));
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
