// gRPC limits and keep-alive of all clients and servers.
//
// Thread-safe (pure functions).
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "base/rpc/credentials.h"

namespace cadre {

// Largest message: an assignment with the spec of a model with 100,000 parameters
// (model/validate.h). Bulk data is sent as chunks in streams.
inline constexpr int kMaxMessageBytes = 12 << 20;
// Elements (fp32) in one chunk of bulk data: 1 MiB.
inline constexpr int kChunkElements = 256 << 10;

// The kind of traffic of a channel. Control messages and bulk data use separate connections, so
// that bulk data does not delay heartbeats. kFailover: control messages to one of several servers,
// which is given up when it has not responded for a few seconds.
enum class Plane { kControl, kFailover, kBulk };

// A channel to host:port. Connects on first use and reconnects after failures. With TLS, it
// connects to the expected server only. Proxies: base/rpc/http_proxy.h.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, Plane plane,
                                           const Credentials& credentials = Credentials::Insecure(),
                                           const ServerIdentity& expected = {});

// Limits and keep-alive of a server.
void Configure(grpc::ServerBuilder& builder);

}  // namespace cadre
