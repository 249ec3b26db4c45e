#include "server/frame_files.h"

#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/frame.h"
#include "server/file_format.h"

namespace cadre {
namespace {

// Meta of a frame, whose elements are followed by the words of its units, 16 bits each.
struct FrameMeta {
  uint32_t version = 0;
  uint32_t format = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t elements = 0;
  uint64_t fragment = 0;
};
static_assert(sizeof(FrameMeta) == 40);
// The newest format that is read, and the one that is written; 0 stands for the first one.
constexpr uint32_t kFrameFormat = 0;

// Zeros if the meta is shorter. That of a newer format may be longer.
absl::StatusOr<FrameMeta> FrameMetaOf(const BlockFile& file) {
  FrameMeta meta;
  const std::string& bytes = file.head().meta;
  if (bytes.size() >= sizeof(meta)) std::memcpy(&meta, bytes.data(), sizeof(meta));
  CADRE_RETURN_IF_ERROR(CheckFormat(file.path(), meta.format, kFrameFormat));
  return meta;
}

std::string EncodeMeta(const FrameMeta& meta) {
  return {reinterpret_cast<const char*>(&meta), sizeof(meta)};
}

}  // namespace

absl::Status FrameFiles::Load(const std::string& run, uint32_t version) {
  CADRE_ASSIGN_OR_RETURN(
      const auto file, BlockFile::Open(folder_.files, folder_.Frame(run, version), Access::kRead));
  CADRE_RETURN_IF_ERROR(FrameMetaOf(*file).status());
  absl::MutexLock lock(&mutex_);
  frames_[run][version] = file->head().data_bytes;
  return absl::OkStatus();
}

absl::StatusOr<StoredFrame> FrameFiles::Open(const std::string& run, uint32_t version,
                                             const ExchangeUnits& units, uint32_t fragments,
                                             Interval positions) const {
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Open(folder_.files, folder_.Frame(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const FrameMeta meta, FrameMetaOf(*file));
  const Interval span{meta.begin, meta.end};
  if (meta.version != version || !span.contains(positions) || meta.fragment > fragments) {
    return absl::DataLossError(absl::StrCat(file->path(), ": does not contain the frame"));
  }
  const int64_t elements = static_cast<int64_t>(file->head().data_bytes / sizeof(float));
  const std::string path = file->path();
  auto reader = std::make_unique<VersionReader>(std::move(file), Interval{0, elements});
  const auto fragment = static_cast<uint32_t>(meta.fragment);
  const auto count = [&](Interval part) {
    return std::ssize(units.In(units.FragmentIn(part, fragment, fragments)));
  };
  std::vector<uint16_t> words(count(span));
  words.resize((words.size() + 1) / 2 * 2);
  if (elements < static_cast<int64_t>(meta.elements + words.size() / 2)) {
    return absl::DataLossError(absl::StrCat(path, ": is too short"));
  }
  CADRE_RETURN_IF_ERROR(
      reader->Read(static_cast<int64_t>(meta.elements),
                   {reinterpret_cast<char*>(words.data()), words.size() * sizeof(uint16_t)}));
  const auto sum = [&](Interval part) {
    return std::accumulate(words.begin(), words.begin() + count(part), int64_t{0});
  };
  const int64_t begin = sum({span.begin, positions.begin});
  const int64_t end = sum({span.begin, positions.end});
  return StoredFrame{std::move(reader), {begin, end}, fragment};
}

absl::StatusOr<std::unique_ptr<BlockWriter>> FrameFiles::Create(const ApplyPlan& plan,
                                                                Codec codec) const {
  const std::span<const ExchangeUnit> units = plan.units->In(plan.span);
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Create(folder_.files, absl::StrCat(folder_.Frame(plan.run, plan.round), ".new"),
                        {EncodeMeta(FrameMeta()), DataFolder::kBlockBytes, 0}));
  const int64_t elements = MaxFrameWords(units, codec) + std::ssize(units);
  return std::make_unique<BlockWriter>(std::move(file), elements * sizeof(float));
}

absl::Status FrameFiles::Finish(const ApplyPlan& plan, RoundUpdate& update) {
  const FrameMeta meta{plan.round,
                       kFrameFormat,
                       plan.span.begin,
                       plan.span.end,
                       update.frame_bytes / sizeof(float),
                       plan.order.fragment()};
  // The last element may have half a number.
  std::vector<uint16_t> words = update.words;
  words.resize((words.size() + 1) / 2 * 2);
  const uint64_t words_bytes = words.size() * sizeof(uint16_t);
  const uint64_t bytes = update.frame_bytes + words_bytes;
  CADRE_RETURN_IF_ERROR(update.frame->Write(
      update.frame_bytes, {reinterpret_cast<const char*>(words.data()), words_bytes}));
  CADRE_RETURN_IF_ERROR(update.frame->Finish(EncodeMeta(meta), bytes));
  CADRE_RETURN_IF_ERROR(
      folder_.files.Rename(update.frame->path(), folder_.Frame(plan.run, plan.round)));
  {
    absl::MutexLock lock(&mutex_);
    frames_[plan.run][plan.round] = bytes;
  }
  const uint64_t limit = plan.span.size() * sizeof(float);
  RemoveIf(plan.run, [limit](uint32_t, uint64_t total) { return total > limit; });
  return absl::OkStatus();
}

void FrameFiles::Remove(const std::string& run, uint32_t version) {
  RemoveIf(run, [version](uint32_t each, uint64_t) { return each == version; });
}

void FrameFiles::RemoveAfter(const std::string& run, uint32_t newest) {
  RemoveIf(run, [newest](uint32_t version, uint64_t) { return version > newest; });
}

void FrameFiles::Forget(const std::string& run) {
  absl::MutexLock lock(&mutex_);
  frames_.erase(run);
}

void FrameFiles::RemoveIf(const std::string& run,
                          const std::function<bool(uint32_t, uint64_t)>& condition) {
  std::vector<uint32_t> removed;
  {
    absl::MutexLock lock(&mutex_);
    const auto frames = frames_.find(run);
    if (frames == frames_.end()) return;
    uint64_t bytes = 0;
    for (auto frame = frames->second.rbegin(); frame != frames->second.rend(); ++frame) {
      bytes += frame->second;
      if (condition(frame->first, bytes)) removed.push_back(frame->first);
    }
    for (const uint32_t version : removed) frames->second.erase(version);
  }
  for (const uint32_t version : removed) folder_.RemoveFile(folder_.Frame(run, version));
}

}  // namespace cadre
