// Messages over a transport with recognizable contents, for the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/transport.h"

namespace cadre {

using Bytes = std::vector<std::byte>;

// Bytes that depend on position and seed.
inline Bytes Pattern(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(i * 131 + (i >> 8) + seed);
  return bytes;
}

inline CallTag TagOf(uint32_t sequence) {
  return {
      .collective = Collective::kAllToAll, .algorithm = Algorithm::kSingle, .sequence = sequence};
}

inline Transfer SendOf(int to, std::span<const std::byte> data) {
  // A transport only reads the data of a send.
  return {.peer = to, .data = {const_cast<std::byte*>(data.data()), data.size()}};
}
inline Transfer ReceiveOf(int from, std::span<std::byte> data) {
  return {.kind = Transfer::Kind::kReceive, .peer = from, .data = data};
}

inline absl::Status Send(Transport& transport, int to, uint32_t sequence,
                         std::span<const std::byte> data, int channel = 0) {
  const Transfer transfer = SendOf(to, data);
  return transport.Run(channel, TagOf(sequence), {&transfer, 1}, {});
}

inline absl::Status Receive(Transport& transport, int from, uint32_t sequence,
                            std::span<std::byte> data, int channel = 0) {
  const Transfer transfer = ReceiveOf(from, data);
  return transport.Run(channel, TagOf(sequence), {&transfer, 1}, {});
}

inline absl::Status Exchange(Transport& transport, int to, std::span<const std::byte> send,
                             int from, std::span<std::byte> receive, uint32_t sequence,
                             int channel = 0) {
  const Transfer transfers[] = {SendOf(to, send), ReceiveOf(from, receive)};
  return transport.Run(channel, TagOf(sequence), transfers, {});
}

// Every rank sends `bytes` bytes to every other, as often as Run is called. On kSends ranks only
// send, on kReceives they only receive.
class PairwiseExchange {
 public:
  explicit PairwiseExchange(Transport& transport, size_t bytes = 1) : transport_(transport) {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      out_.push_back(Pattern(bytes, SeedOf(transport_.rank(), peer)));
      in_.emplace_back(bytes);
    }
  }

  absl::Status Run(int channel, uint32_t sequence = 0) {
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == transport_.rank()) continue;
      if (channel != Transport::kSends) transfers.push_back(ReceiveOf(peer, in_[peer]));
      if (channel != Transport::kReceives) transfers.push_back(SendOf(peer, out_[peer]));
    }
    return transport_.Run(channel, TagOf(sequence), transfers, {});
  }

  // Whether the received bytes are those that the peers sent.
  bool Correct() const {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == transport_.rank()) continue;
      if (in_[peer] != Pattern(in_[peer].size(), SeedOf(peer, transport_.rank()))) return false;
    }
    return true;
  }

 private:
  static int SeedOf(int from, int to) { return from * 8 + to + 1; }

  Transport& transport_;
  std::vector<Bytes> out_, in_;
};

// One pairwise exchange. Errors: DataLoss if received bytes are wrong.
inline absl::Status ExchangeWithAll(Transport& transport, int channel, size_t bytes = 1,
                                    uint32_t sequence = 0) {
  PairwiseExchange exchange(transport, bytes);
  const absl::Status status = exchange.Run(channel, sequence);
  if (!status.ok() || channel == Transport::kSends || exchange.Correct()) return status;
  return absl::DataLossError("received other bytes than were sent");
}

}  // namespace cadre
