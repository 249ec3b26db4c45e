// Sends and receives the values that layers of other ranks need or have computed (kSend and
// kReceive of plan/tape.h), while the rank computes.
//
// A message has a number, equal on all its ranks. plan/tape.cc and plan/pipeline.cc explain why
// ranks that send messages in the order of their numbers, and receive them in the order of their
// tapes, cannot deadlock. On the host two threads send and receive; on a device a stream does
// (placed_messages.cc).
//
// Borrows the transport, whose channels kSends and kReceives are reserved for it, and the device.
// Thread-compatible; the caller's current stream is the one that computes.
//
// Guarantees: after an error nothing more is sent or received, and every call that waits returns
// an error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/transport.h"
#include "device/device.h"

namespace cadre {

class PlacedMessages {
 public:
  // Requires: Transport::PrepareMessages was called.
  static std::unique_ptr<PlacedMessages> Make(Transport& transport, Device& device);
  // Aborts the transport if messages are unsent or being received, because peers wait for them.
  virtual ~PlacedMessages() = default;

  // Declares what the rank sends next, in increasing order; numbers may wrap around. Requires: what
  // was declared before is sent (AwaitAll).
  virtual void Expect(std::span<const uint32_t> numbers) = 0;
  // The message is ready: it consists of these sends. Their data is borrowed until it is sent.
  // Requires: `number` is expected and was not posted.
  virtual void Post(uint32_t number, std::vector<Transfer> transfers) = 0;
  // Everything with a lower number precedes what the caller does next with other ranks. Requires:
  // all expected messages with lower numbers were posted.
  virtual absl::Status Precede(uint32_t number) = 0;
  // Everything expected precedes it. Requires: all was posted.
  virtual absl::Status PrecedeAll() = 0;
  // Whether it is known that these messages are sent. This and the following: requires that the
  // messages were posted.
  virtual bool AreSent(std::span<const uint32_t> numbers) const = 0;
  // The caller's next operation follows the sends of these messages; of all that are expected.
  virtual absl::Status AwaitSent(std::span<const uint32_t> numbers) = 0;
  virtual absl::Status AwaitAll() = 0;

  // Receives message `number` by these receives, whose memory is free after the caller's last
  // operation. Requires: FinishReceiving was called for the message before.
  virtual void StartReceiving(uint32_t number, std::vector<Transfer> transfers) = 0;
  // The caller's next operation follows the receives.
  virtual absl::Status FinishReceiving() = 0;
};

}  // namespace cadre
