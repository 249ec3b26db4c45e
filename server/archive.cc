#include "server/archive.h"

#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "server/checked_file.h"
#include "server/data_folder.h"

namespace cadre {
namespace {

constexpr char kOrderPrefix[] = "order-";
constexpr char kArchived[] = "archived-";

// Names of the files that the contributions to a version may have. A rank without a part of the
// shard has none.
std::vector<std::string> ContributionNamesOf(const v1::Apply& order) {
  std::vector<std::string> names;
  for (const v1::Participant& participant : order.participants()) {
    for (uint32_t rank = 0; rank < participant.ranks(); ++rank) {
      const std::string path =
          DataFolder::ContributionName({order.run(), order.round(), participant.group(),
                                        participant.generation(), rank, order.seed()});
      names.push_back(std::filesystem::path(path).filename().string());
    }
  }
  return names;
}

absl::StatusOr<ArchivedRound> ReadOrder(FileSystem& files, const std::string& path,
                                        uint32_t version) {
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, ReadChecked(files, path));
  ArchivedRound round;
  const size_t head = sizeof(round.digest);
  if (bytes.size() < head || !round.order.ParseFromString(bytes.substr(head)) ||
      round.order.round() != version) {
    return absl::DataLossError(
        absl::StrCat(path, ": does not contain the order of version ", version));
  }
  std::memcpy(&round.digest, bytes.data(), head);
  return round;
}

}  // namespace

absl::Status ArchiveRound(FileSystem& files, const std::string& run_folder, const v1::Apply& order,
                          uint64_t digest) {
  const std::string path = absl::StrCat(run_folder, "/", kOrderPrefix, order.round());
  if (files.LastWrite(path).ok()) return absl::OkStatus();
  for (const std::string& name : ContributionNamesOf(order)) {
    const absl::Status renamed = files.Rename(absl::StrCat(run_folder, "/", name),
                                              absl::StrCat(run_folder, "/", kArchived, name));
    if (!renamed.ok() && !absl::IsNotFound(renamed)) return renamed;
  }
  CADRE_RETURN_IF_ERROR(files.SyncFolder(run_folder));
  return WriteChecked(
      files, path,
      absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&digest), sizeof(digest)),
                   order.SerializeAsString()));
}

absl::StatusOr<std::map<uint32_t, ArchivedRound>> ReadArchive(FileSystem& files,
                                                              const std::string& run_folder) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files.List(run_folder));
  std::map<uint32_t, ArchivedRound> rounds;
  for (const FolderEntry& entry : entries) {
    absl::string_view number = entry.name;
    uint32_t version = 0;
    if (!absl::ConsumePrefix(&number, kOrderPrefix) || !absl::SimpleAtoi(number, &version)) {
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(ArchivedRound round,
                           ReadOrder(files, absl::StrCat(run_folder, "/", entry.name), version));
    for (const std::string& name : ContributionNamesOf(round.order)) {
      const std::string path = absl::StrCat(run_folder, "/", kArchived, name);
      if (files.LastWrite(path).ok()) round.contributions.push_back(path);
    }
    rounds.emplace(version, std::move(round));
  }
  return rounds;
}

}  // namespace cadre
