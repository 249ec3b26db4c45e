#include "base/rpc/bounded_parse.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;
using WireFormat = google::protobuf::internal::WireFormatLite;

// Upper bounds of the memory of generated messages: an object without its fields, with its
// allocation and the pointer to it; a field of the object (the largest are repeated fields and
// maps); an element of a repeated field, a string, and an unknown field, without their bytes.
// Arrays may have twice the elements that they need.
constexpr int64_t kObjectBytes = 96;
constexpr int64_t kFieldBytes = 32;
constexpr int64_t kNumberBytes = 16;
constexpr int64_t kTextBytes = 64;
constexpr int64_t kUnknownBytes = 96;
// That of the parser.
constexpr int kMaxDepth = 100;

// Adds up an upper bound of the memory of a message.
class MemoryScan {
 public:
  MemoryScan(CodedInputStream& in, int64_t max) : in_(in), max_(max), left_(max) {}

  absl::Status Scan(const Descriptor& type, int depth) {
    left_ -= kObjectBytes + type.field_count() * kFieldBytes;
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormat::GetTagFieldNumber(tag));
      CADRE_RETURN_IF_ERROR(WireFormat::GetTagWireType(tag) == WireFormat::WIRETYPE_LENGTH_DELIMITED
                                ? ScanLength(field, depth)
                                : SkipNumber(field, tag));
      if (left_ < 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the message takes more than ", max_, " bytes of memory"));
      }
    }
    return in_.ConsumedEntireMessage() ? absl::OkStatus() : Malformed();
  }

 private:
  static absl::Status Malformed() { return absl::InvalidArgumentError("the message is malformed"); }

  // A field whose length precedes it: a message, a text, or numbers.
  absl::Status ScanLength(const FieldDescriptor* field, int depth) {
    int size = 0;
    if (!in_.ReadVarintSizeAsInt(&size)) return Malformed();
    if (field != nullptr && field->message_type() != nullptr) {
      if (depth == kMaxDepth) return Malformed();
      const CodedInputStream::Limit limit = in_.PushLimit(size);
      CADRE_RETURN_IF_ERROR(Scan(*field->message_type(), depth + 1));
      in_.PopLimit(limit);
      return absl::OkStatus();
    }
    const bool numbers = field != nullptr && field->is_packable();
    left_ -= numbers ? size * kNumberBytes : size + (field == nullptr ? kUnknownBytes : kTextBytes);
    return in_.Skip(size) ? absl::OkStatus() : Malformed();
  }

  absl::Status SkipNumber(const FieldDescriptor* field, uint32_t tag) {
    const auto type = WireFormat::GetTagWireType(tag);
    // No message has groups.
    if (type == WireFormat::WIRETYPE_START_GROUP || !WireFormat::SkipField(&in_, tag)) {
      return Malformed();
    }
    // Fields of another type than that of the message are unknown as well.
    const bool known =
        field != nullptr &&
        WireFormat::WireTypeForFieldType(static_cast<WireFormat::FieldType>(field->type())) == type;
    left_ -= !known ? kUnknownBytes : field->is_repeated() ? kNumberBytes : 0;
    return absl::OkStatus();
  }

  CodedInputStream& in_;
  const int64_t max_;
  int64_t left_;
};

}  // namespace

absl::Status ParseWithin(int64_t max_memory, grpc::ByteBuffer bytes,
                         google::protobuf::Message* message) {
  {
    grpc::ProtoBufferReader reader(&bytes);
    CADRE_RETURN_IF_ERROR(reader.status().ok() ? absl::OkStatus()
                                               : absl::InvalidArgumentError("no message"));
    CodedInputStream in(&reader);
    CADRE_RETURN_IF_ERROR(MemoryScan(in, max_memory).Scan(*message->GetDescriptor(), 0));
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError("the message is malformed");
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::MessageLite>(message, &bytes,
                                                                                 &owned);
  return bytes;
}

}  // namespace cadre
