#include "worker/comm/tcp_listener.h"

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

namespace cadre {
namespace {

// Pause after running out of descriptors, so that the loop does not spin on a waiting connection.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// Tells the caller why and lets the connection go. The answer is the first thing that is written to
// the connection, so there is room for it.
void Refuse(const Socket& socket, Answer::Code code, const std::string& reason) {
  LOG(INFO) << "refused a connection between ranks: " << reason;
  const std::string answer = Encode(Answer{.code = code, .reason = reason});
  send(socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL);
}

bool Welcome(const Socket& socket) {
  const std::string answer = Encode(Answer{.code = Answer::Code::kWelcome});
  return send(socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(answer.size());
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

absl::Status TcpListener::Expect(const GroupIdentity& group, int rank, int ranks) {
  absl::MutexLock lock(&mutex_);
  const GroupKey key(group.run, group.group);
  const auto newest = newest_.find(key);
  if (newest != newest_.end() && group.generation <= newest->second) {
    return absl::AbortedError(absl::StrCat("generation ", group.generation, " of group ",
                                           group.group, " is over; this worker was called to ",
                                           newest->second));
  }
  newest_[key] = group.generation;
  expected_[key] = Expected{.group = group, .rank = rank, .ranks = ranks};
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool placed = it->second.parked && Place(it->second);
    it = placed ? connections_.erase(it) : std::next(it);
  }
  // The loop may be polling what was just closed or handed out; a closed connection ends for its
  // caller only when the poll lets go of it.
  Wake(wake_);
  return absl::OkStatus();
}

void TcpListener::Forget(const GroupIdentity& group) {
  absl::MutexLock lock(&mutex_);
  const auto it = expected_.find(GroupKey(group.run, group.group));
  if (it != expected_.end() && it->second.group == group) expected_.erase(it);
}

Socket TcpListener::TakeArrived(const GroupIdentity& group, int from, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const GroupKey key(group.run, group.group);
  const auto arrived = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = expected_.find(key);
    return it == expected_.end() || it->second.arrived.count(from) > 0;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&arrived), timeout);
  const auto it = expected_.find(key);
  if (it == expected_.end() || it->second.group != group) return Socket();
  auto node = it->second.arrived.extract(from);
  return node.empty() ? Socket() : std::move(node.mapped());
}

void TcpListener::Serve() {
  while (true) {
    Watch watch;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      watch = NextWatch(absl::Now());
    }
    // At least a millisecond, so that rounding down never makes the loop spin.
    const int64_t wait = absl::ToInt64Milliseconds(watch.until - absl::Now());
    poll(watch.polled.data(), watch.polled.size(),
         static_cast<int>(std::clamp<int64_t>(wait, 1, 60'000)));
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
    // A parked connection has nothing more to say, but may end.
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
    // It may have been handed out while the poll waited.
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
        LOG(WARNING) << "accepting a connection between ranks: " << std::strerror(errno);
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
  if (got <= 0) return false;
  connection.received.append(part.data(), static_cast<size_t>(got));
  absl::StatusOr<std::optional<Greeting>> greeting = DecodeGreeting(connection.received);
  if (!greeting.ok()) {
    LOG(INFO) << "dropped a connection between ranks: " << greeting.status().message();
    return false;
  }
  if (!greeting->has_value()) return true;
  connection.greeting = **std::move(greeting);
  if (Place(connection)) return false;
  connection.parked = true;
  connection.deadline = absl::Now() + options_.park_timeout;
  return true;
}

bool TcpListener::Place(Connection& connection) {
  const Greeting& greeting = connection.greeting;
  const GroupIdentity& group = greeting.group;
  const GroupKey key(group.run, group.group);
  const auto newest = newest_.find(key);
  if (newest == newest_.end() || group.generation > newest->second) return false;
  const auto it = expected_.find(key);
  if (it == expected_.end() || group.generation != it->second.group.generation) {
    Refuse(connection.socket, Answer::Code::kStaleGeneration,
           absl::StrCat("generation ", group.generation, " of group ", group.group, " of run ",
                        group.run, " is over; the newest here is ", newest->second));
    return true;
  }
  Expected& expected = it->second;
  if (group.schema_hash != expected.group.schema_hash) {
    Refuse(connection.socket, Answer::Code::kWrongSchema,
           absl::StrFormat("rank %d speaks schema %016x, rank %d speaks %016x", greeting.from,
                           group.schema_hash, expected.rank, expected.group.schema_hash));
    return true;
  }
  const auto rank = static_cast<uint32_t>(expected.rank);
  const auto ranks = static_cast<uint32_t>(expected.ranks);
  if (greeting.to != rank || greeting.ranks != ranks || greeting.from <= rank ||
      greeting.from >= ranks) {
    Refuse(connection.socket, Answer::Code::kWrongPlace,
           absl::StrCat("rank ", greeting.from, " of ", greeting.ranks, " calls rank ", greeting.to,
                        ", but here is rank ", rank, " of ", ranks));
    return true;
  }
  // A rank that calls again has given up its earlier connection.
  if (Welcome(connection.socket)) {
    expected.arrived[static_cast<int>(greeting.from)] = std::move(connection.socket);
  }
  return true;
}

void TcpListener::DropExpired(absl::Time now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = it->second.deadline <= now ? connections_.erase(it) : std::next(it);
  }
}

}  // namespace cadre
