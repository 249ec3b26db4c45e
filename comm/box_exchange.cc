// Executes a move as one or two all-to-alls.
//
// Each member sends to every peer the intersection of its own boxes with the boxes that the peer
// needs (tensor/move.h computes them). A box that is contiguous in its tensor is sent from the
// tensor, and received into it, without a copy. Other boxes are packed into scratch before they are
// sent, and unpacked or added after they are received.
//
// Sums: contributions are added in the order of `receives`, not of arrival, so bits depend on the
// plan alone. The result is zeroed first unless the first contribution covers all of it.
//
// Memory: scratch is exactly as large as the largest step requires, because the planner counts it
// exactly; it grows only outside captured graphs (Reserve). A move of two steps keeps the
// tensor between them in `intermediate_`.
#include "comm/box_exchange.h"

#include <algorithm>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

size_t Elements(const Box& box) { return box.shape().elements(); }

// Takes values from the front of a buffer.
class BufferCursor {
 public:
  explicit BufferCursor(Values buffer) : rest_(buffer) {}
  Values Take(size_t elements) {
    const Values taken = rest_.first(elements);
    rest_ = rest_.subspan(elements);
    return taken;
  }

 private:
  Values rest_;
};

std::span<const std::byte> BytesOf(ConstValues values) {
  return {static_cast<const std::byte*>(values.data()), values.bytes()};
}
std::span<std::byte> WritableBytesOf(Values values) {
  return {static_cast<std::byte*>(values.data()), values.bytes()};
}

// Whether the result must be zeroed first. Elements to which no message contributes are zero, and
// sums begin at zero unless the first message covers the whole result.
bool NeedsZeros(const Exchange& exchange) {
  if (exchange.make.empty()) return false;
  if (!exchange.receives.empty() && exchange.receives[0].box == exchange.make) return false;
  if (exchange.sums) return true;
  size_t covered = 0;
  for (const Exchange::Message& message : exchange.receives) covered += Elements(message.box);
  return covered < Elements(exchange.make);
}

}  // namespace

bool BoxExchange::Grow(Scratch& scratch, int64_t elements, DType type) {
  // Exactly this size, because the planner counts scratch exactly.
  const size_t bytes = elements * SizeOf(type);
  if (scratch.size() >= bytes) return false;
  const bool moved = scratch.size() > 0;
  scratch = Scratch();
  scratch = Scratch(kernels_.device(), bytes, "messages");
  return moved;
}

std::vector<std::span<const std::byte>> BoxExchange::Messages(const Exchange& exchange,
                                                              ConstValues have, Values scratch) {
  BufferCursor cursor(scratch);
  std::vector<std::span<const std::byte>> sends(exchange.members.size());
  for (const Exchange::Message& message : exchange.sends) {
    if (message.peer == exchange.index) continue;
    std::span<const std::byte>& send = sends[message.peer];
    if (const auto begin = RunIn(message.box, exchange.have)) {
      send = BytesOf(have.subspan(*begin, Elements(message.box)));
      continue;
    }
    const Values copy = cursor.Take(Elements(message.box));
    kernels_.memory().CopyBox(have, exchange.have, copy, message.box, message.box);
    send = BytesOf(copy);
  }
  return sends;
}

std::vector<Values> BoxExchange::ReceiveBuffers(const Exchange& exchange, Values scratch,
                                                Values make) {
  BufferCursor cursor(scratch);
  std::vector<Values> buffers(exchange.members.size());
  for (const Exchange::Message& message : exchange.receives) {
    if (message.peer == exchange.index) continue;
    const size_t elements = Elements(message.box);
    buffers[message.peer] = exchange.arrives_in_place(message)
                                ? make.subspan(*RunIn(message.box, exchange.make), elements)
                                : cursor.Take(elements);
  }
  return buffers;
}

absl::Status BoxExchange::Run(const Exchange& exchange, ConstValues have, Values make) {
  CHECK_EQ(have.size(), Elements(exchange.have));
  CHECK_EQ(make.size(), Elements(exchange.make));
  CHECK(have.type() == make.type() || have.empty() || make.empty());
  const int64_t unpacked = exchange.unpacked_elements();
  Grow(receive_scratch_, unpacked, make.type());
  const std::vector<Values> buffers =
      ReceiveBuffers(exchange, Values(receive_scratch_.data(), unpacked, make.type()), make);
  if (NeedsZeros(exchange)) kernels_.memory().Zero(make);
  if (exchange.members.size() > 1) {
    std::vector<std::span<std::byte>> receives;
    for (const Values& buffer : buffers) receives.push_back(WritableBytesOf(buffer));
    const int64_t packed = exchange.packed_elements();
    Grow(send_scratch_, packed, have.type());
    const Values scratch(send_scratch_.data(), packed, have.type());
    CADRE_RETURN_IF_ERROR(
        comms_.Among(exchange.members).AllToAll(Messages(exchange, have, scratch), receives));
  }
  Unpack(exchange, have, buffers, make);
  return absl::OkStatus();
}

std::vector<Transfer> BoxExchange::Pack(const Exchange& exchange, ConstValues have,
                                        Values scratch) {
  std::vector<Transfer> transfers;
  const std::vector<std::span<const std::byte>> messages = Messages(exchange, have, scratch);
  for (size_t peer = 0; peer < messages.size(); ++peer) {
    if (messages[peer].empty()) continue;
    auto* const data = const_cast<std::byte*>(messages[peer].data());  // a send only reads
    transfers.push_back(
        {Transfer::Kind::kSend, exchange.members[peer], {data, messages[peer].size()}});
  }
  return transfers;
}

std::vector<Transfer> BoxExchange::PrepareReceives(const Exchange& exchange, Values scratch,
                                                   Values make) {
  const std::vector<Values> buffers = ReceiveBuffers(exchange, scratch, make);
  if (NeedsZeros(exchange)) kernels_.memory().Zero(make);
  std::vector<Transfer> transfers;
  for (size_t peer = 0; peer < buffers.size(); ++peer) {
    if (buffers[peer].empty()) continue;
    transfers.push_back(
        {Transfer::Kind::kReceive, exchange.members[peer], WritableBytesOf(buffers[peer])});
  }
  return transfers;
}

void BoxExchange::FinishReceives(const Exchange& exchange, ConstValues have, Values scratch,
                                 Values make) {
  Unpack(exchange, have, ReceiveBuffers(exchange, scratch, make), make);
}

void BoxExchange::Unpack(const Exchange& exchange, ConstValues have,
                         std::span<const Values> buffers, Values make) {
  for (const Exchange::Message& message : exchange.receives) {
    if (exchange.arrives_in_place(message)) continue;
    const bool own = message.peer == exchange.index;
    const ConstValues from = own ? have : buffers[message.peer];
    const Box& from_box = own ? exchange.have : message.box;
    const bool first_is_all =
        &message == &exchange.receives.front() && message.box == exchange.make;
    if (exchange.sums && !first_is_all) {
      kernels_.memory().AddBox(from, from_box, make, exchange.make, message.box);
    } else {
      kernels_.memory().CopyBox(from, from_box, make, exchange.make, message.box);
    }
  }
}

bool BoxExchange::Reserve(const Move& move, DType type) {
  bool moved = Grow(intermediate_, move.scratch_elements(), type);
  for (const Exchange& step : move.steps) {
    moved = Grow(send_scratch_, step.packed_elements(), type) || moved;
    moved = Grow(receive_scratch_, step.unpacked_elements(), type) || moved;
  }
  return moved;
}

absl::Status BoxExchange::Run(const Move& move, ConstValues have, Values make) {
  CHECK(move.steps.size() == 1 || move.steps.size() == 2) << move.steps.size();
  if (move.steps.size() == 1) return Run(move.steps[0], have, make);
  const size_t elements = Elements(move.steps[0].make);
  Grow(intermediate_, elements, have.type());
  const Values intermediate(intermediate_.data(), elements, have.type());
  CADRE_RETURN_IF_ERROR(Run(move.steps[0], have, intermediate));
  return Run(move.steps[1], intermediate, make);
}

}  // namespace cadre
