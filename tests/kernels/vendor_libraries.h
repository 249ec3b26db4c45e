// The folders in which tests search for the vendor's libraries.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "device/cuda/library_loader.h"

namespace cadre {

// The library folders of the toolkit whose headers the program was compiled with.
inline LibrarySearch VendorLibraries() {
  LibrarySearch search;
  const std::vector<std::string> folders = absl::StrSplit(CADRE_CUDA_LIBRARY_FOLDERS, ':');
  for (const std::string& folder : folders) {
    if (std::filesystem::is_directory(folder)) search.directories.push_back(folder);
  }
  return search;
}

}  // namespace cadre
