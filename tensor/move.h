// Redistribution of a tensor from one placement to another: reshards, halos and their gradients.
//
// Every rank plans its own part from the same values, so that the parts match without negotiation.
// A move has up to two exchanges: a sum that several ranks need is cheaper as a reduce-scatter and
// a gather; MoveCost selects the dimension in which the intermediate tensor is split.
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

// The location of a tensor: its layout, and the box of each rank. Boxes are those of the layout or
// wider: at a convolution's input they include the halo. In the overlaps of its gradient the values
// of the ranks are addends.
struct Placement {
  Layout layout;
  std::function<Box(int rank)> box;

  // LocalBox of the layout.
  static Placement Of(const Shape& shape, const Layout& layout, const Mesh& mesh);
};

// One rank's part of an exchange. Each element of its result is the sum of the values that members
// of the group (including itself) send, in the order of `receives`; zero without a sender.
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
  // Some element of some member's result has more than one message.
  bool sums = false;

  // Elements sent to, and received from, other ranks.
  int64_t elements_sent() const;
  int64_t elements_received() const;
  // Elements of messages that are not contiguous in memory, which are packed before sending, or
  // unpacked (or added) after receiving.
  int64_t packed_elements() const;
  int64_t unpacked_elements() const;
  // Whether a message can be received directly into the result.
  bool arrives_in_place(const Message& message) const;
  // Whether the result equals the input and no message is sent.
  bool is_identity() const;
};

struct Move {
  // Exchanges in order; step k + 1 takes the result of step k. Empty: no change.
  std::vector<Exchange> steps;

  bool is_identity() const { return steps.empty(); }
  int64_t elements_sent() const;
  // Elements of the largest intermediate tensor; 0 for fewer than two steps.
  int64_t scratch_elements() const;
};

// The alpha-beta model, up to a common factor: messages * elements_per_message + elements, of the
// busiest rank.
struct MoveCost {
  // Cost of a message in elements.
  double elements_per_message = 2048;
};

// This rank's part of the move. If `to` is a partial sum, the ranks at coordinate 0 of its axes get
// the tensor, the others zeros.
// Requires: boxes of `to` lie inside `shape`; a layout uses each axis at most once.
Move PlanMove(const Shape& shape, const Mesh& mesh, int rank, const Placement& from,
              const Placement& to, const MoveCost& cost = {});

}  // namespace cadre
