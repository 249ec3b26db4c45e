// The all-reduces that bench_allreduce compares: algorithms over fabrics. A fabric is a set of
// connected ranks with an implementation of all-reduce, such as Gloo over TCP. Each rank calls this
// interface for itself.
//
// Thread-compatible; all ranks of a group make the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/allreduce/board.h"
#include "tensor/dtype.h"

namespace cadre::bench {

// An all-reduce to run: its type and its buffers, in or out of place.
struct Task {
  DType dtype = DType::kFloat32;
  // The buffer that receives the sum. In place, it first holds this rank's addend.
  std::span<std::byte> data;
  // Out of place, this rank's addend, which is not changed. Empty if in place.
  std::span<const std::byte> input;

  bool in_place() const { return input.empty(); }
  // Copies `input` to `data` if out of place. Algorithms that work only in place call this first.
  void CopyInput() const {
    if (!in_place()) std::memcpy(data.data(), input.data(), input.size());
  }
};

class AllReduce {
 public:
  virtual ~AllReduce() = default;

  // Does the work that a program would do once for its buffers, which remain valid until Finish.
  virtual absl::Status Prepare(const Task& task) = 0;
  // One all-reduce of the prepared task.
  virtual absl::Status Run() = 0;
  // Called after the last Run of a task on all ranks.
  virtual void Finish() {}

  // False: the algorithm only moves bytes, so there is no sum to verify.
  virtual bool computes_sum() const { return true; }
  // Name of the algorithm that the prepared task uses.
  virtual std::string name() const = 0;
  // The measurements from which the algorithm was chosen, as JSON; empty if there are none.
  virtual std::string explanation() const { return ""; }
};

// The connected ranks of a group; owns the connections. A call creates the named algorithm, which
// borrows them. Errors: InvalidArgument for an algorithm that the fabric does not have.
using Fabric =
    std::function<absl::StatusOr<std::unique_ptr<AllReduce>>(absl::string_view algorithm)>;

// The collectives of Cadre. The algorithms are those of tensor/collective.h and "auto", which
// measures the links and chooses the algorithm with the lowest cost for each size. Ranks are
// connected over TCP with `connections` connections per pair (0: as many as in a training group),
// or over shared memory. Errors: FailedPrecondition if a connection is not of the requested kind,
// e.g. TCP because shared memory is not available.
absl::StatusOr<Fabric> ConnectCadre(BoardRank& self, bool tcp, int connections);

// Gloo over TCP on the loopback device. `folder` is initially empty; ranks write their addresses to
// it. Errors: FailedPrecondition if the program was built without Gloo.
absl::StatusOr<Fabric> ConnectGloo(BoardRank& self, const std::string& folder);

// The names of Gloo's implementations for which `algorithm` stands; "auto" stands for all of them.
// "ring-chunked", "halving-doubling" and "bcube" are classes, created once for a buffer; "new-ring"
// and "new-bcube" are the function gloo::allreduce. Errors: FailedPrecondition without Gloo;
// InvalidArgument if Gloo has no such algorithm for this type and number of ranks.
absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks);

// An upper bound for the speed over loopback TCP: two processes exchange the bytes of an all-reduce
// in both directions over one connection, by plain send and recv, without adding. Requires: two
// ranks.
absl::StatusOr<Fabric> ConnectSocket(BoardRank& self);

}  // namespace cadre::bench
