#include "tests/simulation/network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

// How long it takes a side to give up a stream on which nothing passes.
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

// ---- Parcels

template <typename Message>
void Network::Post(ConnectionId connection, Way<Message> Stream::*way,
                   std::optional<Message> message) {
  Stream& stream = streams_.at(connection);
  Way<Message>& to = stream.*way;
  to.last = std::max(to.last, world_.timeline.now() + world_.Delay());
  to.parcels.push_back(std::move(message));
  world_.timeline.After(to.last - world_.timeline.now(),
                        [this, connection, way] { Arrive(connection, way); });
  if (world_.dice.Chance(world_.faults.break_stream)) Break(connection);
}

template <typename Message>
void Network::Arrive(ConnectionId connection, Way<Message> Stream::*way) {
  Stream* const stream = Find(connection);
  if (stream == nullptr || (stream->*way).parcels.empty()) return;
  const absl::Time cut = CutUntil(stream->host);
  if (cut > world_.timeline.now()) {
    world_.timeline.After(cut - world_.timeline.now(),
                          [this, connection, way] { Arrive(connection, way); });
    return;
  }
  const std::optional<Message> parcel = std::move((stream->*way).parcels.front());
  (stream->*way).parcels.pop_front();
  Take(connection, *stream, parcel);
}

void Network::Take(ConnectionId connection, Stream& stream,
                   const std::optional<v1::MemberMessage>& parcel) {
  if (stream.server_gone) return;
  if (!server_) {  // nobody listens
    stream.server_gone = true;
    world_.timeline.After(world_.Delay(), [this, connection] { NotifyClient(connection); });
    return;
  }
  if (!stream.opened) {
    stream.opened = true;
    server_->opened(connection);
  }
  // Whoever is told may have died of it.
  if (Find(connection) == nullptr || stream.server_gone || !server_) return;
  if (!parcel) return NotifyServer(connection);
  if (!parcel->has_heartbeat()) world_.Log("c  <- ", connection, " ", Describe(*parcel));
  server_->message(connection, *parcel);
}

void Network::Take(ConnectionId connection, Stream& stream,
                   const std::optional<v1::CoordinatorMessage>& parcel) {
  if (stream.client_gone) return;
  if (!parcel) return NotifyClient(connection);
  const auto hear = stream.client.message;
  hear(*parcel);
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
  stream->up.parcels.clear();
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
    stream.up.parcels.clear();
    // What the kernel has taken may still come; the reset may overtake it.
    if (world_.dice.Chance(0.5)) stream.down.parcels.clear();
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
  stream->up.parcels.clear();
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
  stream->down.parcels.clear();
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
  if (world_.dice.Chance(0.5)) stream->up.parcels.clear();
  if (world_.dice.Chance(0.5)) stream->down.parcels.clear();
  const absl::Duration most = absl::Seconds(3);
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), most),
                        [this, connection] { NotifyClient(connection); });
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), most),
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
