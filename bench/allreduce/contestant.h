// What the all-reduce benchmark compares: one way of adding up, as one rank sees it.
//
// Thread-compatible; all ranks of a crew make the same calls in the same order.
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

// One size, in or out of place.
struct Task {
  DType dtype = DType::kFloat32;
  // Holds the sum afterwards; in place, it holds this rank's part before.
  std::span<std::byte> data;
  // Out of place: this rank's part, which stays as it is. Empty: in place.
  std::span<const std::byte> input;

  bool in_place() const { return input.empty(); }
};

class Contestant {
 public:
  virtual ~Contestant() = default;

  // What a program would do once for its buffers; the memory stays where it is until Finish.
  virtual absl::Status Prepare(const Task& task) = 0;
  // One all-reduce of what was prepared.
  virtual absl::Status Run() = 0;
  // After the last Run of a task, when all ranks are through.
  virtual void Finish() {}

  // False: it only moves bytes, so there is no sum to check.
  virtual bool adds() const { return true; }
  // Name of the algorithm that the prepared task is carried out by.
  virtual std::string algorithm() const = 0;
  // Anything else that explains the choice, as JSON; empty: nothing.
  virtual std::string explanation() const { return ""; }
};

// One way of connecting the ranks of a crew; owns the connections. Contestants borrow it.
class Network {
 public:
  virtual ~Network() = default;

  // What the other ranks must know to call this one.
  virtual absl::StatusOr<std::string> Listen() = 0;
  // `peers`: what every rank's Listen gave, by rank. Returns when the connections stand.
  virtual absl::Status Connect(const std::vector<std::string>& peers) = 0;
  // Requires: connected. Errors: InvalidArgument for an algorithm that it does not have here.
  virtual absl::StatusOr<std::unique_ptr<Contestant>> Make(absl::string_view algorithm) = 0;
};

}  // namespace cadre::bench
