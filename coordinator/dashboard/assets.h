// The files of the dashboard, as parts of the program.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

struct Asset {
  // "/app.js"; "/" is the page.
  std::string path;
  absl::string_view bytes;
  std::string content_type;
};

const std::vector<Asset>& DashboardAssets();

}  // namespace cadre
