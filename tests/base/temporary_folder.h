// A folder for one test, removed at its end.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

namespace cadre {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(::testing::TempDir() + "cadre_test_XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(*this / name, std::ios::binary);
    file << bytes;
    file.close();
    EXPECT_TRUE(file.good()) << *this / name;
    return *this / name;
  }
  int Entries() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

}  // namespace cadre
