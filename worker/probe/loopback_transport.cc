// Copies cost what they cost with real peers, and no call waits; so the time of a step is its
// computing and copying, without the network.
#include "worker/probe/loopback_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cadre {
namespace {

// Fills the receive buffers with the data that are sent, repeatedly if they are longer.
void Echo(std::span<const Transfer> transfers) {
  std::vector<std::span<const std::byte>> sent;
  for (const Transfer& transfer : transfers) {
    if (transfer.kind == Transfer::Kind::kSend && !transfer.data.empty()) {
      sent.push_back(transfer.data);
    }
  }
  size_t next = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.kind != Transfer::Kind::kReceive) continue;
    std::span<std::byte> room = transfer.data;
    if (sent.empty()) std::fill(room.begin(), room.end(), std::byte{0});
    while (!sent.empty() && !room.empty()) {
      const std::span<const std::byte> from = sent[next++ % sent.size()];
      const size_t bytes = std::min(from.size(), room.size());
      // Sends and receives may overlap.
      std::memmove(room.data(), from.data(), bytes);
      room = room.subspan(bytes);
    }
  }
}

}  // namespace

LoopbackTransport::LoopbackTransport(int size) : size_(size) { CHECK_GE(size, 1); }

LinkKind LoopbackTransport::link(int peer) const {
  return peer == rank() ? LinkKind::kSelf : LinkKind::kThreads;
}

absl::Status LoopbackTransport::Run(int channel, const CallTag& /*tag*/,
                                    std::span<const Transfer> transfers,
                                    const Combine& /*combine*/) {
  if (channel == kMoves) Echo(transfers);
  return status();
}

void LoopbackTransport::Abort(absl::Status reason) {
  absl::MutexLock lock(&mutex_);
  status_.Update(std::move(reason));
}

absl::Status LoopbackTransport::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace cadre
