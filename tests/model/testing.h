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

// A run whose layers are two equal branches.
inline constexpr char kTwoBranches[] = R"(
model {
  input { channels: 1 height: 16 width: 16 }
  layer { name: "flat" flatten {} }
  layer { name: "left1" input: "flat" fully_connected { out_features: 256 } }
  layer { name: "left2" fully_connected { out_features: 256 } }
  layer { name: "left3" fully_connected { out_features: 256 } }
  layer { name: "right1" input: "flat" fully_connected { out_features: 256 } }
  layer { name: "right2" fully_connected { out_features: 256 } }
  layer { name: "right3" fully_connected { out_features: 256 } }
  layer { name: "join" input: "left3" input: "right3" add {} }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 8
optimizer { sgd {} })";

}  // namespace cadre::testing
