#include "tests/model/testing.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "model/run_file.h"

namespace cadre::testing {

std::string DemoPath() { return CADRE_SOURCE_DIR "/deploy/demo.textproto"; }

std::string ZooFolder() { return CADRE_SOURCE_DIR "/model/zoo"; }

v1::RunSpec DemoSpec() {
  const auto file = ReadRunSpec(DemoPath());
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? file->spec : v1::RunSpec();
}

v1::RunSpec SpecOf(absl::string_view text) {
  const auto file = ParseRunSpec("test", std::string(text));
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? file->spec : v1::RunSpec();
}

TemporaryFolder::TemporaryFolder() {
  std::string name = ::testing::TempDir() + "/cadre-spec-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, absl::string_view bytes) const {
  std::ofstream file(At(name), std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  EXPECT_TRUE(file.good()) << At(name);
  return At(name);
}

std::string TemporaryFolder::WriteGzip(const std::string& name, absl::string_view bytes) const {
  gzFile file = gzopen(At(name).c_str(), "wb");
  EXPECT_NE(file, nullptr);
  if (!bytes.empty()) {
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), std::ssize(bytes));
  }
  EXPECT_EQ(gzclose(file), Z_OK);
  return At(name);
}

std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements) {
  std::string bytes = {'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint32_t extent : dims) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(extent >> shift));
  }
  bytes.append(elements.data(), elements.size());
  return bytes;
}

}  // namespace cadre::testing
