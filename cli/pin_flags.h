// Parses flags with which the user fixes parts of a plan (pins): `--mesh data=4,model=2`,
// `--layer fc6=model,conv1=data`.
//
// Thread-safe (pure functions).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Both return the pins in the given order. The run file's validation checks whether such axes and
// layers exist. Errors: InvalidArgument, naming the flag, for empty text, a part without `=`, a
// duplicate axis or layer, or a size that is not a whole number of at least 1.
absl::StatusOr<std::vector<v1::MeshAxis>> ParseMesh(absl::string_view text);
absl::StatusOr<std::vector<v1::LayerPin>> ParseLayerPins(absl::string_view text);

}  // namespace cadre
