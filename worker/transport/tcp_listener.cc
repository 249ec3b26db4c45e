#include "worker/transport/tcp_listener.h"

#include <glog/logging.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

// Pause after the process ran out of descriptors, so that the loop does not spin.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

bool IsValid(Purpose purpose) {
  if (purpose.channel == Purpose::kControl) return purpose.connection == 0;
  return purpose.channel < Transport::kChannels && purpose.connection < kMaxConnections;
}

absl::string_view CounterOf(Answer::Code code) {
  switch (code) {
    case Answer::Code::kStaleGeneration:
      return "transport_refused_stale_generation";
    case Answer::Code::kWrongSchema:
      return "transport_refused_schema";
    case Answer::Code::kWrongRank:
    case Answer::Code::kWelcome:
      break;
  }
  return "transport_refused_place";
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Listen(const Options& options) {
  CADRE_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(options.address));
  CADRE_ASSIGN_OR_RETURN(Socket socket, ListenOn(options.address));
  CADRE_ASSIGN_OR_RETURN(Socket wake, MakeWake());
  CADRE_ASSIGN_OR_RETURN(const int port, LocalPort(socket));
  const bool v6 = host_port.host.find(':') != std::string::npos;
  std::string address = v6 ? absl::StrFormat("[%s]:%d", host_port.host, port)
                           : absl::StrFormat("%s:%d", host_port.host, port);
  return std::unique_ptr<TcpListener>(
      new TcpListener(options, std::move(socket), std::move(wake), std::move(address), port));
}

TcpListener::TcpListener(const Options& options, Socket socket, Socket wake, std::string address,
                         int port)
    : options_(options),
      listening_(std::move(socket)),
      wake_(std::move(wake)),
      address_(std::move(address)),
      port_(port),
      thread_([this] { Serve(); }) {}

TcpListener::~TcpListener() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake(wake_);
  thread_.join();
}

absl::Status TcpListener::Expect(const Expectation& expectation) {
  const GroupIdentity& group = expectation.group;
  absl::MutexLock lock(&mutex_);
  const GroupKey key(group.run, group.group);
  const auto newest = newest_.find(key);
  if (newest != newest_.end() && group.generation <= newest->second) {
    return absl::AbortedError(absl::StrCat("generation ", group.generation, " of group ",
                                           group.group, " is over; the newest is ",
                                           newest->second));
  }
  newest_[key] = group.generation;
  expected_[key] = Expected{.expectation = expectation};
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool done = it->second.parked && Deliver(it->second);
    it = done ? connections_.erase(it) : std::next(it);
  }
  // The listener's thread may be polling a descriptor that was just closed or delivered, and the
  // kernel ends a closed connection only when no poll refers to it.
  Wake(wake_);
  return absl::OkStatus();
}

void TcpListener::Forget(const GroupIdentity& group) {
  absl::MutexLock lock(&mutex_);
  const auto it = expected_.find(GroupKey(group.run, group.group));
  if (it != expected_.end() && it->second.expectation.group == group) expected_.erase(it);
}

std::optional<TcpListener::Arrival> TcpListener::TakeReceived(const GroupIdentity& group, int from,
                                                              Purpose purpose) {
  absl::MutexLock lock(&mutex_);
  const auto it = expected_.find(GroupKey(group.run, group.group));
  if (it == expected_.end() || it->second.expectation.group != group) return std::nullopt;
  auto node = it->second.arrived.extract({from, purpose});
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

void TcpListener::Serve() {
  while (true) {
    Watch watch;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      watch = NextWatch(absl::Now());
    }
    // At least a millisecond, so that the loop does not spin because of rounding.
    const int64_t wait = absl::ToInt64Milliseconds(watch.until - absl::Now());
    poll(watch.polled.data(), watch.polled.size(), std::clamp<int64_t>(wait, 1, 60'000));
    ClearWake(wake_);
    absl::MutexLock lock(&mutex_);
    Handle(watch);
    DropExpired(absl::Now());
  }
}

TcpListener::Watch TcpListener::NextWatch(absl::Time now) {
  Watch watch{.until = absl::InfiniteFuture()};
  watch.polled.push_back({.fd = wake_.fd(), .events = POLLIN});
  for (const auto& [id, connection] : connections_) {
    // A parked connection sends nothing more, but its peer may close it.
    const short events = connection.parked ? POLLRDHUP : POLLIN;
    watch.polled.push_back({.fd = connection.socket.fd(), .events = events});
    watch.ids.push_back(id);
    watch.until = std::min(watch.until, connection.deadline);
  }
  if (now >= accept_after_) {
    watch.polled.push_back({.fd = listening_.fd(), .events = POLLIN});
  } else {
    watch.until = std::min(watch.until, accept_after_);
  }
  return watch;
}

void TcpListener::Handle(const Watch& watch) {
  for (size_t i = 0; i < watch.ids.size(); ++i) {
    if (watch.polled[i + 1].revents == 0) continue;
    // The connection may have been delivered during the poll.
    const auto it = connections_.find(watch.ids[i]);
    if (it == connections_.end()) continue;
    const bool keep = !it->second.parked && ReadGreeting(it->second);
    if (!keep) connections_.erase(it);
  }
  const bool accepting = watch.polled.size() > watch.ids.size() + 1;
  if (accepting && watch.polled.back().revents != 0) AcceptAll(absl::Now());
}

void TcpListener::AcceptAll(absl::Time now) {
  while (true) {
    Socket socket(accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.empty()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        LOG(WARNING) << "cannot accept a connection between ranks: " << std::strerror(errno);
        accept_after_ = now + kAcceptPause;
      }
      return;
    }
    TuneConnection(socket);
    if (connections_.size() >= options_.max_waiting) connections_.erase(connections_.begin());
    connections_.emplace(next_id_++, Connection{.socket = std::move(socket),
                                                .deadline = now + options_.handshake_timeout});
  }
}

bool TcpListener::ReadGreeting(Connection& connection) {
  std::array<char, 2048> part;
  const ssize_t got = recv(connection.socket.fd(), part.data(), part.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
  if (got <= 0) {
    // A connection without any bytes only checks whether the port is open, so it is not counted.
    if (!connection.received.empty()) Count("transport_garbage_closed");
    return false;
  }
  connection.received.append(part.data(), got);
  absl::StatusOr<std::optional<Greeting>> greeting = DecodeGreeting(connection.received);
  if (!greeting.ok()) {
    LOG(INFO) << "dropped a connection between ranks: " << greeting.status().message();
    Count("transport_garbage_closed");
    return false;
  }
  if (!greeting->has_value()) return true;
  connection.greeting = **std::move(greeting);
  if (Deliver(connection)) return false;
  connection.parked = true;
  connection.deadline = absl::Now() + options_.park_timeout;
  return true;
}

bool TcpListener::Deliver(Connection& connection) {
  const Greeting& greeting = connection.greeting;
  const GroupIdentity& group = greeting.group;
  const GroupKey key(group.run, group.group);
  const auto newest = newest_.find(key);
  if (newest == newest_.end() || group.generation > newest->second) return false;
  const auto it = expected_.find(key);
  if (it == expected_.end() || group.generation != it->second.expectation.group.generation) {
    Refuse(connection, Answer::Code::kStaleGeneration,
           absl::StrCat("generation ", group.generation, " of group ", group.group, " of run ",
                        group.run, " is over; the newest here is ", newest->second));
    return true;
  }
  const Expectation& here = it->second.expectation;
  if (group.schema_hash != here.group.schema_hash) {
    Refuse(connection, Answer::Code::kWrongSchema,
           absl::StrFormat("rank %d uses schema %016x, rank %d uses schema %016x", greeting.from,
                           group.schema_hash, here.rank, here.group.schema_hash));
    return true;
  }
  const uint32_t rank = here.rank;
  const uint32_t ranks = here.ranks;
  if (greeting.to != rank || greeting.ranks != ranks || greeting.from <= rank ||
      greeting.from >= ranks || !IsValid(greeting.purpose)) {
    Refuse(connection, Answer::Code::kWrongRank,
           absl::StrCat("rank ", greeting.from, " of ", greeting.ranks, " calls rank ", greeting.to,
                        ", but this is rank ", rank, " of ", ranks));
    return true;
  }
  const Answer welcome{.host = here.host, .shares_memory = here.shares_memory};
  if (SendWhole(connection.socket, Encode(welcome)).ok()) {
    // Replaces an earlier connection, which its caller has abandoned.
    it->second.arrived[{greeting.from, greeting.purpose}] = {std::move(connection.socket),
                                                             std::move(connection.greeting)};
    if (here.wake != nullptr) Wake(*here.wake);
  }
  return true;
}

// Sends the reason; the caller closes the connection. Nothing was written to the connection before,
// so there is room for the answer.
void TcpListener::Refuse(const Connection& connection, Answer::Code code,
                         const std::string& reason) {
  LOG(INFO) << "refused a connection between ranks: " << reason;
  Count(CounterOf(code));
  // A caller that has closed the connection needs no answer.
  SendWhole(connection.socket, Encode(Answer{.code = code, .reason = reason})).IgnoreError();
}

void TcpListener::Count(absl::string_view what) {
  if (options_.counters != nullptr) options_.counters->Add(what);
}

void TcpListener::DropExpired(absl::Time now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool expired = it->second.deadline <= now;
    if (expired && !it->second.parked) Count("transport_handshake_timeouts");
    it = expired ? connections_.erase(it) : std::next(it);
  }
}

}  // namespace cadre
