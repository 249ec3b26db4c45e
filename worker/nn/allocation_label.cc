// An out-of-memory message is only useful if it names a part of the model that can be changed: a
// layer.
#include "worker/nn/allocation_label.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cadre {

std::string LayerDisplayName(absl::string_view layer) {
  return absl::StrCat("layer '", layer, "'");
}

// A bucket may hold parts of many layers, but its size is mostly that of the largest parameter,
// which is the one to name when memory is short.
std::string BucketDisplayName(const ParameterIndex& index, const BucketOwnership& bucket) {
  if (bucket.parameters.empty()) return "";
  std::map<int, int> layers;
  const LocalParameter* largest = &bucket.parameters.front();
  for (const LocalParameter& local : bucket.parameters) {
    ++layers[index[local.parameter].layer];
    if (local.size() > largest->size()) largest = &local;
  }
  // A parameter is called "<layer>/weight"; names of layers may contain slashes.
  const std::string& name = index[largest->parameter].name;
  const std::string layer = LayerDisplayName(name.substr(0, name.rfind('/')));
  if (layers.size() == 1) return layer;
  return absl::StrCat(layer, " and ", layers.size() - 1, layers.size() == 2 ? " other" : " others");
}

int LayerAtPeak(const Tape& tape) {
  // By operation: size of the buffers whose lifetime starts with it, less the size of the buffers
  // whose lifetime ended with the operation before.
  std::vector<int64_t> change(tape.ops.size() + 1, 0);
  for (const TapeBuffer& buffer : tape.buffers) {
    if (buffer.words == 0 || buffer.first > buffer.last) continue;
    change[buffer.first] += buffer.words;
    change[buffer.last + 1] -= buffer.words;
  }
  size_t peak = 0;
  int64_t max_used = -1;
  int64_t used = 0;
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    used += change[i];
    if (used > max_used) peak = i;
    max_used = std::max(max_used, used);
  }
  return tape.ops[peak].layer;
}

}  // namespace cadre
