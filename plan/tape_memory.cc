// Assigns offsets in one block of memory to buffers with known lifetimes.
//
// This is offset calculation, or dynamic storage allocation: buffers are rectangles with fixed
// extent in time (first to last operation) and height (size), to be stacked without overlap in the
// lowest total height. It is NP-hard (Garey and Johnson 1979, problem SR2). The heuristic is
// "greedy by size" of Pisarchyk and Lee ("Efficient memory management for deep neural net
// inference", 2020, arXiv:2001.03288), with first fit: buffers are placed in order of decreasing
// size, each at the lowest offset where no placed buffer with an overlapping lifetime lies. Ties
// keep the order of creation, so all ranks with equal tapes have equal offsets.
//
// Before that, an operation that may work in place and is the last one to use an operand gets the
// operand's buffer for its result (the in-place optimisation of Chen, Xu, Zhang and Guestrin,
// "Training deep nets with sublinear memory cost", 2016, section 3). This extends the lifetime of
// the operand's buffer, so operations are considered in execution order. The largest gain is the
// loss of a language model: its scores, one for each token and class, become their gradient.
//
// With several micro-batches in flight (plan/pipeline.h), each has a block of its own, but many
// buffers live in one pass only: gradients of activations, scratch memory and what is recomputed.
// SeparatePasses assigns these to memory that all passes share, because a rank executes one pass
// after the other. Buffers of sends and receives remain in the block, since messages may be on
// their way while another pass is executed. Both parts are packed by the same heuristic. A block in
// which all buffers are packed together may take less than the two parts, because what lives in one
// pass takes the places of what is no longer needed. If of t words k remain in the block and p are
// shared, k n + p <= t n is true for each number n > 2 of micro-batches if it is true for 2.
//
// Invariants (tape_test): two buffers that are alive at the same operation do not overlap, and
// buffers of concurrent operations count as alive in both. Cost: quadratic in buffers, at most a
// few thousand.
#include "plan/tape.h"

#include <algorithm>
#include <numeric>

namespace cadre {
namespace {

// Buffers begin at multiples of this many words: a cache line.
constexpr int64_t kAlignment = 16;

std::vector<int*> BuffersOf(TapeOp& op) {
  std::vector<int*> buffers = {&op.y,      &op.saved,    &op.scratch, &op.dy,
                               &op.addend, &op.other_dy, &op.total_dy};
  for (int& buffer : op.x) buffers.push_back(&buffer);
  for (int& buffer : op.dx) buffers.push_back(&buffer);
  buffers.erase(std::remove_if(buffers.begin(), buffers.end(), [](const int* b) { return *b < 0; }),
                buffers.end());
  return buffers;
}

// The buffers of a send live until the loss, or until the end of backward: a rank waits for what it
// has sent before it continues in the same block of memory (plan/pipeline.cc).
void ExtendSends(Tape& tape) {
  const auto loss = std::find_if(tape.ops.begin(), tape.ops.end(),
                                 [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
  for (auto op = tape.ops.begin(); op != tape.ops.end(); ++op) {
    if (op->kind != TapeOpKind::kSend) continue;
    const int last = (op < loss ? loss + 1 : tape.ops.end()) - tape.ops.begin() - 1;
    for (const int number : {op->x[0], op->scratch}) {
      if (number >= 0) tape.buffers[number].last = std::max(tape.buffers[number].last, last);
    }
  }
}

// A rank begins to receive a message when it has received the one before, or when the pass begins;
// the first message of backward may arrive between the passes.
void ExtendReceives(Tape& tape) {
  int earliest = 0;
  for (int i = 0; i < std::ssize(tape.ops); ++i) {
    const TapeOp& op = tape.ops[i];
    if (op.kind == TapeOpKind::kLoss) earliest = i;
    if (op.kind != TapeOpKind::kReceive) continue;
    for (const int number : {op.y, op.scratch}) {
      if (number < 0) continue;
      TapeBuffer& buffer = tape.buffers[number];
      buffer.first = std::min(buffer.first, earliest);
    }
    earliest = i + 1;
  }
}

void FindLifetimes(Tape& tape) {
  for (TapeBuffer& buffer : tape.buffers) {
    buffer.first = std::ssize(tape.ops);
    buffer.last = -1;
  }
  for (int i = 0; i < std::ssize(tape.ops); ++i) {
    // The buffers of either of two concurrent operations are alive during both.
    const int first = i > 0 && tape.ops[i - 1].with_next ? i - 1 : i;
    const int last = tape.ops[i].with_next ? i + 1 : i;
    for (const int* number : BuffersOf(tape.ops[i])) {
      TapeBuffer& buffer = tape.buffers[*number];
      buffer.first = std::min(buffer.first, first);
      buffer.last = std::max(buffer.last, last);
    }
  }
  ExtendSends(tape);
  ExtendReceives(tape);
}

// Merges the operation's result into the operand's buffer if the operand has no later use.
bool TryInPlace(Tape& tape, int at, int operand, int result) {
  if (operand < 0 || result < 0 || operand == result) return false;
  TapeBuffer& from = tape.buffers[operand];
  TapeBuffer& to = tape.buffers[result];
  if (from.last != at || from.type != to.type || from.elements != to.elements) return false;
  from.last = std::max(from.last, to.last);
  for (TapeOp& op : tape.ops) {
    for (int* number : BuffersOf(op)) {
      if (*number == result) *number = operand;
    }
  }
  to.elements = 0;
  to.words = 0;
  return true;
}

void ShareInPlace(Tape& tape) {
  for (int at = 0; at < std::ssize(tape.ops); ++at) {
    TapeOp& op = tape.ops[at];
    if (!op.in_place) continue;
    if (op.kind == TapeOpKind::kLoss) {
      TryInPlace(tape, at, op.x[0], op.dx[0]);
      continue;
    }
    if (op.kind == TapeOpKind::kBackward) {
      if (!TryInPlace(tape, at, op.dy, op.total_dy)) {
        TryInPlace(tape, at, op.other_dy, op.total_dy);
      }
      if (op.dx.size() == 1) {
        TryInPlace(tape, at, op.total_dy >= 0 ? op.total_dy : op.dy, op.dx[0]);
      }
      continue;
    }
    std::vector<int> operands = op.x;
    operands.push_back(op.addend);
    for (const int operand : operands) {
      // A buffer that is used twice is still needed as the other operand.
      if (std::count(operands.begin(), operands.end(), operand) > 1) continue;
      if (TryInPlace(tape, at, operand, op.y)) break;
    }
  }
}

bool LiveTogether(const TapeBuffer& a, const TapeBuffer& b) {
  return a.first <= b.last && b.first <= a.last;
}

// Largest first, each at the lowest offset that is free throughout its lifetime. Returns the size
// of the memory.
int64_t Pack(Tape& tape, bool of_pass) {
  std::vector<int> order(tape.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto& buffers = tape.buffers;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return buffers[a].words > buffers[b].words; });
  std::vector<int> placed;  // by offset
  int64_t words = 0;
  for (const int number : order) {
    TapeBuffer& buffer = tape.buffers[number];
    if (buffer.words == 0 || buffer.of_pass != of_pass) continue;
    int64_t offset = 0;
    for (const int other : placed) {
      const TapeBuffer& taken = tape.buffers[other];
      if (!LiveTogether(buffer, taken)) continue;
      if (taken.offset >= offset + buffer.words) break;
      const int64_t end = taken.offset + taken.words;
      offset = std::max(offset, (end + kAlignment - 1) / kAlignment * kAlignment);
    }
    buffer.offset = offset;
    words = std::max(words, offset + buffer.words);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), number,
                                   [&](int a, int b) {
                                     return tape.buffers[a].offset < tape.buffers[b].offset;
                                   }),
                  number);
  }
  return words;
}

}  // namespace

void AssignMemory(Tape& tape) {
  FindLifetimes(tape);
  ShareInPlace(tape);
  tape.words = Pack(tape, /*of_pass=*/false);
}

void SeparatePasses(Tape& tape) {
  const auto op_of_loss = std::find_if(tape.ops.begin(), tape.ops.end(), [](const TapeOp& op) {
    return op.kind == TapeOpKind::kLoss;
  });
  const int loss = op_of_loss - tape.ops.begin();
  const std::vector<TapeBuffer> together = tape.buffers;
  for (TapeBuffer& buffer : tape.buffers) {
    buffer.of_pass = buffer.last <= loss || buffer.first > loss;
  }
  for (TapeOp& op : tape.ops) {
    if (op.kind != TapeOpKind::kSend && op.kind != TapeOpKind::kReceive) continue;
    for (const int* number : BuffersOf(op)) tape.buffers[*number].of_pass = false;
  }
  const int64_t block = Pack(tape, /*of_pass=*/false);
  const int64_t pass = Pack(tape, /*of_pass=*/true);
  if (2 * block + pass > 2 * tape.words) {
    tape.buffers = together;
    return;
  }
  tape.words = block;
  tape.pass_words = pass;
}

}  // namespace cadre
