#include "coordinator/cluster/device_match.h"

#include "absl/algorithm/container.h"

namespace cadre {

v1::Cluster::Device RequestedDevice(const v1::RunSpec& spec) {
  return spec.precision() == v1::RunSpec::TF32 ? v1::Cluster::CUDA : spec.cluster().device();
}

bool Supports(const v1::MemberRecord& worker, v1::RunSpec::Precision precision) {
  return precision <= v1::RunSpec::FP32 || worker.has_reservation() ||
         absl::c_linear_search(worker.precisions(), precision);
}

bool Suits(const v1::MemberRecord& worker, const v1::RunSpec& spec) {
  const v1::Cluster::Device device = RequestedDevice(spec);
  return (device == v1::Cluster::DEVICE_UNSPECIFIED || device == worker.device_kind()) &&
         Supports(worker, spec.precision());
}

}  // namespace cadre
