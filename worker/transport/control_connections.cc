#include "worker/transport/control_connections.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "words travel in memory order");

// The longest reason that travels.
constexpr size_t kMostWords = 1024;

struct Word {
  enum Kind : uint32_t { kGoodbye = 0x600dbe01, kGivenUp = 0xdeadbe02 };
  uint32_t kind = 0;
  // The rank that gave up first.
  uint32_t origin = 0;
  // Bytes of text that follow.
  uint32_t length = 0;
};

void SendWord(const Socket& socket, const Word& word, absl::string_view text) {
  if (socket.empty()) return;
  std::string bytes(reinterpret_cast<const char*>(&word), sizeof word);
  absl::StrAppend(&bytes, text);
  const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  static_cast<void>(sent);
}

absl::Status Lost(int rank, absl::string_view how) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", how));
}

}  // namespace

ControlConnections::ControlConnections(int rank, std::vector<Socket> sockets)
    : rank_(rank), received_(sockets.size()) {
  for (Socket& socket : sockets) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->ended = socket.empty();
    peers_.back()->socket = std::move(socket);
  }
}

absl::Status ControlConnections::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void ControlConnections::AddPolled(std::vector<pollfd>& polled) const {
  for (const auto& peer : peers_) {
    if (!peer->ended.load(std::memory_order_relaxed)) {
      polled.push_back({.fd = peer->socket.fd(), .events = POLLIN | POLLRDHUP});
    }
  }
}

absl::Status ControlConnections::Look() {
  bool changed = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    // All are read before anything is said: a reason explains a death that is seen beside it.
    absl::Status death;
    Failure told;
    for (int rank = 0; rank < size(); ++rank) {
      absl::Status one = ReadFrom(rank, &changed, &told);
      if (death.ok()) death = std::move(one);
    }
    if (told.status.ok() && !death.ok()) {
      told = {.status = death, .origin = rank_, .words = std::string(death.message())};
    }
    if (!told.status.ok() && Record(std::move(told))) changed = true;
    status = status_;
  }
  if (changed && changed_) changed_();
  return status;
}

absl::Status ControlConnections::AwaitWord(int peer, absl::Duration most) {
  const absl::Time until = absl::Now() + most;
  while (true) {
    absl::Status status = Look();
    if (!status.ok() || At(peer).ended) return status;
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return status;
    pollfd entry{.fd = At(peer).socket.fd(), .events = POLLIN | POLLRDHUP};
    poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

absl::Status ControlConnections::ReadFrom(int rank, bool* changed, Failure* failure) {
  Peer& peer = At(rank);
  while (!peer.ended) {
    char part[sizeof(Word) + kMostWords];
    const ssize_t got = recv(peer.socket.fd(), part, sizeof part, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got <= 0) {
      peer.ended = true;
      return Lost(rank, got == 0 ? "it closed the connection" : std::strerror(errno));
    }
    received_[static_cast<size_t>(rank)].append(part, static_cast<size_t>(got));
    absl::Status understood = Understand(rank, changed, failure);
    if (!understood.ok()) return understood;
  }
  return absl::OkStatus();
}

absl::Status ControlConnections::Understand(int rank, bool* changed, Failure* failure) {
  Peer& peer = At(rank);
  const std::string& received = received_[static_cast<size_t>(rank)];
  Word word;
  if (received.size() < sizeof word) return absl::OkStatus();
  std::memcpy(&word, received.data(), sizeof word);
  if (word.kind == Word::kGoodbye) {
    peer.left = true;
    peer.ended = true;
    *changed = true;
    return absl::OkStatus();
  }
  if (word.kind != Word::kGivenUp || word.length > kMostWords) {
    peer.ended = true;
    return Lost(rank, "it sent what is neither a goodbye nor a reason");
  }
  if (received.size() < sizeof word + word.length) return absl::OkStatus();
  peer.ended = true;
  if (!failure->status.ok()) return absl::OkStatus();
  failure->origin = static_cast<int>(word.origin);
  failure->words = received.substr(sizeof word, word.length);
  failure->status =
      absl::UnavailableError(absl::StrCat("rank ", failure->origin, " gave up: ", failure->words));
  return absl::OkStatus();
}

bool ControlConnections::Record(Failure failure) {
  if (!status_.ok()) return false;
  status_ = std::move(failure.status);
  const absl::string_view words = absl::string_view(failure.words).substr(0, kMostWords);
  const Word word{.kind = Word::kGivenUp,
                  .origin = static_cast<uint32_t>(failure.origin),
                  .length = static_cast<uint32_t>(words.size())};
  for (const auto& peer : peers_) {
    if (peer->socket.empty()) continue;
    SendWord(peer->socket, word, words);
    shutdown(peer->socket.fd(), SHUT_WR);
  }
  dead_.store(true, std::memory_order_release);
  return true;
}

absl::Status ControlConnections::Fail(const absl::Status& error) {
  CHECK(!error.ok());
  bool first = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    first = Record({.status = error, .origin = rank_, .words = std::string(error.message())});
    status = status_;
  }
  if (first && changed_) changed_();
  return status;
}

void ControlConnections::SayGoodbye() {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  for (const auto& peer : peers_) SendWord(peer->socket, {.kind = Word::kGoodbye}, "");
}

}  // namespace cadre
