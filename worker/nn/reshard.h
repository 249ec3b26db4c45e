// Moves activations, and their gradients back, from one layout to another. Together with halos the
// only place where activations cross ranks.
//
// A tensor is seen as [samples, features]. Between two layouts at most one dimension may change,
// by losing axes (forward gathers over them) or by gaining axes (forward keeps a part). The
// gradient that comes back may be a sum over axes that has not been taken (the input of a layer
// whose weights are sharded); taking it is part of the way back:
//
//   forward            gradient comes as     backward
//   gather over A      PartialSum(A)         reduce-scatter over A
//   gather over A      complete              keep own part
//   keep own part      complete              gather
//   nothing            PartialSum(A)         all-reduce over A
//   nothing            complete              nothing
//
// Thread-compatible. Borrows the communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor/layout.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {

class Reshard {
 public:
  // `gradient_partial`: axes over which the gradient that comes back is still a sum.
  // Errors: Unimplemented for a change that needs more than one step, with both layouts.
  static absl::StatusOr<std::unique_ptr<Reshard>> Make(
      const Layout& from, const Layout& to, const std::vector<std::string>& gradient_partial,
      MeshCommunicators& comms);

  // True when neither direction does anything, so that the tensor may be used where it is.
  bool is_identity() const { return kind_ == Kind::kNone && partial_.empty(); }
  // True when forward leaves the tensor as it is.
  bool forward_is_identity() const { return kind_ == Kind::kNone; }

  // y (layout `to`) from x (layout `from`); `samples` of the whole batch, `features` of the whole
  // tensor.
  absl::Status Forward(int64_t samples, int64_t features, std::span<const float> x,
                       std::span<float> y);
  // dx (layout `from`, complete) from dy (layout `to`, still a sum over gradient_partial). dy is
  // scratch afterwards.
  absl::Status Backward(int64_t samples, int64_t features, std::span<float> dy,
                        std::span<float> dx);

 private:
  enum class Kind { kNone, kGather, kKeep };

  Reshard(Layout from, Layout to, Kind kind, int dim, std::vector<std::string> axes,
          std::vector<std::string> partial, MeshCommunicators& comms);

  // What each peer along axes_ holds in the split layout, in the peers' order.
  std::vector<Box> PeerBoxes(const Shape& shape) const;
  // `split` pieces of all peers -> the joined tensor, and its inverses.
  absl::Status Gather(const Shape& shape, std::span<const float> part, std::span<float> whole);
  absl::Status ReduceScatter(const Shape& shape, std::span<float> whole, std::span<float> part);
  void Keep(const Shape& shape, std::span<const float> whole, std::span<float> part) const;

  // The layout with fewer axes, and the one with more.
  const Layout& joined() const { return kind_ == Kind::kGather ? to_ : from_; }
  const Layout& split() const { return kind_ == Kind::kGather ? from_ : to_; }

  const Layout from_;
  const Layout to_;
  const Kind kind_;
  const int dim_;
  const std::vector<std::string> axes_;
  const std::vector<std::string> partial_;
  MeshCommunicators& comms_;
  std::vector<float> scratch_;
};

}  // namespace cadre
