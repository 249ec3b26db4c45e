// Parsing of messages of peers within a limit of memory.
//
// The parser of protocol buffers takes many times the size of a message that consists of empty
// submessages or of unknown fields: a submessage of two bytes becomes an object. So the bytes are
// scanned first, which takes no memory, and a message beyond the limit is not parsed.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"

namespace cadre {

// Errors: ResourceExhausted if the parsed message could take more than `max_memory` bytes;
// InvalidArgument if the bytes are not a message of that type, or contain a group.
absl::Status ParseWithin(int64_t max_memory, grpc::ByteBuffer bytes,
                         google::protobuf::Message* message);

// The message as bytes, for streams whose messages are not those of protocol buffers.
grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);

}  // namespace cadre
