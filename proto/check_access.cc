// Run by the build, with a FileDescriptorSet of all .proto files: fails if a method of a service
// does not state who may call it, or if MethodAccess does not know it, because its file is a new
// one.
#include <google/protobuf/descriptor.pb.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "proto/method_access.h"

int main(int argc, char** argv) {
  google::protobuf::FileDescriptorSet set;
  std::ifstream input(argc == 2 ? argv[1] : "", std::ios::binary);
  if (!set.ParseFromIstream(&input) || set.file().empty()) {
    std::cerr << "usage: check_access FILE, written by protoc --descriptor_set_out=FILE\n";
    return EXIT_FAILURE;
  }
  const std::map<std::string, cadre::v1::Access> access = cadre::MethodAccess();
  int wrong = 0;
  for (const auto& file : set.file()) {
    for (const auto& service : file.service()) {
      for (const auto& method : service.method()) {
        const std::string path = "/" + file.package() + "." + service.name() + "/" + method.name();
        const auto found = access.find(path);
        if (found != access.end() && found->second != cadre::v1::ACCESS_UNSPECIFIED) continue;
        std::cerr << file.name() << ": " << path
                  << (found == access.end() ? " is unknown to proto/method_access.cc\n"
                                            : " lacks the option (cadre.v1.access)\n");
        ++wrong;
      }
    }
  }
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
