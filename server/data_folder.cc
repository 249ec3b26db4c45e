#include "server/data_folder.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"

namespace cadre {

std::string DataFolder::ContributionName(const ContributionKey& key) {
  return absl::StrCat(key.run, "/", kStagePrefix, key.round, "-", key.group, "-", key.generation,
                      "-", key.rank, key.seed ? "-seed" : "");
}

std::string DataFolder::Run(const std::string& run) const { return absl::StrCat(path, "/", run); }

std::string DataFolder::RunFile(const std::string& run) const {
  return absl::StrCat(Run(run), "/run");
}

std::string DataFolder::Archived(const std::string& run, const std::string& lineage) const {
  return absl::StrCat(path, "/", kArchivePrefix, run, "-", lineage);
}

std::string DataFolder::Version(const std::string& run, uint32_t version) const {
  return absl::StrCat(Run(run), "/", kVersionPrefix, version);
}

std::string DataFolder::Outer(const std::string& run, uint32_t version) const {
  return absl::StrCat(Run(run), "/", kOuterPrefix, version);
}

std::string DataFolder::Frame(const std::string& run, uint32_t version) const {
  return absl::StrCat(Run(run), "/", kFramePrefix, version);
}

std::string DataFolder::Contribution(const ContributionKey& key) const {
  return absl::StrCat(path, "/", ContributionName(key));
}

void DataFolder::RemoveFile(const std::string& file) const {
  const absl::Status removed = files.RemoveFile(file);
  if (!removed.ok() && !absl::IsNotFound(removed)) LOG(ERROR) << removed;
}

}  // namespace cadre
