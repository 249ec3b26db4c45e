#include "worker/nn/reshard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

// The axes of `longer` after its prefix `shorter`; nothing if it is no prefix.
bool Suffix(const Axes& longer, const Axes& shorter, Axes* suffix) {
  if (longer.size() <= shorter.size() ||
      !std::equal(shorter.begin(), shorter.end(), longer.begin())) {
    return false;
  }
  suffix->assign(longer.begin() + static_cast<std::ptrdiff_t>(shorter.size()), longer.end());
  return true;
}

absl::Status TooFar(const Layout& from, const Layout& to) {
  return absl::UnimplementedError(
      absl::StrCat("no single reshard leads from ", from.ToString(), " to ", to.ToString()));
}

std::vector<int64_t> Offsets(const std::vector<Box>& boxes) {
  std::vector<int64_t> offsets = {0};
  for (const Box& box : boxes) offsets.push_back(offsets.back() + box.shape().elements());
  return offsets;
}

std::span<float> Piece(std::span<float> all, const std::vector<int64_t>& offsets, size_t i) {
  return all.subspan(static_cast<size_t>(offsets[i]),
                     static_cast<size_t>(offsets[i + 1] - offsets[i]));
}

// Pieces along the outermost dimension lie one behind the other in the whole tensor.
constexpr int kOutermost = 0;

}  // namespace

absl::StatusOr<std::unique_ptr<Reshard>> Reshard::Make(const Layout& from, const Layout& to,
                                                       const Axes& gradient_partial,
                                                       MeshCommunicators& comms) {
  Kind kind = Kind::kNone;
  int changed = 0;
  Axes axes;
  const size_t dims = std::max(from.split.size(), to.split.size());
  for (size_t d = 0; d < dims; ++d) {
    const int dim = static_cast<int>(d);
    if (from.axes(dim) == to.axes(dim)) continue;
    if (kind != Kind::kNone) return TooFar(from, to);
    changed = dim;
    if (Suffix(from.axes(dim), to.axes(dim), &axes)) {
      kind = Kind::kGather;
    } else if (Suffix(to.axes(dim), from.axes(dim), &axes)) {
      kind = Kind::kKeep;
    } else {
      return TooFar(from, to);
    }
  }
  const bool partial_fits = gradient_partial.empty() || kind == Kind::kNone ||
                            (kind == Kind::kGather && axes == gradient_partial);
  if (!partial_fits) return TooFar(from, to);
  return std::unique_ptr<Reshard>(
      new Reshard(from, to, kind, changed, std::move(axes), gradient_partial, comms));
}

Reshard::Reshard(Layout from, Layout to, Kind kind, int dim, Axes axes, Axes partial,
                 MeshCommunicators& comms)
    : from_(std::move(from)),
      to_(std::move(to)),
      kind_(kind),
      dim_(dim),
      axes_(std::move(axes)),
      partial_(std::move(partial)),
      comms_(comms) {}

std::vector<Box> Reshard::PeerBoxes(const Shape& shape) const {
  std::vector<Box> boxes;
  for (const int peer : comms_.mesh().Peers(comms_.rank(), axes_)) {
    boxes.push_back(LocalBox(shape, split(), comms_.mesh(), peer));
  }
  return boxes;
}

absl::Status Reshard::Gather(const Shape& shape, std::span<const float> part,
                             std::span<float> whole) {
  const std::vector<Box> boxes = PeerBoxes(shape);
  const std::vector<int64_t> offsets = Offsets(boxes);
  Communicator& comm = comms_.Over(axes_);
  const auto mine = static_cast<size_t>(comm.index());
  std::span<float> pieces = whole;
  if (dim_ != kOutermost) {
    scratch_.resize(whole.size());
    pieces = scratch_;
  }
  std::copy(part.begin(), part.end(), Piece(pieces, offsets, mine).begin());
  CADRE_RETURN_IF_ERROR(comm.AllGather(pieces, offsets));
  if (dim_ == kOutermost) return absl::OkStatus();
  const Box whole_box = LocalBox(shape, joined(), comms_.mesh(), comms_.rank());
  for (size_t i = 0; i < boxes.size(); ++i) {
    CopyBox(Piece(pieces, offsets, i), boxes[i], whole, whole_box, boxes[i]);
  }
  return absl::OkStatus();
}

absl::Status Reshard::ReduceScatter(const Shape& shape, std::span<float> whole,
                                    std::span<float> part) {
  const std::vector<Box> boxes = PeerBoxes(shape);
  const std::vector<int64_t> offsets = Offsets(boxes);
  Communicator& comm = comms_.Over(axes_);
  std::span<float> pieces = whole;
  if (dim_ != kOutermost) {
    scratch_.resize(whole.size());
    pieces = scratch_;
    const Box whole_box = LocalBox(shape, joined(), comms_.mesh(), comms_.rank());
    for (size_t i = 0; i < boxes.size(); ++i) {
      CopyBox(whole, whole_box, Piece(pieces, offsets, i), boxes[i], boxes[i]);
    }
  }
  CADRE_RETURN_IF_ERROR(comm.ReduceScatterSum(pieces, offsets));
  const std::span<float> mine = Piece(pieces, offsets, static_cast<size_t>(comm.index()));
  std::copy(mine.begin(), mine.end(), part.begin());
  return absl::OkStatus();
}

void Reshard::Keep(const Shape& shape, std::span<const float> whole, std::span<float> part) const {
  const Box whole_box = LocalBox(shape, joined(), comms_.mesh(), comms_.rank());
  const Box part_box = LocalBox(shape, split(), comms_.mesh(), comms_.rank());
  CopyBox(whole, whole_box, part, part_box, part_box);
}

absl::Status Reshard::Forward(int64_t samples, int64_t features, std::span<const float> x,
                              std::span<float> y) {
  const Shape shape{samples, features};
  switch (kind_) {
    case Kind::kNone:
      std::copy(x.begin(), x.end(), y.begin());
      return absl::OkStatus();
    case Kind::kGather:
      return Gather(shape, x, y);
    case Kind::kKeep:
      Keep(shape, x, y);
      return absl::OkStatus();
  }
  return absl::InternalError("unknown reshard");
}

absl::Status Reshard::Backward(int64_t samples, int64_t features, std::span<float> dy,
                               std::span<float> dx) {
  const Shape shape{samples, features};
  switch (kind_) {
    case Kind::kNone:
      if (!partial_.empty()) CADRE_RETURN_IF_ERROR(comms_.Over(partial_).AllReduceSum(dy));
      std::copy(dy.begin(), dy.end(), dx.begin());
      return absl::OkStatus();
    case Kind::kGather:
      if (!partial_.empty()) return ReduceScatter(shape, dy, dx);
      Keep(shape, dy, dx);
      return absl::OkStatus();
    case Kind::kKeep:
      return Gather(shape, dy, dx);
  }
  return absl::InternalError("unknown reshard");
}

}  // namespace cadre
