#include "tests/model/testing.h"

#include <gtest/gtest.h>
#include <zlib.h>

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

std::string WriteGzip(const std::string& path, absl::string_view bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  EXPECT_NE(file, nullptr);
  EXPECT_EQ(gzfwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
  EXPECT_EQ(gzclose(file), Z_OK);
  return path;
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
