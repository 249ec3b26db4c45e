// The names of the files in the data folder of an aggregator (shard_store.h describes them), and
// its file system.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "server/ledger.h"

namespace cadre {

struct DataFolder {
  static constexpr absl::string_view kArchivePrefix = ".old-";
  static constexpr absl::string_view kVersionPrefix = "version-";
  static constexpr absl::string_view kOuterPrefix = "outer-";
  static constexpr absl::string_view kFramePrefix = "frame-";
  static constexpr absl::string_view kStagePrefix = "stage-";
  static constexpr absl::string_view kCopyPrefix = "copy-";

  // Bytes of a block of a version, of its states, and of its frame.
  static constexpr uint32_t kBlockBytes = (64 << 10) * sizeof(float);

  // Path of a contribution in a data folder.
  static std::string ContributionName(const ContributionKey& key);

  std::string Run(const std::string& run) const;
  // The file without which the others of the run cannot be interpreted.
  std::string RunFile(const std::string& run) const;
  std::string Archived(const std::string& run, const std::string& lineage) const;
  std::string Version(const std::string& run, uint32_t version) const;
  std::string Outer(const std::string& run, uint32_t version) const;
  std::string Frame(const std::string& run, uint32_t version) const;
  std::string Contribution(const ContributionKey& key) const;

  // Errors are logged.
  void RemoveFile(const std::string& file) const;

  // Borrowed.
  FileSystem& files;
  const std::string path;
};

}  // namespace cadre
