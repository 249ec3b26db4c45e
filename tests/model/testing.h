// Shared by the tests of model/ and of folders that use it: the spec of deploy/demo.textproto,
// specs from text, IDX files.
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

// Parses a spec in text format; fails the test on an error.
v1::RunSpec SpecOf(absl::string_view text);

// Compresses the bytes into a file and returns its path.
std::string WriteGzip(const std::string& path, absl::string_view bytes);

// The bytes of an IDX file of unsigned bytes.
std::string IdxBytes(const std::vector<uint32_t>& dims, absl::string_view elements);

}  // namespace cadre::testing
