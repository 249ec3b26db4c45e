// Replaces gloo_fabric.cc if Gloo is not installed.
#include "bench/allreduce/fabrics.h"

namespace cadre::bench {
namespace {

absl::Status NoGloo() {
  return absl::FailedPreconditionError(
      "this program was built without Gloo: install Debian's libgloo-dev (deploy/setup.sh bench) "
      "and build again");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view, DType, int) {
  return NoGloo();
}

absl::StatusOr<std::unique_ptr<Fabric>> ConnectGloo(Member&, const std::string&) {
  return NoGloo();
}

}  // namespace cadre::bench
