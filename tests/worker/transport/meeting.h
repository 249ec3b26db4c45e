// Ranks that meet over whatever transport they have, in a call that needs all of them; for the
// tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/worker/transport/ranks.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/transport.h"

namespace cadre {

// Every rank sends so many bytes to every other, as often as it is run.
class Meeting {
 public:
  explicit Meeting(Transport& transport, size_t bytes = 1) : transport_(transport), bytes_(bytes) {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      out_.push_back(Words(transport_.rank(), peer));
      in_.emplace_back(out_.back().size());
    }
  }

  absl::Status Run(int channel, uint32_t sequence = 0) {
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == transport_.rank()) continue;
      transfers.push_back(
          {.kind = Transfer::Kind::kReceive, .peer = peer, .data = Bytes(in_, peer)});
      transfers.push_back({.kind = Transfer::Kind::kSend, .peer = peer, .data = Bytes(out_, peer)});
    }
    const CallTag tag{.collective = Collective::kAllToAll,
                      .members = static_cast<uint16_t>(transport_.size()),
                      .sequence = sequence};
    return transport_.Run(channel, tag, transfers, {});
  }

  // What came is what was sent.
  bool Right() {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == transport_.rank() || bytes_ == 0) continue;
      const std::vector<uint64_t> sent = Words(peer, transport_.rank());
      if (std::memcmp(sent.data(), Bytes(in_, peer).data(), bytes_) != 0) return false;
    }
    return true;
  }

 private:
  using Buffers = std::vector<std::vector<uint64_t>>;

  // What `from` says to `to`, and a bit more.
  std::vector<uint64_t> Words(int from, int to) const {
    std::vector<uint64_t> words(bytes_ / sizeof(uint64_t) + 1);
    const auto speaker = static_cast<uint64_t>(from * 64 + to + 1);
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = (speaker * 1'000'003 + i) * 0x9e3779b97f4a7c15;
    return words;
  }
  std::span<std::byte> Bytes(Buffers& buffers, int peer) const {
    return std::as_writable_bytes(std::span(buffers[peer])).first(bytes_);
  }

  Transport& transport_;
  const size_t bytes_;
  Buffers out_, in_;
};

// Meets once; OK when all has come and is right.
inline absl::Status Meet(Transport& transport, int channel, size_t bytes = 1,
                         uint32_t sequence = 0) {
  Meeting meeting(transport, bytes);
  const absl::Status status = meeting.Run(channel, sequence);
  if (!status.ok() || meeting.Right()) return status;
  return absl::DataLossError("other bytes than were sent");
}

// The listeners of a group's ranks.
struct Listeners {
  explicit Listeners(int ranks, TcpListener::Options options = {}) {
    for (int i = 0; i < ranks; ++i) {
      auto listener = TcpListener::Listen(options);
      EXPECT_TRUE(listener.ok()) << listener.status();
      each.push_back(*std::move(listener));
      peers.push_back(each.back()->address());
    }
  }
  TcpListener& At(int rank) { return *each[rank]; }
  int ranks() const { return static_cast<int>(each.size()); }

  std::vector<std::unique_ptr<TcpListener>> each;
  std::vector<std::string> peers;
};

}  // namespace cadre
