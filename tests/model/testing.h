// What the tests of descriptions share: the demo's spec, a folder that goes away, IDX files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre::testing {

// deploy/demo.textproto.
std::string DemoPath();
v1::RunSpec DemoSpec();
// model/zoo.
std::string ZooFolder();

// A spec from text format; fails the test where the text is not one.
v1::RunSpec SpecOf(absl::string_view text);

// A folder for one test, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  // Both write a file into it and return its path.
  std::string Write(const std::string& name, absl::string_view bytes) const;
  std::string WriteGzip(const std::string& name, absl::string_view bytes) const;
  std::string At(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The bytes of an IDX file of unsigned bytes.
std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements);

}  // namespace cadre::testing
