// How a tensor gets from where it lies to where it is needed: layouts become boxes, and boxes
// become messages. Reshards, halos, and their gradients' ways back are all moves.
//
// Every rank plans its own part, from the same values, so that the parts fit together. A move is
// one exchange or two: a sum that everybody needs is cheaper as a reduce-scatter and a gather.
// Which dimension the piece in between is split along is chosen by MoveCost.
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

// Where a tensor lies: its layout, and what each rank holds. The boxes are the layout's, or wider:
// at a convolution's input they include the halo. A gradient that comes back from there is, in the
// overlaps, a sum of what the ranks hold, and is treated so.
struct Placement {
  Layout layout;
  std::function<Box(int rank)> box;

  // LocalBox of the layout.
  static Placement Of(const Shape& shape, const Layout& layout, const Mesh& mesh);
};

// One rank's part of an exchange: what it makes is, element by element, the sum of what the group's
// members (itself included) send of it, in the order of `receives`; zero where nobody does.
struct Exchange {
  struct Message {
    // Index in `members`.
    int peer = 0;
    Box box;
  };
  // The ranks that take part, by number, this one among them; in an order equal on all of them.
  std::vector<int> members;
  int index = 0;
  Box have;
  Box make;
  // In members' order, none empty; a message to oneself is a copy, and is in both lists.
  std::vector<Message> sends;
  std::vector<Message> receives;
  // True when more than one message falls on some element of some rank's part.
  bool sums = false;

  // Elements that go to other ranks.
  int64_t words_sent() const;
  int64_t words_received() const;
  // Messages that are not one run of memory are packed on the way out, and unpacked (or added) on
  // the way in: the words that this takes.
  int64_t packed_words() const;
  int64_t unpacked_words() const;
  // Whether a message from another rank can arrive where it shall be.
  bool arrives_in_place(const Message& message) const;
  // True when nothing changes: what is there is what is needed, and nobody else is asked.
  bool is_identity() const;
};

struct Move {
  // None: the tensor may be used where it is. Step k + 1 takes what step k makes.
  std::vector<Exchange> steps;

  bool is_identity() const { return steps.empty(); }
  int64_t words_sent() const;
  // Elements of the largest piece between two steps; 0 for fewer than two.
  int64_t scratch_words() const;
};

// Seconds that a move takes in the alpha-beta model, up to a common factor: messages * alpha +
// words
// * beta, on the rank that has most to do.
struct MoveCost {
  // A message costs as much as this many words.
  double words_per_message = 2048;
};

// This rank's part of the move. `to` may be a partial sum too: the members at coordinate 0 of its
// axes get the tensor, the others zeros.
// Requires: boxes of `to` lie inside `shape`; every axis of a layout is used once in it.
Move PlanMove(const Shape& shape, const Mesh& mesh, int rank, const Placement& from,
              const Placement& to, const MoveCost& cost = {});

}  // namespace cadre
