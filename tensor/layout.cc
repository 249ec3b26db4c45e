#include "tensor/layout.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {

Layout Layout::Split(int dim, std::vector<std::string> axes) {
  CHECK_GE(dim, 0);
  Layout layout;
  layout.split.resize(dim + 1);
  layout.split.back() = std::move(axes);
  return layout;
}

const std::vector<std::string>& Layout::axes(int dim) const {
  // Never destroyed: safe to use during the destruction of static objects.
  static const auto& none = *new std::vector<std::string>();
  return dim < std::ssize(split) ? split[dim] : none;
}

std::string Layout::ToString() const {
  std::vector<std::string> parts;
  for (size_t dim = 0; dim < split.size(); ++dim) {
    if (!split[dim].empty()) {
      parts.push_back(absl::StrCat(dim, ": ", absl::StrJoin(split[dim], "*")));
    }
  }
  std::vector<std::string> terms;
  if (!parts.empty()) terms.push_back(absl::StrCat("{", absl::StrJoin(parts, ", "), "}"));
  if (!partial_sum.empty()) {
    terms.push_back(absl::StrCat("partial(", absl::StrJoin(partial_sum, "*"), ")"));
  }
  std::string text = terms.empty() ? "replicated" : absl::StrJoin(terms, " + ");
  if (!at.empty()) absl::StrAppend(&text, " on ", ToText(at));
  return text;
}

bool operator==(const Layout& a, const Layout& b) {
  const int dims = std::max(a.split.size(), b.split.size());
  for (int dim = 0; dim < dims; ++dim) {
    if (a.axes(dim) != b.axes(dim)) return false;
  }
  return a.partial_sum == b.partial_sum && a.at == b.at;
}

int64_t PartBegin(int64_t n, int64_t i, int64_t parts) { return n * i / parts; }

Box LocalBox(const Shape& shape, const Layout& layout, const Mesh& mesh, int rank) {
  Box box = Box::Whole(shape);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const std::vector<std::string>& axes = layout.axes(dim);
    const int64_t parts = mesh.Size(axes);
    const int64_t part = mesh.Coordinate(rank, axes);
    box.begin[dim] = PartBegin(shape[dim], part, parts);
    box.end[dim] = PartBegin(shape[dim], part + 1, parts);
  }
  if (!mesh.IsAt(rank, layout.at)) box.begin[0] = box.end[0] = 0;
  return box;
}

}  // namespace cadre
