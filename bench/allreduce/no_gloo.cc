// Where Gloo is not installed.
#include "bench/allreduce/gloo_network.h"

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

absl::StatusOr<std::unique_ptr<Network>> MakeGlooNetwork(int, int, const std::string&,
                                                         absl::Duration) {
  return NoGloo();
}

}  // namespace cadre::bench
