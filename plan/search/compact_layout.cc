#include "plan/search/compact_layout.h"

#include <glog/logging.h>

namespace cadre {

CompactMesh::CompactMesh(const Mesh& mesh) {
  for (const Mesh::Axis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    names_.push_back(axis.name);
    sizes_.push_back(axis.size);
  }
  CHECK_LE(axes(), kMaxCompactAxes) << mesh.ToString();
}

int CompactMesh::Find(const std::string& name) const {
  for (int a = 0; a < axes(); ++a) {
    if (names_[a] == name) return a;
  }
  return -1;
}

double CompactMesh::Ranks(const AxisList& list) const {
  double ranks = 1;
  for (int i = 0; i < list.count; ++i) ranks *= size(list[i]);
  return ranks;
}

double CompactMesh::Ranks(AxisSet set) const {
  double ranks = 1;
  for (int a = 0; set != 0; ++a, set >>= 1) {
    if ((set & 1) != 0) ranks *= size(a);
  }
  return ranks;
}

CompactLayout CompactMesh::Compact(const Layout& layout) const {
  CHECK_LE(std::ssize(layout.split), kMaxDimensions) << layout.ToString();
  CompactLayout compact;
  for (size_t d = 0; d < layout.split.size(); ++d) {
    for (const std::string& axis : layout.split[d]) {
      const int number = Find(axis);
      if (number >= 0) compact.split[d].push_back(number);
    }
  }
  for (const std::string& axis : layout.partial_sum) {
    const int number = Find(axis);
    if (number >= 0) compact.partial |= AxisSet{1} << number;
  }
  return compact;
}

std::vector<std::string> CompactMesh::Names(AxisSet set) const {
  std::vector<std::string> names;
  for (int a = 0; a < axes(); ++a) {
    if ((set >> a & 1) != 0) names.push_back(names_[a]);
  }
  return names;
}

AxisSet SetOf(const AxisList& list) {
  AxisSet set = 0;
  for (int i = 0; i < list.count; ++i) set |= AxisSet{1} << list[i];
  return set;
}

AxisSet SplittingAxes(const CompactLayout& layout) {
  AxisSet set = 0;
  for (const AxisList& list : layout.split) set |= SetOf(list);
  return set;
}

Extents ExtentsOf(double samples, const Shape& sample) {
  CHECK_LT(sample.rank(), kMaxDimensions) << sample.ToString();
  Extents extents{.count = sample.rank() + 1};
  extents.extent[0] = samples;
  for (int d = 0; d < sample.rank(); ++d) {
    extents.extent[d + 1] = sample[d];
  }
  return extents;
}

}  // namespace cadre
