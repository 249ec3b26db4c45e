// Single messages over a transport, and data to recognise, for the tests of this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/transport/transport.h"

namespace cadre {

inline std::vector<std::byte> Pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 131 + (i >> 8) + static_cast<size_t>(seed)) & 0xff);
  }
  return bytes;
}

inline CallTag TagOf(uint32_t sequence) {
  return {.collective = Collective::kAllToAll, .algorithm = Algorithm::kOnly, .sequence = sequence};
}

// A transfer never writes to what it sends.
inline std::span<std::byte> Sent(std::span<const std::byte> data) {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

inline absl::Status Send(Transport& transport, int to, uint32_t sequence,
                         std::span<const std::byte> data, int channel = 0) {
  const Transfer transfer{.kind = Transfer::Kind::kSend, .peer = to, .data = Sent(data)};
  return transport.Run(channel, TagOf(sequence), {&transfer, 1}, {});
}

inline absl::Status Receive(Transport& transport, int from, uint32_t sequence,
                            std::span<std::byte> data, int channel = 0) {
  const Transfer transfer{.kind = Transfer::Kind::kReceive, .peer = from, .data = data};
  return transport.Run(channel, TagOf(sequence), {&transfer, 1}, {});
}

inline absl::Status Exchange(Transport& transport, int to, std::span<const std::byte> send,
                             int from, std::span<std::byte> receive, uint32_t sequence,
                             int channel = 0) {
  const Transfer transfers[] = {{.kind = Transfer::Kind::kSend, .peer = to, .data = Sent(send)},
                                {.kind = Transfer::Kind::kReceive, .peer = from, .data = receive}};
  return transport.Run(channel, TagOf(sequence), transfers, {});
}

}  // namespace cadre
