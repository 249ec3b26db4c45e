#include "base/rpc/grpc_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "base/rpc/http_proxy.h"

namespace cadre {
namespace {

// Clients ping every 30 s and give up after 10 s, or 2 s each if another server may serve; servers
// tolerate a ping every second. The intervals must be compatible, because a server closes the
// connection after too many pings.
constexpr int kPingMs = 30'000;
constexpr int kPingTimeoutMs = 10'000;
constexpr int kFailoverPingMs = 2'000;
constexpr int kMinPingMs = 1'000;
// Reconnecting is cheap inside a cluster, and members wait for a restarted coordinator.
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 400;
// A name is resolved again after a failure, since a server may return at another address; by
// default gRPC would wait for 30 s.
constexpr int kMinResolveMs = 1'000;
// Limit of one attempt to connect, long enough for slow links and busy hosts. gRPC calls it the
// minimum reconnect backoff, but an attempt that fails earlier is followed by the delays above.
constexpr int kConnectMs = 10'000;

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, Plane plane,
                                           const Credentials& credentials,
                                           const ServerIdentity& expected) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  const bool failover = plane == Plane::kFailover;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, failover ? kFailoverPingMs : kPingMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, failover ? kFailoverPingMs : kPingTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kMinResolveMs);
  // Channels with equal arguments share connections; the plane keeps the two apart.
  args.SetInt("cadre.plane", plane == Plane::kBulk ? 1 : 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string proxy = HttpProxyOf(address);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, proxy.empty() ? 0 : 1);
  if (!proxy.empty()) args.SetString(GRPC_ARG_HTTP_PROXY, proxy);
  return grpc::CreateCustomChannel(address, credentials.channel(expected), args);
}

void Configure(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Without keep-alive, streams of a caller that vanished would occupy memory for hours.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
}

}  // namespace cadre
