// The calls of a rank to one aggregator shard. RoundsClient makes them over gRPC; the simulation
// makes them in virtual time.
//
// Thread-safe; concurrent calls are allowed, each with its own Traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/cadre/v1/rounds.pb.h"

namespace cadre {

// Where a shard is.
struct ShardLocation {
  // An address alone is the location of a server with any certificate. Implicit, as a test names
  // it.
  ShardLocation(std::string host_port = "", std::string name = "")
      : address(std::move(host_port)), aggregator(std::move(name)) {}

  // host:port; empty: not known yet.
  std::string address;
  // The name in the certificate of the aggregator; empty for any.
  std::string aggregator;

  bool operator==(const ShardLocation&) const = default;
};

// Bytes transferred by all attempts, including failed ones.
struct Traffic {
  // Bytes of values.
  uint64_t payload_sent = 0;
  uint64_t payload_received = 0;
  // Bytes of whole messages, including values (without the framing of gRPC and lower layers).
  uint64_t message_sent = 0;
  uint64_t message_received = 0;

  Traffic& operator+=(const Traffic& other) {
    payload_sent += other.payload_sent;
    payload_received += other.payload_received;
    message_sent += other.message_sent;
    message_received += other.message_received;
    return *this;
  }
};

// A frame (model/frame.h) and the fragment to which its units belong (v1::Start).
struct PulledFrame {
  std::string bytes;
  uint32_t fragment = 0;
};

class ShardClient {
 public:
  virtual ~ShardClient() = default;

  // Stages `bytes`: values in fp32 in the order of header.ranges, or a frame of them if the header
  // has a codec. Returns OK once they are durable at the shard. A contribution may be staged again
  // with the same bytes. The client fills in the header's protocol, codec, frame_elements and proof
  // and, if it is 0, chunk_elements. A request to stop ends this call alone, with Cancelled.
  // Requires: a multiple of 4 bytes.
  virtual absl::Status Stage(const v1::ContributionHeader& header, std::span<const std::byte> bytes,
                             Traffic* traffic, std::stop_token stop) = 0;

  // Reads request.ranges, in their order, into `out`. After an error `out` is unspecified. The
  // client fills in the request's protocol and proof and, if it is 0, chunk_elements.
  virtual absl::Status Pull(const v1::PullRequest& request, std::span<float> out, Traffic* traffic,
                            std::stop_token stop) = 0;

  // Reads the frame of request.version for what it has of request.ranges, at most `max_elements` of
  // 4 bytes. FailedPrecondition if there is none.
  virtual absl::Status PullFrame(const v1::PullRequest& request, uint64_t max_elements,
                                 PulledFrame* frame, Traffic* traffic, std::stop_token stop) = 0;

  // Ends all current and later calls with Cancelled. Does not wait for them.
  virtual void Cancel() = 0;
};

}  // namespace cadre
