#include "proto/schema_hash.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <string>

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {
namespace {

// FNV-1a with 64 bits, which is sufficient to distinguish builds and needs no library.
uint64_t Fold(uint64_t hash, const std::string& bytes) {
  for (unsigned char c : bytes) {
    hash = (hash ^ c) * 0x100000001b3ULL;
  }
  return hash;
}

uint64_t Compute() {
  // One message of each file whose messages are sent between processes. The other files are left
  // out: their messages are only stored (records, checkpoint) or read by one program (placement).
  const google::protobuf::FileDescriptor* files[] = {
      v1::RunSpec::descriptor()->file(),       v1::Plan::descriptor()->file(),
      v1::StageRequest::descriptor()->file(),  v1::MemberMessage::descriptor()->file(),
      v1::SubmitRequest::descriptor()->file(), v1::ClusterProfile::descriptor()->file(),
  };
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const auto* file : files) {
    google::protobuf::FileDescriptorProto proto;
    file->CopyTo(&proto);  // without comments and positions
    hash = Fold(hash, proto.SerializeAsString());
  }
  return hash;
}

}  // namespace

uint64_t SchemaHash() {
  static const uint64_t hash = Compute();
  return hash;
}

}  // namespace cadre
