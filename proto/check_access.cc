// Run by the build: fails if a method of a service does not state who may call it.
#include <cstdlib>
#include <iostream>

#include "proto/method_access.h"

int main() {
  int missing = 0;
  for (const auto& [path, access] : cadre::MethodAccess()) {
    if (access != cadre::v1::ACCESS_UNSPECIFIED) continue;
    std::cerr << path << " lacks the option (cadre.v1.access)\n";
    ++missing;
  }
  return missing == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
