// The parser of protocol buffers copies a field of type bytes into a string. This one reads the two
// messages around it by the same rules (fields in any order, unknown ones are skipped, the last
// value counts), and keeps the places of the bytes instead.
#include "server/chunk_view.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>

namespace cadre {
namespace {

using google::protobuf::io::CodedInputStream;
using WireFormat = google::protobuf::internal::WireFormatLite;

constexpr uint32_t kHeader = WireFormat::MakeTag(v1::StageRequest::kHeaderFieldNumber,
                                                 WireFormat::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kChunk =
    WireFormat::MakeTag(v1::StageRequest::kChunkFieldNumber, WireFormat::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kIndex =
    WireFormat::MakeTag(v1::Chunk::kIndexFieldNumber, WireFormat::WIRETYPE_VARINT);
constexpr uint32_t kData =
    WireFormat::MakeTag(v1::Chunk::kDataFieldNumber, WireFormat::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kCrc =
    WireFormat::MakeTag(v1::Chunk::kCrc32CFieldNumber, WireFormat::WIRETYPE_FIXED32);

bool ReadBytes(CodedInputStream& in, std::vector<absl::string_view>* parts) {
  parts->clear();
  uint32_t left = 0;
  if (!in.ReadVarint32(&left)) return false;
  while (left > 0) {
    const void* part = nullptr;
    int size = 0;
    if (!in.GetDirectBufferPointer(&part, &size)) return false;
    size = static_cast<int>(std::min<uint32_t>(size, left));
    parts->emplace_back(static_cast<const char*>(part), size);
    if (!in.Skip(size)) return false;
    left -= size;
  }
  return true;
}

bool ReadFields(CodedInputStream& in, ChunkView* chunk) {
  while (const uint32_t tag = in.ReadTag()) {
    const bool read = tag == kIndex  ? in.ReadVarint32(&chunk->index)
                      : tag == kData ? ReadBytes(in, &chunk->data)
                      : tag == kCrc  ? in.ReadLittleEndian32(&chunk->crc32c)
                                     : WireFormat::SkipField(&in, tag);
    if (!read) return false;
  }
  return in.ConsumedEntireMessage();
}

}  // namespace

int64_t ChunkView::bytes() const {
  int64_t bytes = 0;
  for (const absl::string_view part : data) bytes += std::ssize(part);
  return bytes;
}

bool ReadChunk(grpc::ByteBuffer& message, ChunkView* chunk) {
  *chunk = {};
  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  bool found = false;
  while (const uint32_t tag = in.ReadTag()) {
    if (tag == kHeader) return false;
    if (tag != kChunk) {
      if (!WireFormat::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size) || size > static_cast<uint32_t>(INT32_MAX)) return false;
    const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(size));
    if (!ReadFields(in, chunk) || in.BytesUntilLimit() != 0) return false;
    in.PopLimit(limit);
    found = true;
  }
  return found && in.ConsumedEntireMessage();
}

}  // namespace cadre
