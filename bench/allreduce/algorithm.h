// The interfaces of what the all-reduce benchmark compares, as one rank calls them: algorithms over
// fabrics. A fabric is a set of connected ranks with an implementation of all-reduce, such as Gloo
// over TCP.
//
// Thread-compatible; all ranks of a group make the same calls in the same order.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensor/dtype.h"

namespace cadre::bench {

// Names of an algorithm and of the fabric that it runs on, such as "shm" and "ring".
struct Variant {
  std::string fabric;
  std::string algorithm;

  friend bool operator==(const Variant&, const Variant&) = default;
};

// An all-reduce to run: its type and its buffers, in or out of place.
struct Task {
  DType dtype = DType::kFloat32;
  // The buffer that receives the sum. In place, it first holds this rank's addend.
  std::span<std::byte> data;
  // Out of place, this rank's addend, which is not changed. Empty if in place.
  std::span<const std::byte> input;

  bool in_place() const { return input.empty(); }
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
  virtual bool adds() const { return true; }
  // Name of the algorithm that the prepared task uses.
  virtual std::string name() const = 0;
  // The measurements from which the algorithm was chosen, as JSON; empty if there are none.
  virtual std::string explanation() const { return ""; }
};

// The connected ranks of a group; owns the connections. Algorithms borrow it.
class Fabric {
 public:
  virtual ~Fabric() = default;

  // Errors: InvalidArgument for an algorithm that the fabric does not have.
  virtual absl::StatusOr<std::unique_ptr<AllReduce>> Make(absl::string_view algorithm) = 0;
};

}  // namespace cadre::bench
