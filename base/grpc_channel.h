// The one place for gRPC limits and keep-alive, so that clients and servers fit one another.
//
// Thread-safe (pure functions).
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

namespace cadre {

// Largest message either side accepts: a 4 MiB chunk and room for a header. Bulk data travels as
// chunks in streams.
inline constexpr int kMaxMessageBytes = 8 << 20;
// Elements (fp32) in one chunk of bulk data: 1 MiB.
inline constexpr int kChunkElements = 256 << 10;

// Control and bulk traffic take separate connections, so that data never starves heartbeats.
enum class Plane { kControl, kBulk };

// A channel to host:port, without TLS; connects when first used and again when it breaks.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, Plane plane);

// Limits and keep-alive of a server.
void Configure(grpc::ServerBuilder& builder);

}  // namespace cadre
