// One pass collects the images and labels by their key, the path without its last ending. Which of
// two members of one name is valid depends on the program that reads an archive (tar keeps the last
// one, WebDataset refuses it), so repeated keys are refused.
//
// An archive stores the second name of a file as a link. Only if there are links to images or
// labels, a second pass lists all members by path, and the links are followed as if the archive had
// been extracted: a hard link names a path of the archive, a symbolic link a path relative to its
// own folder. What is not a file of the archive in the end makes its sample unusable.
#include "worker/data/tar_index.h"

#include <filesystem>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/tar.h"

namespace cadre {
namespace {

// A label has at most ten digits; the rest is room for white space.
constexpr int64_t kMaxLabelBytes = 32;
// As many links as Linux follows for one path.
constexpr int kMaxLinks = 40;
constexpr absl::string_view kLabelEnding = ".cls";

// Without ".", ".." and repeated slashes; "../x" if it leads out of the archive.
std::string Normalized(absl::string_view path) {
  return std::filesystem::path(std::string(path)).lexically_normal().string();
}

// The path of a member or of the target of a hard link: relative to the archive, as tar extracts
// it.
std::string PathIn(absl::string_view name) {
  while (absl::ConsumePrefix(&name, "/")) continue;
  return Normalized(name);
}

// From the last dot of the file's name; empty if there is none.
absl::string_view EndingOf(absl::string_view path) {
  const size_t dot = path.rfind('.');
  const size_t slash = path.rfind('/');
  if (dot == absl::string_view::npos) return "";
  if (slash != absl::string_view::npos && dot < slash) return "";
  return path.substr(dot);
}

std::string KindName(const TarMember& member) {
  switch (member.kind) {
    case TarMember::Kind::kOther:
      return "devices and the like";
    default:
      return EntryKind(member.name);
  }
}

absl::StatusOr<int32_t> ReadLabel(const ByteSource& source, const TarMember& member) {
  if (member.size > kMaxLabelBytes) {
    return absl::DataLossError(absl::StrCat("its label has ", member.size, " bytes"));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string text,
                         source.ReadText({member.begin, member.begin + member.size}));
  int32_t label = 0;
  if (!absl::SimpleAtoi(text, &label) || label < 0) {
    return absl::DataLossError("its label is not a number");
  }
  return label;
}

// All members by normalized path, to follow links.
class LinkTargets {
 public:
  explicit LinkTargets(const ByteSource& source) : source_(source) {}

  // The file that a link leads to. Errors: DataLoss, naming the link, if there is none; those of
  // TarScanner.
  absl::StatusOr<TarMember> Follow(const TarMember& link);

 private:
  struct Entry {
    TarMember member;
    bool repeated = false;
  };

  absl::Status List();

  const ByteSource& source_;
  bool listed_ = false;
  absl::flat_hash_map<std::string, Entry> members_;
};

absl::Status LinkTargets::List() {
  if (std::exchange(listed_, true)) return absl::OkStatus();
  TarScanner scanner(source_);
  while (true) {
    CADRE_ASSIGN_OR_RETURN(std::optional<TarMember> member, scanner.Next());
    if (!member) return absl::OkStatus();
    const std::string path = PathIn(member->name);
    const auto [entry, added] = members_.try_emplace(path, Entry{*std::move(member)});
    if (!added) entry->second.repeated = true;
  }
}

absl::StatusOr<TarMember> LinkTargets::Follow(const TarMember& link) {
  CADRE_RETURN_IF_ERROR(List());
  const auto fail = [&](absl::string_view path, absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat("its member ", link.name, " is a link to ", path, ", ", why));
  };
  TarMember member = link;
  std::string path;
  for (int links = 0; links < kMaxLinks; ++links) {
    path =
        member.kind == TarMember::Kind::kHardLink
            ? PathIn(member.target)
            : Normalized((std::filesystem::path(PathIn(member.name)).parent_path() / member.target)
                             .string());
    const auto found = members_.find(path);
    if (found == members_.end()) return fail(path, "which is not in the archive");
    if (found->second.repeated) return fail(path, "which is in the archive more than once");
    member = found->second.member;
    if (member.is_file()) return member;
    if (!member.is_link()) return fail(path, "which is not a file");
  }
  return fail(path, "which is one of too many links");
}

class Indexer {
 public:
  explicit Indexer(const ByteSource& source) : source_(source), targets_(source) {}

  absl::Status Scan();
  TarIndex TakeIndex();

 private:
  struct Pair {
    // The members' names; empty if there is none.
    std::string image_name;
    std::string label_name;
    // An image of another format, for messages.
    std::string other_image;
    absl::StatusOr<TarSample> image = TarSample{};
    absl::StatusOr<int32_t> label = 0;
  };
  using Pairs = std::map<std::string, Pair>;

  absl::Status AddImage(const std::string& key, const TarMember& member);
  absl::Status AddLabel(const std::string& key, const TarMember& member);
  // The pair of a key, which is added to `order`.
  Pair& PairOf(const std::string& key, std::vector<Pairs::const_iterator>& order);
  // The member itself, or the file that it leads to.
  absl::StatusOr<TarMember> FileOf(const TarMember& member);
  absl::Status Repeated(const std::string& key, absl::string_view what, absl::string_view first,
                        absl::string_view second) const;

  const ByteSource& source_;
  LinkTargets targets_;
  Pairs pairs_;
  // Pairs with an image, in the order of these; and those with a label, in the order of these.
  std::vector<Pairs::const_iterator> images_;
  std::vector<Pairs::const_iterator> labels_;
  std::map<std::string, int64_t> unused_;
};

absl::Status Indexer::Scan() {
  TarScanner scanner(source_);
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const std::optional<TarMember> member, scanner.Next());
    if (!member) return absl::OkStatus();
    const absl::string_view ending = EndingOf(member->name);
    const std::string key =
        PathIn(absl::string_view(member->name).substr(0, member->name.size() - ending.size()));
    const bool is_folder = member->kind == TarMember::Kind::kFolder;
    if (!is_folder && IsJpegName(member->name)) {
      CADRE_RETURN_IF_ERROR(AddImage(key, *member));
    } else if (!is_folder && ending == kLabelEnding) {
      CADRE_RETURN_IF_ERROR(AddLabel(key, *member));
    } else {
      if (!is_folder) ++unused_[KindName(*member)];
      if (IsOtherImageName(member->name)) pairs_[key].other_image = member->name;
    }
  }
}

Indexer::Pair& Indexer::PairOf(const std::string& key, std::vector<Pairs::const_iterator>& order) {
  const auto [entry, added] = pairs_.try_emplace(key);
  order.push_back(entry);
  return entry->second;
}

absl::Status Indexer::Repeated(const std::string& key, absl::string_view what,
                               absl::string_view first, absl::string_view second) const {
  return absl::InvalidArgumentError(absl::StrCat(source_.name(), ": key ", key, " has two ", what,
                                                 ": members ", first, " and ", second,
                                                 "; names must be unique in a shard"));
}

absl::Status Indexer::AddImage(const std::string& key, const TarMember& member) {
  Pair& pair = PairOf(key, images_);
  if (!pair.image_name.empty()) return Repeated(key, "images", pair.image_name, member.name);
  pair.image_name = member.name;
  const absl::StatusOr<TarMember> file = FileOf(member);
  if (!file.ok()) {
    pair.image = file.status();
    return absl::OkStatus();
  }
  pair.image =
      TarSample{.key = key, .header = member.header, .begin = file->begin, .size = file->size};
  return absl::OkStatus();
}

absl::Status Indexer::AddLabel(const std::string& key, const TarMember& member) {
  Pair& pair = PairOf(key, labels_);
  if (!pair.label_name.empty()) return Repeated(key, "labels", pair.label_name, member.name);
  pair.label_name = member.name;
  const absl::StatusOr<TarMember> file = FileOf(member);
  pair.label = file.ok() ? ReadLabel(source_, *file) : file.status();
  return absl::OkStatus();
}

absl::StatusOr<TarMember> Indexer::FileOf(const TarMember& member) {
  if (member.is_file()) return member;
  if (member.is_link()) return targets_.Follow(member);
  return absl::DataLossError(absl::StrCat("its member ", member.name, " is not a file"));
}

TarIndex Indexer::TakeIndex() {
  TarIndex index{.unused = std::move(unused_)};
  for (const auto& entry : images_) {
    const auto& [key, pair] = *entry;
    absl::Status status = pair.image.status();
    if (status.ok()) status = pair.label.status();
    if (pair.label_name.empty()) status = absl::DataLossError("it has no member .cls");
    if (!status.ok()) {
      index.unusable.emplace_back(key, status);
      continue;
    }
    index.samples.push_back(*pair.image);
    index.samples.back().label = *pair.label;
  }
  for (const auto& entry : labels_) {
    const auto& [key, pair] = *entry;
    if (!pair.image_name.empty()) continue;
    index.unusable.emplace_back(
        key, absl::DataLossError(pair.other_image.empty()
                                     ? "it has a label, but no member .jpg, .jpeg, .jpe or .jfif"
                                     : absl::StrCat("its image ", pair.other_image,
                                                    " is not a JPEG, which alone is read")));
  }
  return index;
}

}  // namespace

absl::StatusOr<TarIndex> IndexTarShard(const ByteSource& source) {
  Indexer indexer(source);
  CADRE_RETURN_IF_ERROR(indexer.Scan());
  return indexer.TakeIndex();
}

}  // namespace cadre
