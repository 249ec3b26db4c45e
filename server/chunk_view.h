// A chunk of a contribution whose bytes stay where they are: in a message, or in the memory in
// which gRPC has received it. The disk takes them from there, without a copy.
//
// Thread-safe (functions).
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/rounds.pb.h"

namespace cadre {

struct ChunkView {
  ChunkView() = default;
  // Refers to the chunk.
  // NOLINTNEXTLINE(google-explicit-constructor)
  ChunkView(const v1::Chunk& chunk)
      : index(chunk.index()), crc32c(chunk.crc32c()), data({chunk.data()}) {}

  int64_t bytes() const;

  uint32_t index = 0;
  uint32_t crc32c = 0;
  // The parts of the data, in order.
  std::vector<absl::string_view> data;
};

// Reads the chunk of a serialized StageRequest; `chunk` refers to `message`. Returns false if the
// message is malformed or does not contain a chunk.
bool ReadChunk(grpc::ByteBuffer& message, ChunkView* chunk);

}  // namespace cadre
