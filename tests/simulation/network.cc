#include "tests/simulation/network.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

// Limits of the time after which a side gives up a stream without messages.
constexpr absl::Duration kMinSilence = absl::Seconds(4);
constexpr absl::Duration kMaxConnectionSilence = absl::Seconds(25);
// Messages that wait in one direction of a congested stream.
constexpr size_t kMaxQueued = 1;
// Undelivered messages are looked at again after this time, because faults may end early.
constexpr absl::Duration kLookAgain = absl::Seconds(1);

}  // namespace

Network::Stream* Network::Find(ConnectionId connection) {
  auto it = streams_.find(connection);
  return it == streams_.end() ? nullptr : &it->second;
}

template <typename Message>
absl::Time Network::Opens(const std::string& host) const {
  const HostConditions& at = world_.hosts.at(host);
  if constexpr (std::is_same_v<Message, v1::MemberMessage>)
    return std::max(at.cut_up, at.congested);
  return std::max({at.cut_down, at.congested, at.process.OpensAt()});
}

// ---- Messages

template <typename Message>
bool Network::OverflowsQueue(ConnectionId connection, const Direction<Message>& to) {
  const std::string& host = streams_.at(connection).host;
  if (world_.hosts[host].congested <= world_.timeline.now()) return false;
  if (to.messages.size() < kMaxQueued) return false;
  world_.Count("queues_full");
  if (world_.plant != Plant::kDropFromFullQueue) Break(connection);
  return true;
}

template <typename Message>
void Network::Post(ConnectionId connection, Direction<Message> Stream::*direction,
                   std::optional<Message> message) {
  Stream& stream = streams_.at(connection);
  Direction<Message>& to = stream.*direction;
  if (message.has_value() && OverflowsQueue(connection, to)) return;
  to.last = std::max(to.last, world_.timeline.now() + world_.Delay());
  to.messages.push_back(std::move(message));
  world_.timeline.After(to.last - world_.timeline.now(),
                        [this, connection, direction] { Arrive(connection, direction); });
  if (world_.dice.Chance(world_.faults.break_stream)) Break(connection);
}

template <typename Message>
void Network::Arrive(ConnectionId connection, Direction<Message> Stream::*direction) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || (stream->*direction).messages.empty()) return;
  const absl::Duration wait = Opens<Message>(stream->host) - world_.timeline.now();
  if (wait > absl::ZeroDuration()) {
    world_.timeline.After(std::min(wait, kLookAgain),
                          [this, connection, direction] { Arrive(connection, direction); });
    return;
  }
  const std::optional<Message> message = std::move((stream->*direction).messages.front());
  (stream->*direction).messages.pop_front();
  Take(connection, *stream, message);
}

void Network::Take(ConnectionId connection, Stream& stream,
                   const std::optional<v1::MemberMessage>& message) {
  if (stream.server_gone) return;
  if (!stream.endpoint) {
    stream.endpoint = Choose(stream.host);
    if (!stream.endpoint) {
      stream.server_gone = true;
      world_.timeline.After(world_.Delay(), [this, connection] { NotifyClient(connection); });
      return;
    }
    ServerOf(stream)->opened(connection);
  }
  // A callback may have ended the process or the stream.
  if (Find(connection) == nullptr || stream.server_gone) return;
  if (!message) return NotifyServer(connection);
  if (!message->has_heartbeat()) {
    if (world_.logs()) {
      world_.Log("c", *stream.endpoint, " <- ", connection, " ", Describe(*message));
    }
  }
  ServerOf(stream)->message(connection, *message);
}

void Network::Take(ConnectionId connection, Stream& stream,
                   const std::optional<v1::CoordinatorMessage>& message) {
  if (stream.client_gone) return;
  if (!message) return NotifyClient(connection);
  const auto on_message = stream.client.message;
  on_message(*message);
}

void Network::NotifyClient(ConnectionId connection) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || stream->client_gone) return;
  if (world_.hosts[stream->host].process.OpensAt() > world_.timeline.now()) {
    world_.timeline.After(kLookAgain, [this, connection] { NotifyClient(connection); });
    return;
  }
  stream->client_gone = true;
  const auto closed = stream->client.closed;
  if (!stream->server_gone && !stream->broken) {
    Post(connection, &Stream::up, std::optional<v1::MemberMessage>());
  }
  EraseIfOver(connection);
  closed();
}

void Network::NotifyServer(ConnectionId connection) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || std::exchange(stream->server_gone, true)) return;
  const Server* const server = ServerOf(*stream);
  stream->up.messages.clear();
  if (!stream->client_gone && !stream->broken) {
    Post(connection, &Stream::down, std::optional<v1::CoordinatorMessage>());
  }
  EraseIfOver(connection);
  if (server != nullptr) server->closed(connection);
}

void Network::EraseIfOver(ConnectionId connection) {
  auto it = streams_.find(connection);
  if (it != streams_.end() && it->second.client_gone && it->second.server_gone) streams_.erase(it);
}

// ---- The coordinator

void Network::Listen(Endpoint endpoint, Server server) { servers_[endpoint] = std::move(server); }

const Network::Server* Network::ServerOf(const Stream& stream) const {
  const auto server = stream.endpoint ? servers_.find(*stream.endpoint) : servers_.end();
  return server == servers_.end() ? nullptr : &server->second;
}

std::optional<Network::Endpoint> Network::Choose(const std::string& host) {
  std::vector<Endpoint> reached;
  for (const auto& [endpoint, server] : servers_) {
    if (world_.hosts[host].reaches[endpoint]) reached.push_back(endpoint);
  }
  if (reached.empty()) return std::nullopt;
  return reached.size() == 1 ? reached[0] : reached[world_.dice.Between(0, reached.size() - 1)];
}

void Network::Unlisten(Endpoint endpoint) {
  servers_.erase(endpoint);
  std::vector<ConnectionId> over;
  for (auto& [connection, stream] : streams_) {
    if (stream.endpoint == endpoint) over.push_back(connection);
  }
  for (const ConnectionId connection : over) {
    Stream& stream = streams_.at(connection);
    if (stream.server_gone) continue;
    stream.server_gone = true;
    stream.up.messages.clear();
    // Messages in the buffers of the kernel may still arrive, or the reset may overtake them.
    if (world_.dice.Chance(0.5)) stream.down.messages.clear();
    if (stream.client_gone) {
      EraseIfOver(connection);
    } else if (!stream.broken) {
      Post(connection, &Stream::down, std::optional<v1::CoordinatorMessage>());
    }
  }
}

void Network::Down(ConnectionId connection, const v1::CoordinatorMessage& message) {
  Stream* const stream = Find(connection);
  if (stream != nullptr && world_.logs()) {
    world_.Log("c", stream->endpoint.value_or(0), " -> ", connection, " ", Describe(message));
  }
  if (stream == nullptr || stream->server_gone || stream->broken) return;
  Post(connection, &Stream::down, std::optional<v1::CoordinatorMessage>(message));
}

void Network::EndByServer(ConnectionId connection) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || stream->server_gone) return;
  stream->server_gone = true;
  stream->up.messages.clear();
  if (!stream->client_gone && !stream->broken) {
    Post(connection, &Stream::down, std::optional<v1::CoordinatorMessage>());
  }
  EraseIfOver(connection);
}

// ---- Members

ConnectionId Network::Dial(const std::string& host, Client client) {
  const ConnectionId connection = ++last_;
  Stream& stream = streams_[connection];
  stream.host = host;
  stream.client = std::move(client);
  return connection;
}

void Network::Up(ConnectionId connection, const v1::MemberMessage& message) {
  if (listener_) listener_(message);
  Stream* const stream = Find(connection);
  if (stream == nullptr || stream->client_gone || stream->broken) return;
  if (stream->server_gone) return;
  // Heartbeats do not wait in the queue: they are made when one can be sent.
  const bool congested = world_.hosts[stream->host].congested > world_.timeline.now();
  if (congested && message.has_heartbeat()) return;
  Post(connection, &Stream::up, std::optional<v1::MemberMessage>(message));
}

bool Network::IsIntact(ConnectionId connection) const {
  const auto it = streams_.find(connection);
  return it != streams_.end() && !it->second.broken && !it->second.client_gone &&
         !it->second.server_gone;
}

bool Network::IsQuiet(ConnectionId connection) const {
  const Stream& stream = streams_.at(connection);
  return stream.up.messages.empty() && stream.down.messages.empty();
}

void Network::EndByClient(ConnectionId connection, bool host_lost) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || std::exchange(stream->client_gone, true)) return;
  stream->down.messages.clear();
  if (stream->server_gone) return EraseIfOver(connection);
  if (host_lost) {
    stream->broken = true;
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxConnectionSilence),
                          [this, connection] { NotifyServer(connection); });
  } else if (!stream->broken) {
    Post(connection, &Stream::up, std::optional<v1::MemberMessage>());
  }
}

// ---- Faults

void Network::Break(ConnectionId connection) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || std::exchange(stream->broken, true)) return;
  world_.Count("streams_broken");
  world_.Log("net   stream ", connection, " of ", stream->host, " breaks");
  if (world_.dice.Chance(0.5)) stream->up.messages.clear();
  if (world_.dice.Chance(0.5)) stream->down.messages.clear();
  constexpr absl::Duration kMaxDetection = absl::Seconds(3);
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), kMaxDetection),
                        [this, connection] { NotifyClient(connection); });
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), kMaxDetection),
                        [this, connection] { NotifyServer(connection); });
}

void Network::BreakAny() {
  if (streams_.empty()) return;
  auto it = streams_.begin();
  std::advance(it, world_.dice.Between(0, streams_.size() - 1));
  Break(it->first);
}

void Network::OnCut(const std::string& host) {
  const HostConditions& at = world_.hosts[host];
  const auto is_cut = [this, &at] {
    return std::max(at.cut_up, at.cut_down) > world_.timeline.now();
  };
  for (auto& [id, stream] : streams_) {
    if (stream.host != host) continue;
    const ConnectionId connection = id;
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxConnectionSilence),
                          [this, connection, is_cut] {
                            if (is_cut()) NotifyClient(connection);
                          });
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxConnectionSilence),
                          [this, connection, is_cut] {
                            if (is_cut()) NotifyServer(connection);
                          });
  }
}

void Network::BreakUnreachable() {
  std::vector<ConnectionId> unreachable;
  for (const auto& [connection, stream] : streams_) {
    const bool reaches = !stream.endpoint || world_.hosts[stream.host].reaches[*stream.endpoint];
    if (!reaches) unreachable.push_back(connection);
  }
  for (const ConnectionId connection : unreachable) Break(connection);
}

// ---- Bulk calls

bool Network::Reaches(const std::string& from, const std::string& to) const {
  const absl::Time now = world_.timeline.now();
  const HostConditions& target = world_.hosts.at(to);
  return world_.hosts.at(from).cut_bulk <= now && target.cut_bulk <= now &&
         target.process.OpensAt() <= now;
}

absl::Duration Network::TransferTime(const std::string& from, const std::string& to) {
  absl::Duration time = world_.Delay();
  for (const std::string* host : {&from, &to}) {
    HostConditions& at = world_.hosts[*host];
    const absl::Time now = world_.timeline.now();
    if (at.slow_link <= now) continue;
    time += at.transfer;
    at.busy = std::max(at.busy, now + time);
  }
  return time;
}

}  // namespace cadre::simulation
