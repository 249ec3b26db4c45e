#include "comm/transport/tcp_listener.h"

#include <glog/logging.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/protocol.h"
#include "base/status.h"
#include "comm/transport/tcp_link.h"

namespace cadre {
namespace {

// Pause after the process ran out of descriptors, so that the loop does not spin.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

bool IsValid(const Header& header) {
  const Purpose purpose = header.purpose;
  if (header.connections < 1 || header.connections > kMaxConnections) return false;
  if (purpose.channel == Purpose::kControl) return purpose.connection == 0;
  return purpose.channel < Transport::kChannels && purpose.connection < header.connections;
}

// The IP address as bytes.
std::string HostOf(const sockaddr_storage& address) {
  const auto bytes = [](const auto& ip) {
    return std::string(reinterpret_cast<const char*>(&ip), sizeof ip);
  };
  if (address.ss_family == AF_INET) {
    return bytes(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  return bytes(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

absl::string_view CounterOf(Answer::Code code) {
  switch (code) {
    case Answer::Code::kStaleGeneration:
      return "transport_refused_stale_generation";
    case Answer::Code::kWrongProtocol:
      return "transport_refused_protocol";
    case Answer::Code::kWrongKey:
      return "transport_refused_key";
    case Answer::Code::kWrongRank:
    case Answer::Code::kAccepted:
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

absl::Status TcpListener::Expect(const GroupIdentity& group, int rank, int ranks,
                                 const Socket* wake) {
  absl::MutexLock lock(&mutex_);
  const GroupKey key(TextDigest(group.run), group.group);
  const auto newest = newest_.find(key);
  if (newest != newest_.end() && group.generation <= newest->second.group.generation) {
    return absl::AbortedError(absl::StrCat("generation ", group.generation, " of group ",
                                           group.group, " is over; the newest is ",
                                           newest->second.group.generation));
  }
  Generation& expected = newest_[key] = Generation{.group = group, .wake = wake};
  expected.rank = rank;
  expected.ranks = ranks;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool done = it->second.has_header() && Deliver(it->second);
    it = done ? connections_.erase(it) : std::next(it);
  }
  // The listener's thread may be polling a descriptor that was just closed or delivered, and the
  // kernel ends a closed connection only when no poll refers to it.
  Wake(wake_);
  return absl::OkStatus();
}

void TcpListener::Forget(const GroupIdentity& group) {
  absl::MutexLock lock(&mutex_);
  Generation* generation = Find(group);
  if (generation == nullptr) return;
  generation->expected = false;
  generation->arrivals.clear();
}

std::vector<TcpListener::Arrival> TcpListener::TakeArrivals(const GroupIdentity& group) {
  absl::MutexLock lock(&mutex_);
  Generation* generation = Find(group);
  if (generation == nullptr) return {};
  return std::exchange(generation->arrivals, {});
}

TcpListener::Generation* TcpListener::Find(const GroupIdentity& group) {
  const auto it = newest_.find(GroupKey(TextDigest(group.run), group.group));
  const bool found = it != newest_.end() && it->second.expected && it->second.group == group;
  return found ? &it->second : nullptr;
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
    // A waiting connection sends nothing more, but its peer may close it.
    const short events = connection.has_header() ? POLLRDHUP : POLLIN;
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
    const bool closed = it->second.has_header();
    if (closed || !Read(it->second)) connections_.erase(it);
  }
  const bool accepting = watch.polled.size() > watch.ids.size() + 1;
  if (accepting && watch.polled.back().revents != 0) AcceptAll(absl::Now());
}

void TcpListener::AcceptAll(absl::Time now) {
  while (true) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    Socket socket(accept4(listening_.fd(), reinterpret_cast<sockaddr*>(&peer), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.empty()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        LOG(WARNING) << "cannot accept a connection between ranks: " << std::strerror(errno);
        accept_after_ = now + kAcceptPause;
      }
      return;
    }
    TuneConnection(socket);
    Greeting greeting;
    greeting.challenge = NewChallenge();
    if (!SendWhole(socket, BytesOf(greeting)).ok()) continue;
    Connection connection{.socket = std::move(socket),
                          .deadline = now + options_.wait_timeout,
                          .host = HostOf(peer),
                          .challenge = greeting.challenge};
    connections_.emplace(next_id_++, std::move(connection));
    if (connections_.size() > options_.max_waiting) DropOne();
  }
}

void TcpListener::DropOne() {
  std::map<absl::string_view, int> counts;
  for (const auto& [id, connection] : connections_) ++counts[connection.host];
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  connections_.erase(std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second.host == most->first;
  }));
}

bool TcpListener::Read(Connection& connection) {
  const absl::StatusOr<bool> complete =
      ReadUntil(connection.socket, sizeof(Header), &connection.received);
  const absl::string_view received = connection.received;
  const absl::string_view magic(Header::kMagic.data(), Header::kMagic.size());
  const bool is_header = received.substr(0, magic.size()) == magic.substr(0, received.size());
  if (!complete.ok() || !is_header) {
    // A connection without any bytes only checks whether the port is open, so it is not counted.
    if (!received.empty()) Count("transport_garbage_closed");
    return false;
  }
  return !*complete || !Deliver(connection);
}

bool TcpListener::Deliver(Connection& connection) {
  const Header header = FromBytes<Header>(connection.received);
  const auto it = newest_.find(GroupKey(header.run, header.group));
  if (it == newest_.end() || header.generation > it->second.group.generation) return false;
  Generation& here = it->second;
  if (!here.expected || header.generation != here.group.generation) {
    return Refuse(connection, Answer::Code::kStaleGeneration,
                  absl::StrCat("generation ", header.generation, " of group ", header.group,
                               " is over; the newest here is ", here.group.generation));
  }
  if (!AreCompatible(header.protocol, here.group.protocol)) {
    return Refuse(connection, Answer::Code::kWrongProtocol,
                  absl::StrFormat("rank %d has protocol %d, rank %d has protocol %d", header.from,
                                  header.protocol, here.rank, here.group.protocol));
  }
  if (!IsSigned(here.group.key, header, connection.challenge)) {
    return Refuse(connection, Answer::Code::kWrongKey,
                  absl::StrCat("the caller does not know the key of generation ", header.generation,
                               " of group ", header.group));
  }
  if (header.to != here.rank || header.ranks != here.ranks || header.from <= here.rank ||
      header.from >= here.ranks || !IsValid(header)) {
    return Refuse(connection, Answer::Code::kWrongRank,
                  absl::StrCat("rank ", header.from, " of ", header.ranks, " calls rank ",
                               header.to, ", but this is rank ", here.rank, " of ", here.ranks));
  }
  here.arrivals.push_back({std::move(connection.socket), header});
  if (here.wake != nullptr) Wake(*here.wake);
  return true;
}

// Sends the reason. Only the greeting was written to the
// connection before, so there is room for the answer.
bool TcpListener::Refuse(const Connection& connection, Answer::Code code,
                         const std::string& reason) {
  if (const auto line = log_limit_.Pass(reason, absl::Now())) {
    LOG(INFO) << "refused a connection between ranks: " << *line;
  }
  Count(CounterOf(code));
  Answer answer{.code = code};
  answer.reason = decltype(answer.reason)(reason);
  // A caller that has closed the connection needs no answer.
  SendWhole(connection.socket, BytesOf(answer)).IgnoreError();
  return true;
}

void TcpListener::Count(absl::string_view what) {
  if (options_.counters != nullptr) options_.counters->Add(what);
}

void TcpListener::DropExpired(absl::Time now) {
  std::erase_if(connections_, [&](const auto& entry) {
    const bool expired = entry.second.deadline <= now;
    if (expired && !entry.second.has_header()) Count("transport_handshake_timeouts");
    return expired;
  });
}

}  // namespace cadre
