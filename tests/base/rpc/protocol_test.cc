// The version of the protocol (base/protocol.h) and the messages to which it belongs.
#include "base/protocol.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {
namespace {

// Names, numbers and types of all fields of the messages that members send to each other.
std::string MessagesOfMembers() {
  std::string text;
  for (const google::protobuf::FileDescriptor* file :
       {v1::RunSpec::descriptor()->file(), v1::Plan::descriptor()->file(),
        v1::StageRequest::descriptor()->file(), v1::MemberMessage::descriptor()->file(),
        v1::ClusterProfile::descriptor()->file()}) {
    google::protobuf::FileDescriptorProto proto;
    file->CopyTo(&proto);  // without comments
    proto.clear_service();
    proto.clear_dependency();
    text += proto.SerializeAsString();
  }
  return text;
}

TEST(ProtocolTest, ChangedMessagesHaveANewVersion) {
  EXPECT_EQ(absl::StrFormat("%d, %016x", kProtocol, TextDigest(MessagesOfMembers())),
            "2, 33b00e64f222df67")
      << "The messages of members have changed. Decide by base/protocol.h whether kProtocol is "
         "raised, then correct the expected digest.";
}

TEST(ProtocolTest, AdjacentVersionsAreCompatible) {
  static_assert(AreCompatible(7, 7) && AreCompatible(7, 8) && AreCompatible(8, 7));
  static_assert(!AreCompatible(7, 9) && !AreCompatible(9, 7));
  static_assert(!AreCompatible(0, kProtocol) && !AreCompatible(kProtocol, 0));
  static_assert(!AreCompatible(kProtocol, UINT32_MAX));
}

}  // namespace
}  // namespace cadre
