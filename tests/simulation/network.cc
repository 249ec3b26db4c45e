#include "tests/simulation/network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

// Limits of the time after which a side gives up a stream without messages.
constexpr absl::Duration kMinSilence = absl::Seconds(4);
constexpr absl::Duration kMaxSilence = absl::Seconds(25);

}  // namespace

Network::Stream* Network::Find(ConnectionId connection) {
  auto it = streams_.find(connection);
  return it == streams_.end() ? nullptr : &it->second;
}

absl::Time Network::CutUntil(const std::string& host) const {
  auto it = cuts_.find(host);
  return it == cuts_.end() ? absl::InfinitePast() : it->second;
}

bool Network::IsCut(const std::string& host) const {
  return CutUntil(host) > world_.timeline.now();
}

bool Network::IsCutFromAll(const std::string& host) const {
  auto it = bulk_cuts_.find(host);
  return it != bulk_cuts_.end() && it->second > world_.timeline.now();
}

// ---- Messages

template <typename Message>
void Network::Post(ConnectionId connection, Direction<Message> Stream::*direction,
                   std::optional<Message> message) {
  Stream& stream = streams_.at(connection);
  Direction<Message>& to = stream.*direction;
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
  const absl::Time cut = CutUntil(stream->host);
  if (cut > world_.timeline.now()) {
    world_.timeline.After(cut - world_.timeline.now(),
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
  if (!server_) {
    stream.server_gone = true;
    world_.timeline.After(world_.Delay(), [this, connection] { NotifyClient(connection); });
    return;
  }
  if (!stream.opened) {
    stream.opened = true;
    server_->opened(connection);
  }
  // A callback may have ended the process or the stream.
  if (Find(connection) == nullptr || stream.server_gone || !server_) return;
  if (!message) return NotifyServer(connection);
  if (!message->has_heartbeat()) world_.Log("c  <- ", connection, " ", Describe(*message));
  server_->message(connection, *message);
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
  if (stream == nullptr || std::exchange(stream->client_gone, true)) return;
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
  const bool opened = stream->opened;
  stream->up.messages.clear();
  if (!stream->client_gone && !stream->broken) {
    Post(connection, &Stream::down, std::optional<v1::CoordinatorMessage>());
  }
  EraseIfOver(connection);
  if (opened && server_) server_->closed(connection);
}

void Network::EraseIfOver(ConnectionId connection) {
  auto it = streams_.find(connection);
  if (it != streams_.end() && it->second.client_gone && it->second.server_gone) streams_.erase(it);
}

// ---- The coordinator

void Network::Listen(Server server) { server_ = std::move(server); }

void Network::Unlisten() {
  server_.reset();
  std::vector<ConnectionId> over;
  for (auto& [connection, stream] : streams_) over.push_back(connection);
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
  world_.Log("c  -> ", connection, " ", Describe(message));
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
  Stream* const stream = Find(connection);
  if (stream == nullptr || stream->client_gone || stream->broken) return;
  if (stream->server_gone) return;
  Post(connection, &Stream::up, std::optional<v1::MemberMessage>(message));
}

void Network::EndByClient(ConnectionId connection, bool host_lost) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || std::exchange(stream->client_gone, true)) return;
  stream->down.messages.clear();
  if (stream->server_gone) return EraseIfOver(connection);
  if (host_lost) {
    stream->broken = true;
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxSilence),
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

void Network::Cut(const std::string& host, absl::Duration duration, bool bulk) {
  world_.Count("cuts");
  if (bulk) bulk_cuts_[host] = world_.timeline.now() + duration;
  world_.Log("net   ", host, " is cut off for ", absl::FormatDuration(duration));
  absl::Time& until = cuts_[host];
  until = std::max(until, world_.timeline.now() + duration);
  for (auto& [id, stream] : streams_) {
    if (stream.host != host) continue;
    const ConnectionId connection = id;
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxSilence), [this, connection, host] {
      if (IsCut(host)) NotifyClient(connection);
    });
    world_.timeline.After(world_.dice.Between(kMinSilence, kMaxSilence), [this, connection, host] {
      if (IsCut(host)) NotifyServer(connection);
    });
  }
}

void Network::HealAll() {
  for (auto& [host, until] : cuts_) until = std::min(until, world_.timeline.now());
  bulk_cuts_.clear();
}

}  // namespace cadre::simulation
