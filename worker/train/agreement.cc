#include "worker/train/agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

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
      : code(code_in), size(static_cast<uint32_t>(std::min(text_in.size(), kMaxText))) {
    std::copy_n(text_in.begin(), size, text.begin());
  }
  std::string Text() const { return std::string(text.data(), std::min<size_t>(size, kMaxText)); }
};

absl::Status Share(Note* note, int root, Communicator& group) {
  return group.Broadcast(std::as_writable_bytes(std::span(note, 1)), root);
}

}  // namespace

absl::Status Agree(const absl::Status& mine, Communicator& group) {
  if (group.size() == 1) return mine;
  std::vector<uint64_t> failed(group.size());
  failed[group.index()] = mine.ok() ? 0 : 1;
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(failed)));
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) return absl::OkStatus();
  const int root = static_cast<int>(first - failed.begin());
  Note note(mine.raw_code(), mine.message());
  CADRE_RETURN_IF_ERROR(Share(&note, root, group));
  return absl::Status(static_cast<absl::StatusCode>(note.code),
                      absl::StrCat("rank ", root, ": ", note.Text()));
}

absl::StatusOr<std::string> TextOfFirst(const std::string& mine, Communicator& group) {
  uint64_t size = mine.size();
  CHECK_LE(size, kMaxSharedText);
  if (group.size() == 1) return mine;
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  if (size > kMaxSharedText) {
    return absl::InternalError(absl::StrCat("rank 0 says that it has a text of ", size, " bytes"));
  }
  std::string text = group.index() == 0 ? mine : std::string();
  text.resize(size);
  CADRE_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(text)), 0));
  return text;
}

}  // namespace cadre
