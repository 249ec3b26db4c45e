#include "worker/comm/box_exchange.h"

#include <algorithm>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

size_t Elements(const Box& box) { return static_cast<size_t>(box.shape().elements()); }

// Hands out a buffer from the front.
class Packing {
 public:
  Packing(const DeviceArray<std::byte>& buffer, DType type)
      : rest_(buffer.data(), buffer.size() / SizeOf(type), type) {}
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

// What is made is zero where no message falls, and where several do they are added to zero, unless
// the first is all of it.
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
  // Not more than that: what buffers cost is planned to the word.
  const size_t bytes = static_cast<size_t>(elements) * SizeOf(type);
  if (scratch.size() >= bytes) return false;
  const bool moved = scratch.size() > 0;
  scratch = Scratch();
  scratch = Scratch(kernels_.device(), bytes, "messages");
  return moved;
}

std::vector<std::span<const std::byte>> BoxExchange::Pack(const Exchange& exchange,
                                                          ConstValues have) {
  Grow(outgoing_, exchange.packed_words(), have.type());
  Packing packing(outgoing_, have.type());
  std::vector<std::span<const std::byte>> sends(exchange.members.size());
  for (const Exchange::Message& message : exchange.sends) {
    if (message.peer == exchange.index) continue;
    std::span<const std::byte>& send = sends[static_cast<size_t>(message.peer)];
    if (const auto begin = RunIn(message.box, exchange.have)) {
      send = BytesOf(have.subspan(static_cast<size_t>(*begin), Elements(message.box)));
      continue;
    }
    const Values copy = packing.Take(Elements(message.box));
    kernels_.CopyBox(have, exchange.have, copy, message.box, message.box);
    send = BytesOf(copy);
  }
  return sends;
}

std::vector<Values> BoxExchange::Room(const Exchange& exchange, Values make) {
  Grow(arriving_, exchange.unpacked_words(), make.type());
  Packing unpacking(arriving_, make.type());
  std::vector<Values> room(exchange.members.size());
  for (const Exchange::Message& message : exchange.receives) {
    if (message.peer == exchange.index) continue;
    const size_t elements = Elements(message.box);
    room[static_cast<size_t>(message.peer)] =
        exchange.arrives_in_place(message)
            ? make.subspan(static_cast<size_t>(*RunIn(message.box, exchange.make)), elements)
            : unpacking.Take(elements);
  }
  return room;
}

absl::Status BoxExchange::Run(const Exchange& exchange, ConstValues have, Values make) {
  CHECK_EQ(have.size(), Elements(exchange.have));
  CHECK_EQ(make.size(), Elements(exchange.make));
  CHECK(have.type() == make.type() || have.empty() || make.empty());
  const std::vector<Values> room = Room(exchange, make);
  if (NeedsZeros(exchange)) kernels_.Zero(make);
  if (exchange.members.size() > 1) {
    std::vector<std::span<std::byte>> receives;
    for (const Values& piece : room) receives.push_back(WritableBytesOf(piece));
    CADRE_RETURN_IF_ERROR(comms_.Among(exchange.members).AllToAll(Pack(exchange, have), receives));
  }
  for (const Exchange::Message& message : exchange.receives) {
    if (exchange.arrives_in_place(message)) continue;
    const bool own = message.peer == exchange.index;
    const ConstValues from = own ? have : room[static_cast<size_t>(message.peer)];
    const Box& from_box = own ? exchange.have : message.box;
    const bool first_is_all =
        &message == &exchange.receives.front() && message.box == exchange.make;
    if (exchange.sums && !first_is_all) {
      kernels_.AddBox(from, from_box, make, exchange.make, message.box);
    } else {
      kernels_.CopyBox(from, from_box, make, exchange.make, message.box);
    }
  }
  return absl::OkStatus();
}

bool BoxExchange::Reserve(const Move& move, DType type) {
  bool moved = Grow(between_, move.scratch_words(), type);
  for (const Exchange& step : move.steps) {
    moved = Grow(outgoing_, step.packed_words(), type) || moved;
    moved = Grow(arriving_, step.unpacked_words(), type) || moved;
  }
  return moved;
}

absl::Status BoxExchange::Run(const Move& move, ConstValues have, Values make) {
  CHECK(move.steps.size() == 1 || move.steps.size() == 2) << move.steps.size();
  if (move.steps.size() == 1) return Run(move.steps[0], have, make);
  const size_t elements = Elements(move.steps[0].make);
  Grow(between_, static_cast<int64_t>(elements), have.type());
  const Values between(between_.data(), elements, have.type());
  CADRE_RETURN_IF_ERROR(Run(move.steps[0], have, between));
  return Run(move.steps[1], between, make);
}

}  // namespace cadre
