// Plans how the ranks of a mesh redistribute a tensor from one placement to another: reshards,
// halos and the gradients of both.
//
// Every rank plans its own part from the same values, so the parts match without negotiation. A
// move has up to two exchanges: a sum that several ranks need is cheaper as a reduce-scatter
// followed by a gather. MoveCost determines the dimension in which the intermediate tensor is
// split.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/box.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace cadre {

// The location of a tensor: its layout, and the box that each rank holds. A box is the one of the
// layout or wider: at a convolution's input it includes the halo. If the tensor is the gradient of
// such an input, the values that several ranks hold of one element are addends.
struct Placement {
  Layout layout;
  std::function<Box(int rank)> box;

  // LocalBox of the layout.
  static Placement Of(const Shape& shape, const Layout& layout, const Mesh& mesh);
};

// One rank's part of an exchange. Each element of the rank's result is the sum of the values that
// members (including the rank itself) send for it, in the order of `receives`; zero if none does.
struct Exchange {
  struct Message {
    // Index in `members`.
    int peer = 0;
    Box box;
  };
  // The ranks of the exchange, including this one, in the same order on all of them.
  std::vector<int> members;
  int index = 0;
  // Regions that the rank has before and after the exchange.
  Box have;
  Box make;
  // In the order of `members`, without empty messages. A message to the rank itself is a copy and
  // is in both lists.
  std::vector<Message> sends;
  std::vector<Message> receives;
  // Whether some element of some member's result is in more than one message.
  bool sums = false;

  // Elements sent to, and received from, other ranks.
  int64_t elements_sent() const;
  int64_t elements_received() const;
  // Elements in messages that must be packed before sending, and in messages that must be unpacked
  // (or added) after receiving, because they are not contiguous in memory.
  int64_t packed_elements() const;
  int64_t unpacked_elements() const;
  // Whether a message can be received directly into the result.
  bool arrives_in_place(const Message& message) const;
  // Whether the result equals the input and no message is sent.
  bool is_identity() const;
  // Whether no message is exchanged with another rank.
  bool is_local() const;
};

// One rank's part of a move.
struct Move {
  // Exchanges in order; step k + 1 takes the result of step k. Empty: the tensor is not changed.
  std::vector<Exchange> steps;

  bool is_identity() const { return steps.empty(); }
  int64_t elements_sent() const;
  // Elements of the largest intermediate tensor; 0 for fewer than two steps.
  int64_t scratch_elements() const;
};

// The cost of a move by the alpha-beta model, in units of one element's transfer: messages *
// elements_per_message + elements, on the busiest rank.
struct MoveCost {
  // Cost of a message in elements.
  double elements_per_message = 2048;
};

// This rank's part of the move. If `to` is a partial sum, the ranks at coordinate 0 of the summed
// axes get the tensor, the others zeros. Requires: boxes of `to` lie inside `shape`; a layout uses
// each axis at most once.
Move PlanMove(const Shape& shape, const Mesh& mesh, int rank, const Placement& from,
              const Placement& to, const MoveCost& cost = {});

}  // namespace cadre
