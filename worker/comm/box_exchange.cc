#include "worker/comm/box_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

size_t Elements(const Box& box) { return static_cast<size_t>(box.shape().elements()); }

void GrowTo(std::vector<float>& buffer, size_t elements) {
  // Not more than that: what buffers cost is planned to the word.
  if (buffer.size() < elements) std::vector<float>(elements).swap(buffer);
}

// Hands out a buffer from the front.
class Packing {
 public:
  explicit Packing(std::vector<float>& buffer) : rest_(buffer) {}
  std::span<float> Take(size_t elements) {
    const std::span<float> taken = rest_.first(elements);
    rest_ = rest_.subspan(elements);
    return taken;
  }

 private:
  std::span<float> rest_;
};

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

std::vector<std::span<const std::byte>> BoxExchange::Pack(const Exchange& exchange,
                                                          std::span<const float> have) {
  GrowTo(outgoing_, static_cast<size_t>(exchange.packed_words()));
  Packing packing(outgoing_);
  std::vector<std::span<const std::byte>> sends(exchange.members.size());
  for (const Exchange::Message& message : exchange.sends) {
    if (message.peer == exchange.index) continue;
    std::span<const std::byte>& send = sends[static_cast<size_t>(message.peer)];
    if (const auto begin = RunIn(message.box, exchange.have)) {
      send = std::as_bytes(have.subspan(static_cast<size_t>(*begin), Elements(message.box)));
      continue;
    }
    const std::span<float> copy = packing.Take(Elements(message.box));
    CopyBox(have, exchange.have, copy, message.box, message.box);
    send = std::as_bytes(copy);
  }
  return sends;
}

std::vector<std::span<float>> BoxExchange::Room(const Exchange& exchange, std::span<float> make) {
  GrowTo(arriving_, static_cast<size_t>(exchange.unpacked_words()));
  Packing unpacking(arriving_);
  std::vector<std::span<float>> room(exchange.members.size());
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

absl::Status BoxExchange::Run(const Exchange& exchange, std::span<const float> have,
                              std::span<float> make) {
  CHECK_EQ(have.size(), Elements(exchange.have));
  CHECK_EQ(make.size(), Elements(exchange.make));
  const std::vector<std::span<float>> room = Room(exchange, make);
  if (NeedsZeros(exchange)) std::fill(make.begin(), make.end(), 0.0F);
  if (exchange.members.size() > 1) {
    std::vector<std::span<std::byte>> receives;
    for (const std::span<float> piece : room) receives.push_back(std::as_writable_bytes(piece));
    CADRE_RETURN_IF_ERROR(comms_.Among(exchange.members).AllToAll(Pack(exchange, have), receives));
  }
  for (const Exchange::Message& message : exchange.receives) {
    if (exchange.arrives_in_place(message)) continue;
    const bool own = message.peer == exchange.index;
    const std::span<const float> from = own ? have : room[static_cast<size_t>(message.peer)];
    const Box& from_box = own ? exchange.have : message.box;
    const bool first_is_all =
        &message == &exchange.receives.front() && message.box == exchange.make;
    if (exchange.sums && !first_is_all) {
      AddBox(from, from_box, make, exchange.make, message.box);
    } else {
      CopyBox(from, from_box, make, exchange.make, message.box);
    }
  }
  return absl::OkStatus();
}

void BoxExchange::Reserve(const Move& move) {
  GrowTo(between_, static_cast<size_t>(move.scratch_words()));
  for (const Exchange& step : move.steps) {
    GrowTo(outgoing_, static_cast<size_t>(step.packed_words()));
    GrowTo(arriving_, static_cast<size_t>(step.unpacked_words()));
  }
}

absl::Status BoxExchange::Run(const Move& move, std::span<const float> have,
                              std::span<float> make) {
  CHECK(move.steps.size() == 1 || move.steps.size() == 2) << move.steps.size();
  if (move.steps.size() == 1) return Run(move.steps[0], have, make);
  GrowTo(between_, Elements(move.steps[0].make));
  const std::span<float> between = std::span(between_).first(Elements(move.steps[0].make));
  CADRE_RETURN_IF_ERROR(Run(move.steps[0], have, between));
  return Run(move.steps[1], between, make);
}

}  // namespace cadre
