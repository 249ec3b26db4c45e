#include "spec/tape_memory.h"

#include <algorithm>
#include <numeric>

namespace cadre {
namespace {

// Buffers begin at multiples of this many words: a cache line.
constexpr int64_t kAlignment = 16;

std::vector<int*> BuffersOf(TapeOp& op) {
  std::vector<int*> buffers = {&op.y, &op.saved, &op.scratch, &op.dy};
  for (int& buffer : op.x) buffers.push_back(&buffer);
  for (int& buffer : op.dx) buffers.push_back(&buffer);
  buffers.erase(std::remove_if(buffers.begin(), buffers.end(), [](const int* b) { return *b < 0; }),
                buffers.end());
  return buffers;
}

void FindLives(Tape& tape) {
  for (TapeBuffer& buffer : tape.buffers) {
    buffer.first = static_cast<int>(tape.ops.size());
    buffer.last = -1;
  }
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    // Of operations that are played at the same time, both need what either touches.
    const int first = static_cast<int>(i) - (i > 0 && tape.ops[i - 1].with_next ? 1 : 0);
    const int last = static_cast<int>(i) + (tape.ops[i].with_next ? 1 : 0);
    for (const int* number : BuffersOf(tape.ops[i])) {
      TapeBuffer& buffer = tape.buffers[static_cast<size_t>(*number)];
      buffer.first = std::min(buffer.first, first);
      buffer.last = std::max(buffer.last, last);
    }
  }
}

// Makes the operation's result and the operand one buffer, if the operand is not needed later.
bool TryInPlace(Tape& tape, int at, int operand, int result) {
  if (operand < 0 || result < 0 || operand == result) return false;
  TapeBuffer& from = tape.buffers[static_cast<size_t>(operand)];
  TapeBuffer& to = tape.buffers[static_cast<size_t>(result)];
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

void ShareInPlace(Tape& tape, const std::vector<int>& in_place) {
  for (const int at : in_place) {
    TapeOp& op = tape.ops[static_cast<size_t>(at)];
    if (op.kind == TapeOpKind::kBackward) {
      if (op.dx.size() == 1) TryInPlace(tape, at, op.dy, op.dx[0]);
      continue;
    }
    for (size_t i = 0; i < op.x.size(); ++i) {
      // The same buffer twice is an operand that is still needed.
      if (std::count(op.x.begin(), op.x.end(), op.x[i]) > 1) continue;
      if (TryInPlace(tape, at, op.x[i], op.y)) break;
    }
  }
}

bool LiveTogether(const TapeBuffer& a, const TapeBuffer& b) {
  return a.first <= b.last && b.first <= a.last;
}

// Largest first, each at the lowest place where nothing that lives at the same time lies.
void Pack(Tape& tape) {
  std::vector<int> order(tape.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto& buffers = tape.buffers;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return buffers[static_cast<size_t>(a)].words > buffers[static_cast<size_t>(b)].words;
  });
  std::vector<int> placed;  // by offset
  for (const int number : order) {
    TapeBuffer& buffer = tape.buffers[static_cast<size_t>(number)];
    if (buffer.words == 0) continue;
    int64_t offset = 0;
    for (const int other : placed) {
      const TapeBuffer& taken = tape.buffers[static_cast<size_t>(other)];
      if (!LiveTogether(buffer, taken)) continue;
      if (taken.offset >= offset + buffer.words) break;
      const int64_t end = taken.offset + taken.words;
      offset = std::max(offset, (end + kAlignment - 1) / kAlignment * kAlignment);
    }
    buffer.offset = offset;
    tape.words = std::max(tape.words, offset + buffer.words);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), number,
                                   [&](int a, int b) {
                                     return tape.buffers[static_cast<size_t>(a)].offset <
                                            tape.buffers[static_cast<size_t>(b)].offset;
                                   }),
                  number);
  }
}

}  // namespace

void AssignMemory(Tape& tape, const std::vector<int>& in_place) {
  FindLives(tape);
  ShareInPlace(tape, in_place);
  Pack(tape);
}

}  // namespace cadre
