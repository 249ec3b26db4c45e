#include "proto/method_access.h"

#include <google/protobuf/descriptor.h>

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"

namespace cadre {

std::map<std::string, v1::Access> MethodAccess() {
  // One message of each file with services; check_access fails the build if one is missing.
  const google::protobuf::FileDescriptor* files[] = {v1::SubmitRequest::descriptor()->file(),
                                                     v1::MemberMessage::descriptor()->file(),
                                                     v1::StageRequest::descriptor()->file()};
  std::map<std::string, v1::Access> access;
  for (const auto* file : files) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const google::protobuf::MethodDescriptor& method = *service.method(m);
        access["/" + service.full_name() + "/" + method.name()] =
            method.options().GetExtension(v1::access);
      }
    }
  }
  return access;
}

}  // namespace cadre
