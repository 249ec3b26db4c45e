// Which workers a run can use, by their devices.
//
// Thread-safe (pure functions).
#pragma once

#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// All kinds that a worker may have.
inline constexpr v1::Cluster::Device kDeviceKinds[] = {v1::Cluster::DEVICE_UNSPECIFIED,
                                                       v1::Cluster::CPU, v1::Cluster::CUDA};

// Device kind of the run's groups. Unspecified: any kind, but one kind per group. TF32, which only
// GPUs support, implies CUDA.
v1::Cluster::Device RequestedDevice(const v1::RunSpec& spec);
// Whether a worker can compute with this precision, and whether its device has, besides, the kind
// that the run requests. Programs with a loop of their own determine the precision themselves.
bool Supports(const v1::MemberRecord& worker, v1::RunSpec::Precision precision);
bool Suits(const v1::MemberRecord& worker, const v1::RunSpec& spec);

}  // namespace cadre
